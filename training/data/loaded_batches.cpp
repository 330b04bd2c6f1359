// Batches of a loader, brought to the device by a thread of their own.
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "common/error.hpp"
#include "training/data/batches.hpp"

namespace shakedown::training {
namespace {

/// The feeder, one thread per epoch, fills device slots on the copy stream. Slots go round: free,
/// filled in the order of the batches, given to the caller, and free again once the caller's stream
/// has read them.
class LoadedBatches final : public BatchSource {
 public:
  LoadedBatches(Communicator& ranks, Loader& loader, Device& device, Stream& stream,
                const NetworkSettings& shape)
      : ranks_(ranks),
        loader_(loader),
        device_(device),
        stream_(stream),
        copies_(device.make_stream(StreamPriority::high)) {
    const auto rows = static_cast<std::size_t>(shape.batch_size);
    const std::size_t label_bytes = rows * sizeof(std::int32_t);
    for (Slot& slot : slots_) {
      slot.images = Buffer(device, batch_bytes(shape) - label_bytes);
      slot.labels = Buffer(device, label_bytes);
      for (auto* event : {&slot.begun, &slot.copied, &slot.ready, &slot.read})
        *event = device.make_event();
    }
    for (Wait& wait : waits_)
      for (auto* event : {&wait.begun, &wait.ended}) *event = device.make_event();
  }
  ~LoadedBatches() override { end_feeding(); }

  // ---- the caller's thread ----

  std::optional<DeviceBatch> next() override {
    give_back();
    Wait& wait = next_wait();
    wait.begun->record(stream_);
    std::unique_lock lock(mutex_);
    if (filled_.empty() && !fed_) {
      lock.unlock();
      // The feeder may wait for the device, and that for another rank: here the wait has an end.
      for (const Slot& slot : slots_)
        if (&slot != read_last_) ranks_.wait(*slot.read, HostWait::polite);
      lock.lock();
      changed_.wait(lock, [&] { return !filled_.empty() || fed_; });
    }
    if (filled_.empty()) {
      if (error_) std::rethrow_exception(error_);
      return std::nullopt;
    }
    given_ = filled_.front();
    filled_.pop_front();
    stream_.wait(*given_->ready);
    wait.ended->record(stream_);
    wait.pending = true;
    ++waits_begun_;
    return DeviceBatch{static_cast<const std::uint8_t*>(given_->images.data()),
                       static_cast<const std::int32_t*>(given_->labels.data())};
  }

  /// The network has read the batch long before the step ends.
  bool load_next(Network& network) override {
    const bool more = BatchSource::load_next(network);
    give_back();
    return more;
  }

  void start_epoch(int epoch, long first_batch) override {
    give_back();
    end_feeding();
    if (copying_) {
      ranks_.wait(*copying_->slot->ready, HostWait::polite);
      release_copied();
    }
    filled_.clear();
    free_.clear();
    for (Slot& slot : slots_) free_.push_back(&slot);
    error_ = nullptr;
    fed_ = false;
    ending_ = false;
    loader_.start_epoch(epoch, first_batch);
    try {
      feeder_ = std::jthread([this] { feed(); });
    } catch (const std::system_error& error) {
      throw InconclusiveError(
          fmt::format("no thread could be started to copy batches: {}", error.code().message()));
    }
  }

  /// Without the stall in steps that the device has not come to.
  InputTimes times() const override {
    InputTimes all = loader_.times();
    all.stall_s = stall_s_;
    for (const Wait& wait : waits_)
      if (wait.pending && wait.ended->done()) all.stall_s += wait.seconds();
    const std::lock_guard lock(mutex_);
    return all + times_;
  }

  void drop_pending_stall() override {
    for (Wait& wait : waits_)
      if (std::exchange(wait.pending, false) && wait.ended->done()) stall_s_ += wait.seconds();
  }

 private:
  struct Slot {
    Buffer images;
    Buffer labels;
    std::unique_ptr<Event> begun, copied, ready;  // on the copy stream
    std::unique_ptr<Event> read;                  // on the caller's
  };
  /// The caller's stream waits for a batch. On a device that is slower than its host the host has
  /// waited long before.
  struct Wait {
    std::unique_ptr<Event> begun, ended;
    bool pending = false;  // not yet in stall_s_

    double seconds() const { return ended->milliseconds_since(*begun) / 1e3; }
  };
  /// A batch in host memory that the copy stream may still read.
  struct Copying {
    const Batch* batch;
    const Slot* slot;
  };

  Wait& next_wait() {
    Wait& wait = waits_[waits_begun_ % waits_.size()];
    if (std::exchange(wait.pending, false)) stall_s_ += wait.seconds();
    return wait;
  }

  void give_back() {
    if (given_ == nullptr) return;
    given_->read->record(stream_);
    read_last_ = std::exchange(given_, nullptr);
    const std::lock_guard lock(mutex_);
    free_.push_back(read_last_);
    changed_.notify_all();
  }

  void end_feeding() {
    if (!feeder_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    loader_.abandon();
    feeder_.join();
  }

  // ---- the feeder ----

  void feed() {
    std::exception_ptr error;
    try {
      device_.use_on_this_thread();
      while (feed_one()) {
      }
    } catch (...) {
      error = std::current_exception();  // next() rethrows it
    }
    const std::lock_guard lock(mutex_);
    error_ = error;
    fed_ = true;
    changed_.notify_all();
  }

  /// False at the end of the epoch, or once it is abandoned.
  bool feed_one() {
    Slot* slot = take_free();
    if (slot == nullptr || !wait_for(*slot->read)) return false;
    const Batch* batch = loader_.next();
    if (batch == nullptr) return false;
    copying_ = {batch, slot};
    fill(*slot, *batch);
    {
      const std::lock_guard lock(mutex_);
      filled_.push_back(slot);
      changed_.notify_all();
    }
    if (!wait_for(*slot->ready)) return false;  // so no wait in fill() is long
    release_copied();
    return true;
  }

  Slot* take_free() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ending_ || !free_.empty(); });
    if (ending_) return nullptr;
    Slot* slot = free_.front();
    free_.pop_front();
    return slot;
  }

  void fill(const Slot& slot, const Batch& batch) {
    auto* images = static_cast<std::uint8_t*>(slot.images.data());
    const auto [decoder, crops] = loader_.device_part();
    slot.begun->record(*copies_);
    if (crops != nullptr)
      crops->enqueue(batch.images, batch.decoded, images, *copies_);
    else if (batch.encoded.size() < batch.labels.size())
      device_.copy(images, batch.images.data(), batch.images.size_bytes(), *copies_);
    slot.copied->record(*copies_);
    if (!batch.encoded.empty())
      for (const Undecoded& left : decoder->decode(batch.encoded, images, *copies_)) {
        const auto row = loader_.decode_on_host(&batch, left);
        device_.copy(images + static_cast<std::size_t>(left.row) * row.size(), row.data(),
                     row.size(), *copies_);
      }
    device_.copy(slot.labels.data(), batch.labels.data(), batch.labels.size_bytes(), *copies_);
    slot.ready->record(*copies_);
  }

  void release_copied() {
    const auto [batch, slot] = *std::exchange(copying_, std::nullopt);
    {
      const std::lock_guard lock(mutex_);
      times_.copy_s += slot->copied->milliseconds_since(*slot->begun) / 1e3;
      if (!batch->encoded.empty())
        times_.device_decode_s += slot->ready->milliseconds_since(*slot->copied) / 1e3;
    }
    loader_.release(batch);
  }

  /// False if the epoch is abandoned meanwhile: the device may never finish.
  bool wait_for(const Event& event) const {
    while (!event.done()) {
      if (ending_) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return true;
  }

  Communicator& ranks_;
  Loader& loader_;
  Device& device_;
  Stream& stream_;
  std::unique_ptr<Stream> copies_;
  std::array<Slot, kLoadedBatchesHeld> slots_;
  Slot* given_ = nullptr;  // to the caller
  Slot* read_last_ = nullptr;
  /// One more than slots: once a batch is given, the wait for the one before the last is over.
  std::array<Wait, kLoadedBatchesHeld + 1> waits_;
  std::size_t waits_begun_ = 0;
  double stall_s_ = 0;              // of the waits that are not pending
  std::optional<Copying> copying_;  // the feeder's

  std::atomic<bool> ending_ = false;
  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable
      changed_;  // the feeder waits for a free slot, the caller for a filled one
  std::deque<Slot*> free_;
  std::deque<Slot*> filled_;
  bool fed_ = true;  // the feeder has ended
  std::exception_ptr error_;
  InputTimes times_;  // without the loader's and the stall

  std::jthread feeder_;  // last: joined before anything else goes
};

}  // namespace

std::unique_ptr<BatchSource> make_loaded_batches(Communicator& ranks, Loader& loader,
                                                 Device& device, Stream& stream,
                                                 const NetworkSettings& shape) {
  return std::make_unique<LoadedBatches>(ranks, loader, device, stream, shape);
}

}  // namespace shakedown::training

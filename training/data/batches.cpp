#include "training/data/batches.hpp"

#include <utility>
#include <vector>

#include "common/ensure.hpp"
#include "common/hash.hpp"

namespace shakedown::training {
namespace {

std::size_t image_bytes(const NetworkSettings& shape) {
  const auto side = static_cast<std::size_t>(shape.image_size);
  return static_cast<std::size_t>(shape.batch_size) * side * side * 3;
}

std::size_t label_bytes(const NetworkSettings& shape) {
  return static_cast<std::size_t>(shape.batch_size) * sizeof(std::int32_t);
}

struct HeldBatch {
  Buffer images;
  Buffer labels;

  DeviceBatch batch() const {
    return {static_cast<const std::uint8_t*>(images.data()),
            static_cast<const std::int32_t*>(labels.data())};
  }
};

class HeldBatches final : public BatchSource {
 public:
  HeldBatches(Device& device, Stream& stream, const std::vector<HostBatch>& batches) {
    for (const HostBatch& batch : batches) {
      const HeldBatch& held = batches_.emplace_back(
          HeldBatch{Buffer(device, batch.images.size()),
                    Buffer(device, batch.labels.size() * sizeof(std::int32_t))});
      upload<std::uint8_t>(device, stream, held.images.data(), batch.images);
      upload<std::int32_t>(device, stream, held.labels.data(), batch.labels);
    }
  }

  std::optional<DeviceBatch> next() override {
    return batches_[std::exchange(next_, (next_ + 1) % batches_.size())].batch();
  }
  bool load_next(Network& network) override {
    const bool is_there = std::exchange(loaded_, true) && batches_.size() == 1;
    return is_there || BatchSource::load_next(network);
  }
  void start_epoch(int, long first_batch) override {
    next_ = static_cast<std::size_t>(first_batch) % batches_.size();
  }

 private:
  std::vector<HeldBatch> batches_;
  std::size_t next_ = 0;
  bool loaded_ = false;
};

using Sources = std::vector<std::unique_ptr<BatchSource>>;

class ScatteredBatches final : public BatchSource {
 public:
  ScatteredBatches(Communicator& ranks, Device& device, Stream& stream,
                   const NetworkSettings& shape,
                   std::vector<std::unique_ptr<BatchSource>> of_every_rank, long batches_per_epoch)
      : ranks_(ranks),
        stream_(stream),
        sources_(std::move(of_every_rank)),
        batches_per_epoch_(batches_per_epoch),
        image_bytes_(image_bytes(shape)),
        label_bytes_(label_bytes(shape)) {
    if (ranks.rank() == 0) return;
    received_ = {Buffer(device, image_bytes_), Buffer(device, label_bytes_)};
  }

  std::optional<DeviceBatch> next() override {
    if (batches_per_epoch_ > 0 && given_ == batches_per_epoch_) return std::nullopt;
    ++given_;
    if (ranks_.rank() == 0) return send();
    ranks_.group([&] {
      ranks_.recv(received_.images.view(DataType::uint8), 0, stream_);
      ranks_.recv(received_.labels.view(DataType::int32), 0, stream_);
    });
    return received_.batch();
  }

  std::vector<DeviceBatch> of_all_ranks() const override { return sent_; }

  void start_epoch(int epoch, long first_batch) override {
    given_ = first_batch;
    for (const auto& source : sources_) source->start_epoch(epoch, first_batch);
  }
  void drop_pending_stall() override {
    for (const auto& source : sources_) source->drop_pending_stall();
  }
  InputTimes times() const override {
    InputTimes all;
    for (const auto& source : sources_) all = all + source->times();
    return all;
  }

 private:
  DeviceBatch send() {
    sent_.clear();
    for (const auto& source : sources_) {
      const std::optional<DeviceBatch> batch = source->next();
      ENSURE(batch, "every rank has as many batches");
      sent_.push_back(*batch);
    }
    ranks_.group([&] {
      for (std::size_t r = 1; r < sent_.size(); ++r) {
        const int rank = static_cast<int>(r);
        ranks_.send({sent_[r].images, image_bytes_, DataType::uint8, Place::device}, rank, stream_);
        ranks_.send(
            {sent_[r].labels, label_bytes_ / sizeof(std::int32_t), DataType::int32, Place::device},
            rank, stream_);
      }
    });
    return sent_.front();
  }

  Communicator& ranks_;
  Stream& stream_;
  Sources sources_;
  long batches_per_epoch_;
  long given_ = 0;
  std::size_t image_bytes_;
  std::size_t label_bytes_;
  std::vector<DeviceBatch> sent_;  // by rank 0, its own included
  HeldBatch received_;             // rank 0 sends its sources' own
};

class NoBatches final : public BatchSource {
 public:
  explicit NoBatches(long batches_per_epoch) : batches_per_epoch_(batches_per_epoch) {}
  std::optional<DeviceBatch> next() override { return std::nullopt; }
  bool load_next(Network&) override { return given_ < batches_per_epoch_ && ++given_ > 0; }
  void start_epoch(int, long first_batch) override { given_ = first_batch; }

 private:
  const long batches_per_epoch_;
  long given_ = 0;
};

}  // namespace

void EndlessBatches::load_next(Network& network) {
  if (source_.load_next(network)) return;
  source_.start_epoch(++epoch_);
  ENSURE(source_.load_next(network), "an epoch without batches");
}

bool BatchSource::load_next(Network& network) {
  const std::optional<DeviceBatch> batch = next();
  if (batch) network.set_batch(batch->images, batch->labels);
  return batch.has_value();
}

std::unique_ptr<BatchSource> make_scattered_batches(
    Communicator& ranks, Device& device, Stream& stream, const NetworkSettings& shape,
    std::vector<std::unique_ptr<BatchSource>> of_every_rank, long batches_per_epoch) {
  return std::make_unique<ScatteredBatches>(ranks, device, stream, shape, std::move(of_every_rank),
                                            batches_per_epoch);
}

std::unique_ptr<BatchSource> make_no_batches(long batches_per_epoch) {
  return std::make_unique<NoBatches>(batches_per_epoch);
}

std::unique_ptr<BatchSource> make_held_batches(Device& device, Stream& stream,
                                               const std::vector<HostBatch>& batches) {
  return std::make_unique<HeldBatches>(device, stream, batches);
}

std::unique_ptr<BatchSource> make_synthetic_batches(Device& device, Stream& stream,
                                                    const NetworkSettings& shape,
                                                    const std::vector<std::uint64_t>& seeds) {
  std::vector<HostBatch> batches;
  for (const std::uint64_t seed : seeds) {
    HostBatch& batch = batches.emplace_back();
    Random random(seed);
    batch.images.resize(image_bytes(shape));
    for (std::uint8_t& pixel : batch.images) pixel = static_cast<std::uint8_t>(random.next() >> 56);
    batch.labels.resize(static_cast<std::size_t>(shape.batch_size));
    for (std::int32_t& label : batch.labels)
      label = static_cast<std::int32_t>(random.below(static_cast<std::size_t>(shape.classes)));
  }
  return make_held_batches(device, stream, batches);
}

std::size_t batch_bytes(const NetworkSettings& shape) {
  return image_bytes(shape) + label_bytes(shape);
}

}  // namespace shakedown::training

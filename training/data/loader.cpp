#include "training/data/loader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <system_error>
#include <utility>

#include "common/error.hpp"

namespace shakedown::training {
namespace {

constexpr int kLentAtMost = 2;

void require_positive(const char* option, int value) {
  if (value < 1) throw UsageError(fmt::format("{} {}: at least 1 is needed", option, value));
}

long divide_up(long a, long b) { return (a + b - 1) / b; }

}  // namespace

long batches_per_epoch(const ImageSource& source, const LoaderSettings& settings) {
  const auto images = static_cast<long>(source.size());
  if (!settings.drop_last)
    return divide_up(divide_up(images, settings.world_size), settings.batch_size);
  const long shard = images / settings.world_size;
  if (shard < settings.batch_size)
    throw UsageError(fmt::format(
        "--batch-size {}: a rank's share of the {} images of {} is {}, less than one batch",
        settings.batch_size, images, source.root(), shard));
  return shard / settings.batch_size;
}

Loader::Loader(const ImageSource& source, const LoaderSettings& settings, Device& device)
    : source_(source), settings_(settings) {
  require_positive("--batch-size", settings.batch_size);
  require_positive("--workers", settings.workers);
  require_positive("--prefetch", settings.prefetch);
  require_positive("--image-size", settings.transform.image_size);
  ENSURE(settings.rank >= 0 && settings.rank < settings.world_size, "rank outside the world");
  batches_per_epoch_ = training::batches_per_epoch(source, settings);
  delivered_ = batches_per_epoch_;

  const auto rows = static_cast<std::size_t>(settings.batch_size);
  const auto size = static_cast<std::size_t>(settings.transform.image_size);
  const long ahead = std::min<long>(settings.prefetch, batches_per_epoch_);
  slots_.resize(static_cast<std::size_t>(ahead) + kLentAtMost);
  for (Slot& slot : slots_) {
    slot.images = Buffer(device, rows * size * size * 3, Place::host);
    slot.labels = Buffer(device, rows * sizeof(std::int32_t), Place::host);
    slot.batch.images = {static_cast<std::uint8_t*>(slot.images.data()), slot.images.bytes()};
    slot.batch.labels = {static_cast<std::int32_t*>(slot.labels.data()), rows};
    free_.push_back(&slot);
  }
  try {
    for (int i = 0; i < settings.workers; ++i) workers_.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {
    const std::size_t started = workers_.size();
    end();
    throw UsageError(fmt::format("--workers {}: only {} threads could be started: {}",
                                 settings.workers, started, error.code().message()));
  }
}

Loader::~Loader() { end(); }

/// One notice for all: a stop token each would wake all of them for each one that ends.
void Loader::end() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  work_.notify_all();
}

void Loader::start_epoch(int epoch) {
  std::unique_lock lock(mutex_);
  items_ = next_item_;  // nothing more to take
  done_.wait(lock, [&] { return busy_ == 0; });
  free_.insert(free_.end(), pending_.begin(), pending_.end());
  pending_.clear();

  epoch_seed_ = derive_seed(settings_.seed, static_cast<std::uint64_t>(epoch));
  order_samples();
  delivered_ = 0;
  stall_seconds_ = 0;
  next_item_ = 0;
  items_ = batches_per_epoch_ * settings_.batch_size;
  work_.notify_all();
}

/// The same on every rank. Fisher & Yates.
void Loader::order_samples() {
  order_.resize(source_.size());
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  if (!settings_.shuffle) return;
  Random random(epoch_seed_);
  for (std::size_t left = order_.size(); left > 1; --left)
    std::swap(order_[left - 1], order_[random.below(left)]);
}

const Batch* Loader::next() {
  std::unique_lock lock(mutex_);
  if (delivered_ == batches_per_epoch_) return nullptr;
  const auto lent = std::count_if(slots_.begin(), slots_.end(), [](auto& s) { return s.lent; });
  ENSURE(lent < kLentAtMost, "batches must be released before more are requested");

  const auto start = std::chrono::steady_clock::now();
  done_.wait(lock, [&] { return !pending_.empty() && pending_.front()->unfinished == 0; });
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
  stall_seconds_ += waited.count();

  Slot& slot = *pending_.front();
  if (slot.error) std::rethrow_exception(slot.error);
  pending_.pop_front();
  slot.lent = true;
  ++delivered_;
  return &slot.batch;
}

void Loader::release(const Batch* batch) {
  const std::lock_guard lock(mutex_);
  const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                 [&](const Slot& s) { return &s.batch == batch && s.lent; });
  ENSURE(slot != slots_.end(), "only a batch in use can be released");
  slot->lent = false;
  free_.push_back(&*slot);
  work_.notify_all();
}

void Loader::work() {
  SampleReader reader(source_, settings_.transform);
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return ending_ || can_take(); });
    if (ending_) return;
    const Item item = take();
    lock.unlock();
    std::exception_ptr error;
    try {
      fill(item, reader);
    } catch (...) {
      error = std::current_exception();  // next() rethrows it
    }
    lock.lock();
    finish(item, std::move(error));
  }
}

bool Loader::can_take() const {
  const bool opens_batch = next_item_ % settings_.batch_size == 0;
  return next_item_ < items_ && (!opens_batch || !free_.empty());
}

/// Items are taken in order, so a batch that is begun is the last one pending.
Loader::Item Loader::take() {
  const long samples = static_cast<long>(order_.size());
  const int row = static_cast<int>(next_item_ % settings_.batch_size);
  if (row == 0) {
    Slot& slot = *free_.back();
    free_.pop_back();
    slot.unfinished = settings_.batch_size;
    slot.error = nullptr;
    slot.batch.count = 0;
    pending_.push_back(&slot);
  }
  Item item{pending_.back(), row, true, 0};
  const long position = next_item_ * settings_.world_size + settings_.rank;
  if (position < samples) {
    item.padding = false;
    item.index = order_[static_cast<std::size_t>(position)];
    ++item.slot->batch.count;
  }
  ++next_item_;
  ++busy_;
  return item;
}

void Loader::fill(const Item& item, SampleReader& reader) const {
  const auto row = static_cast<std::size_t>(item.row);
  const std::size_t bytes =
      item.slot->images.bytes() / static_cast<std::size_t>(settings_.batch_size);
  const std::span out(static_cast<std::uint8_t*>(item.slot->images.data()) + row * bytes, bytes);
  std::int32_t& label = static_cast<std::int32_t*>(item.slot->labels.data())[row];
  if (item.padding) {
    std::fill(out.begin(), out.end(), std::uint8_t{0});
    label = -1;
    return;
  }
  label = reader.read(item.index, derive_seed(epoch_seed_, item.index), out);
}

void Loader::finish(const Item& item, std::exception_ptr error) {
  Slot& slot = *item.slot;
  if (error && (!slot.error || item.row < slot.error_row)) {
    slot.error = std::move(error);
    slot.error_row = item.row;
  }
  --slot.unfinished;
  --busy_;
  if (slot.unfinished == 0 || busy_ == 0) done_.notify_one();
}

}  // namespace shakedown::training

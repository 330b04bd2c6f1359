#include "training/data/loader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
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
  const long shard = images / settings.world_size / settings.shards;
  if (shard < settings.batch_size)
    throw UsageError(fmt::format(
        "--batch-size {}: a rank's share of the {} images of {} is {}, less than one batch",
        settings.batch_size, images, source.root(), shard));
  return shard / settings.batch_size * settings.shards;
}

Loader::Loader(const ImageSource& source, const LoaderSettings& settings, Device& device,
               Workers& workers, const DevicePart& device_part)
    : source_(source),
      settings_(settings),
      workers_(workers),
      device_part_(device_part),
      callers_reader_(source, settings.transform,
                      settings.bad_images != nullptr ? *settings.bad_images : none_allowed_) {
  require_positive("--batch-size", settings.batch_size);
  require_positive("--prefetch", settings.prefetch);
  require_positive("--image-size", settings.transform.image_size);
  ENSURE(settings.rank >= 0 && settings.rank < settings.world_size, "rank outside the world");
  ENSURE((device_part.decoder == nullptr && device_part.crops == nullptr) ||
             device_can_transform(settings.transform),
         "a crop for the device");
  for (int worker = 0; worker < workers.size(); ++worker)
    readers_.emplace_back(source, settings.transform,
                          settings.bad_images != nullptr ? *settings.bad_images : none_allowed_);
  batches_per_epoch_ = training::batches_per_epoch(source, settings);
  delivered_ = batches_per_epoch_;

  const auto rows = static_cast<std::size_t>(settings.batch_size);
  const int size = settings.transform.image_size;
  const DeviceDecoderSettings shape{settings.batch_size, size};
  const std::size_t image_bytes =
      device_part.crops != nullptr ? crop_memory_bytes(shape) : rows * rgb_bytes({size, size});
  const long ahead = std::min<long>(settings.prefetch, batches_per_epoch_);
  slots_.resize(static_cast<std::size_t>(ahead) + kLentAtMost);
  free_.reserve(slots_.size());
  pending_.reserve(slots_.size());
  for (Slot& slot : slots_) {
    slot.images = Buffer(device, image_bytes, Place::host);
    slot.labels = Buffer(device, rows * sizeof(std::int32_t), Place::host);
    slot.rows.resize(rows);
    const std::span images(static_cast<std::uint8_t*>(slot.images.data()), image_bytes);
    slot.batch.images = images;
    if (device_part.crops != nullptr) slot.crops = std::make_unique<CropMemory>(images, shape);
    slot.batch.labels = {static_cast<std::int32_t*>(slot.labels.data()), rows};
    free_.push_back(&slot);
  }
  const std::lock_guard lock(workers_.mutex());
  workers_.add(*this);
}

Loader::~Loader() {
  std::unique_lock lock(workers_.mutex());
  wait_for_workers(lock);
  workers_.remove(*this);
}

void Loader::abandon() {
  const std::lock_guard lock(workers_.mutex());
  items_ = next_item_;
  abandoned_ = true;
  done_.notify_all();
}

void Loader::wait_for_workers(std::unique_lock<std::mutex>& lock) {
  items_ = next_item_;  // nothing more to take
  done_.wait(lock, [&] { return busy_ == 0; });
}

void Loader::start_epoch(int epoch, long first_batch) {
  ENSURE(first_batch >= 0 && first_batch <= batches_per_epoch_, "a batch of the epoch");
  std::unique_lock lock(workers_.mutex());
  wait_for_workers(lock);
  free_.insert(free_.end(), pending_.begin(), pending_.end());
  pending_.clear();

  epoch_seed_ = derive_seed(settings_.seed, static_cast<std::uint64_t>(epoch));
  order_samples();
  abandoned_ = false;
  delivered_ = first_batch;
  next_item_ = first_batch * settings_.batch_size;
  items_ = batches_per_epoch_ * settings_.batch_size;
  workers_.wake();
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
  std::unique_lock lock(workers_.mutex());
  if (delivered_ == batches_per_epoch_) return nullptr;
  const auto lent = std::count_if(slots_.begin(), slots_.end(), [](auto& s) { return s.lent; });
  ENSURE(lent < kLentAtMost, "batches must be released before more are requested");
  done_.wait(
      lock, [&] { return abandoned_ || (!pending_.empty() && pending_.front()->unfinished == 0); });
  if (abandoned_) return nullptr;

  Slot& slot = *pending_.front();
  if (slot.error) std::rethrow_exception(slot.error);
  pending_.erase(pending_.begin());
  slot.lent = true;
  ++delivered_;
  Batch& batch = slot.batch;
  batch.encoded.clear();
  batch.decoded.clear();
  for (int row = 0; row < settings_.batch_size; ++row) {
    const Row& r = slot.rows[static_cast<std::size_t>(row)];
    const auto& [file, crop] = r.left.encoded;
    if (r.left_to_decoder)
      batch.encoded.push_back({file, crop.region, crop.mirror, row});
    else if (slot.crops != nullptr)
      batch.decoded.push_back(r.left.decoded);
  }
  if (slot.crops != nullptr) batch.images = slot.crops->claimed();
  return &batch;
}

std::span<const std::uint8_t> Loader::decode_on_host(const Batch* batch, const Undecoded& left) {
  std::unique_lock lock(workers_.mutex());
  Slot& slot = lent_slot(batch);
  lock.unlock();
  const Row& r = slot.rows.at(static_cast<std::size_t>(left.row));
  const std::span<std::uint8_t> out = square(slot, left.row);
  const auto sample = callers_reader_.read(r.index, r.random_seed, out);
  if (!left.refused && sample.index == r.encoded_index)
    throw InconclusiveError(
        fmt::format("image {}: the device decoder failed on it several times, and the CPU decodes "
                    "it: --decoder cpu decodes all images alike",
                    source_.name(sample.index)));
  static_cast<std::int32_t*>(slot.labels.data())[left.row] = sample.label;
  lock.lock();
  times_ += callers_reader_.take_times();
  return out;
}

void Loader::release(const Batch* batch) {
  const std::lock_guard lock(workers_.mutex());
  Slot& slot = lent_slot(batch);
  slot.lent = false;
  free_.push_back(&slot);
  workers_.wake();
}

InputTimes Loader::times() const {
  const std::lock_guard lock(workers_.mutex());
  return times_;
}

Loader::Slot& Loader::lent_slot(const Batch* batch) {
  const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                 [&](const Slot& s) { return &s.batch == batch && s.lent; });
  ENSURE(slot != slots_.end(), "only a batch in use can be released");
  return *slot;
}

bool Loader::has_work() const {
  const bool opens_batch = next_item_ % settings_.batch_size == 0;
  return next_item_ < items_ && (!opens_batch || !free_.empty());
}

void Loader::work(int worker, std::unique_lock<std::mutex>& lock) {
  SampleReader& reader = readers_[static_cast<std::size_t>(worker)];
  const Item item = take();
  lock.unlock();
  std::exception_ptr error;
  try {
    fill(item, reader);
  } catch (...) {
    error = std::current_exception();  // next() rethrows it
  }
  lock.lock();
  times_ += reader.take_times();
  if (!item.padding) {
    ++times_.images;
    const Row& row = item.slot->rows[static_cast<std::size_t>(item.row)];
    if (!error && row.left_to_decoder) ++times_.device_images;
  }
  finish(item, std::move(error));
}

/// Items are taken in order, so a batch that is begun is the last one pending.
Loader::Item Loader::take() noexcept {
  const long samples = static_cast<long>(order_.size());
  const int row = static_cast<int>(next_item_ % settings_.batch_size);
  if (row == 0) {
    Slot& slot = *free_.back();
    free_.pop_back();
    slot.unfinished = settings_.batch_size;
    slot.error = nullptr;
    slot.batch.count = 0;
    if (slot.crops != nullptr) slot.crops->clear();
    pending_.push_back(&slot);
  }
  Item item{pending_.back(), row, true};
  const long position = position_of(next_item_);
  if (position < samples) {
    item.padding = false;
    const std::size_t index = order_[static_cast<std::size_t>(position)];
    Row& r = item.slot->rows[static_cast<std::size_t>(row)];
    r.index = index;
    r.random_seed = derive_seed(epoch_seed_, index);
    ++item.slot->batch.count;
  }
  ++next_item_;
  ++busy_;
  return item;
}

/// In the epoch's order.
long Loader::position_of(long item) const {
  const long shards = settings_.shards;
  const long batch = item / settings_.batch_size;
  const long row = item % settings_.batch_size + batch / shards * settings_.batch_size;
  return row * settings_.world_size * shards + settings_.rank * shards + batch % shards;
}

/// Memory for the row as the network sees it.
std::span<std::uint8_t> Loader::square(const Slot& slot, int row) const {
  if (slot.crops != nullptr) return slot.crops->claim_square().rgb;
  const std::size_t bytes = slot.images.bytes() / static_cast<std::size_t>(settings_.batch_size);
  return {static_cast<std::uint8_t*>(slot.images.data()) + static_cast<std::size_t>(row) * bytes,
          bytes};
}

void Loader::fill(const Item& item, SampleReader& reader) const {
  const Slot& slot = *item.slot;
  std::int32_t& label = static_cast<std::int32_t*>(slot.labels.data())[item.row];
  Row& row = item.slot->rows[static_cast<std::size_t>(item.row)];
  std::span<std::uint8_t> out;
  if (item.padding || slot.crops == nullptr) out = square(slot, item.row);
  if (item.padding) {
    std::fill(out.begin(), out.end(), std::uint8_t{0});
    const int size = settings_.transform.image_size;
    row.left.decoded = {out, {size, size}};
    row.left_to_decoder = false;
    label = -1;
  } else {
    row.left.decoder = device_part_.decoder;
    row.left.crops = slot.crops.get();
    const auto sample = reader.read(row.index, row.random_seed, out, &row.left);
    row.left_to_decoder = sample.left_to_decoder;
    row.encoded_index = sample.index;
    label = sample.label;
  }
  row.left.decoded.row = item.row;
}

void Loader::finish(const Item& item, std::exception_ptr error) {
  Slot& slot = *item.slot;
  if (error && (!slot.error || item.row < slot.error_row)) {
    slot.error = std::move(error);
    slot.error_row = item.row;
  }
  --slot.unfinished;
  --busy_;
  if (slot.unfinished == 0 || busy_ == 0) done_.notify_all();
}

StageTimes& operator+=(StageTimes& a, const StageTimes& b) {
  a.open_s += b.open_s;
  a.read_s += b.read_s;
  a.decode_s += b.decode_s;
  a.augment_s += b.augment_s;
  return a;
}

namespace {

constexpr double InputTimes::*kSums[] = {&InputTimes::open_s,   &InputTimes::read_s,
                                         &InputTimes::decode_s, &InputTimes::augment_s,
                                         &InputTimes::copy_s,   &InputTimes::device_decode_s,
                                         &InputTimes::images,   &InputTimes::device_images};

/// a + sign b.
InputTimes combined(InputTimes a, double sign, const InputTimes& b) {
  a.stall_s += sign * b.stall_s;
  for (double InputTimes::*const sum : kSums) a.*sum += sign * (b.*sum);
  return a;
}

}  // namespace

InputTimes operator+(const InputTimes& a, const InputTimes& b) { return combined(a, 1, b); }

InputTimes operator-(const InputTimes& a, const InputTimes& b) { return combined(a, -1, b); }

InputTimes over_ranks(const InputTimes& mine, const MpiSession& session) {
  InputTimes all;
  for (const InputTimes& of_rank : session.all_gather(mine)) {
    const double stall_s = std::max(all.stall_s, of_rank.stall_s);
    all = all + of_rank;
    all.stall_s = stall_s;
  }
  return all;
}

}  // namespace shakedown::training

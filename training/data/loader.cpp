#include "training/data/loader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <system_error>
#include <utility>

#include "common/error.hpp"
#include "common/hash.hpp"
#include "training/data/image.hpp"

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
    if (r.left_to_decoder)
      batch.encoded.push_back(r.left.encoded);
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
  times_ = times_ + callers_reader_.take_times();
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
  times_ = times_ + reader.take_times();
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
  row.left.encoded.row = row.left.decoded.row = item.row;
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

InputTimes over_ranks(const InputTimes& mine, const MpiSession& session) {
  return over_ranks(session.all_gather(mine));
}

InputTimes over_ranks(const std::vector<InputTimes>& of_ranks) {
  InputTimes all;
  for (const InputTimes& of_rank : of_ranks) {
    const double stall_s = std::max(all.stall_s, of_rank.stall_s);
    all = all + of_rank;
    all.stall_s = stall_s;
  }
  return all;
}

SampleReader::Outcome SampleReader::read(std::size_t index, std::uint64_t random_seed,
                                         std::span<std::uint8_t> out, LeftToDevice* left) {
  for (std::size_t attempt = 0; attempt < source_.size(); ++attempt) {
    const std::size_t tried = source_.replacement(index, attempt);
    try {
      const bool left_to_decoder = read_image(tried, random_seed, out, left);
      return {source_.label(tried), left_to_decoder, tried};
    } catch (const UsageError& error) {
      bad_.note(source_, tried, error.what());
    }
  }
  throw UsageError(fmt::format("{}: all {} images are bad", source_.root(), source_.size()));
}

/// Whether it is left to the decoder. Throws UsageError with what is wrong with the image.
bool SampleReader::read_image(std::size_t index, std::uint64_t random_seed,
                              std::span<std::uint8_t> out, LeftToDevice* left) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  source_.read(index, encoded_, times_);
  Random random(random_seed);
  if (left != nullptr && left->decoder != nullptr && left->decoder->supports(encoded_)) {
    const Crop crop = random_crop(*baseline_jpeg_size(encoded_), settings_, random);
    left->file.swap(encoded_);
    left->encoded = {left->file, crop.region, crop.mirror};
    return true;
  }
  const auto start = Clock::now();
  Crop crop;
  const Image& image = decode(crop, random);
  const auto decoded = Clock::now();
  if (left != nullptr && left->crops != nullptr)
    left->decoded = place(image, crop.mirror, random, *left->crops);
  else
    transform_(image, crop.mirror, random, out);
  times_.decode_s += Seconds(decoded - start).count();
  times_.augment_s += Seconds(Clock::now() - decoded).count();
  return false;
}

DecodedCrop SampleReader::place(const Image& image, bool mirror, Random& random,
                                CropMemory& crops) {
  const auto [rgb, size] = crops.claim(image.size());
  const bool fits = size == image.size();
  if (fits)
    copy_rgb(image, rgb);
  else
    transform_(image, mirror, random, rgb);
  return {rgb, size, fits && mirror};
}

/// Draws the crop and decodes its pixels.
const Image& SampleReader::decode(Crop& crop, Random& random) {
  crop = random_crop(decoder_.open(encoded_), settings_, random);
  return decoder_.decode(crop.region);
}

Workers::Workers(int count) : size_(count) {
  if (count < 1) throw UsageError(fmt::format("--workers {}: at least 1 is needed", count));
  try {
    for (int i = 0; i < count; ++i) threads_.emplace_back([this, i] { run(i); });
  } catch (const std::system_error& error) {
    const std::size_t started = threads_.size();
    end();
    throw UsageError(fmt::format("--workers {}: only {} threads could be started: {}", count,
                                 started, error.code().message()));
  } catch (...) {  // no memory: those that were started would be waited for without end
    end();
    throw;
  }
}

Workers::~Workers() { end(); }

/// One notice for all: a stop token each would wake all of them for each one that ends.
void Workers::end() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  work_.notify_all();
}

void Workers::run(int worker) {
  std::unique_lock lock(mutex_);
  while (true) {
    Loader* loader = nullptr;
    work_.wait(lock, [&] { return ending_ || (loader = next_loader()) != nullptr; });
    if (ending_) return;
    loader->work(worker, lock);
  }
}

Loader* Workers::next_loader() const {
  const auto found = std::ranges::find_if(loaders_, &Loader::has_work);
  return found == loaders_.end() ? nullptr : *found;
}

}  // namespace shakedown::training

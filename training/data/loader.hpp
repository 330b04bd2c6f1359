// Batches of decoded and transformed images, made ahead of the training step by several threads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/device.hpp"
#include "common/mpi_session.hpp"
#include "training/data/crops.hpp"
#include "training/data/source.hpp"
#include "training/data/transform.hpp"

namespace shakedown::training {

/// What may be left to the device, and what it gets.
struct LeftToDevice {
  const DeviceDecoder* decoder = nullptr;  // may decode what it supports
  CropMemory* crops = nullptr;             // has what it scales
  std::vector<std::uint8_t> file;          // where it decodes
  EncodedImage encoded = {};               // of that file
  DecodedCrop decoded = {};                // where it only scales
};

/// One per thread: it keeps its working memory. The source and `bad` must outlive it.
class SampleReader {
 public:
  SampleReader(const ImageSource& source, const TransformSettings& settings, BadImages& bad)
      : source_(source), bad_(bad), settings_(settings), transform_(settings) {}

  /// Who made the pixels, and what the sample is.
  struct Outcome {
    std::int32_t label;
    bool left_to_decoder;
    std::size_t index;  // the requested one, or of what replaces it
  };
  /// Reads, decodes and transforms the sample into `out`, image_size x image_size x 3. What is
  /// random is drawn from `random_seed` alone. Where there is a decoder, what it supports is left
  /// to it, with the crop that would be made here. Where there is memory for crops, the others are
  /// left in it and not in `out`: as they were decoded, or scaled where it has no place for more. A
  /// bad image is noted and replaced (ImageSource::replacement); throws UsageError as
  /// BadImages::note does. An image that cannot be read may be sound, so none replaces it:
  /// ImageSource::read's error passes.
  Outcome read(std::size_t index, std::uint64_t random_seed, std::span<std::uint8_t> out,
               LeftToDevice* left = nullptr);

  /// The cost since the last call of this.
  InputTimes take_times() { return std::exchange(times_, {}); }

 private:
  bool read_image(std::size_t index, std::uint64_t random_seed, std::span<std::uint8_t> out,
                  LeftToDevice* left);
  const Image& decode(Crop& crop, Random& random);
  DecodedCrop place(const Image& image, bool mirror, Random& random, CropMemory& crops);

  const ImageSource& source_;
  BadImages& bad_;
  const TransformSettings settings_;
  ImageDecoder decoder_;
  Transform transform_;
  InputTimes times_;
  std::vector<std::uint8_t> encoded_;
};

/// Whether a device can make what these settings ask of training images: it only scales crops.
inline bool device_can_transform(const TransformSettings& settings) {
  return settings.augmentation == Augmentation::resized_crop;
}

// The threads that make samples: one pool per rank, which all its loaders share.

class Loader;

/// Threads that live as long as the run. Loaders that were added first are served first.
class Workers {
 public:
  /// Throws UsageError naming --workers when the threads cannot be started.
  explicit Workers(int count);
  /// No loader is left by then.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int size() const { return size_; }
  /// Guards the loaders and what they share with the threads.
  std::mutex& mutex() { return mutex_; }
  /// A loader has work again.
  void wake() { work_.notify_all(); }
  // Both with the mutex locked; a loader is removed when no thread works for it any more.
  void add(Loader& loader) { loaders_.push_back(&loader); }
  void remove(Loader& loader) { std::erase(loaders_, &loader); }

 private:
  void run(int worker);
  void end();
  Loader* next_loader() const;

  const int size_;
  std::mutex mutex_;
  std::condition_variable work_;  // the threads wait: a loader has work, or it ends
  std::vector<Loader*> loaders_;
  bool ending_ = false;
  std::vector<std::jthread> threads_;  // last: joined before anything else goes
};

/// The sum over the ranks, with the longest stall. Collective.
InputTimes over_ranks(const InputTimes& mine, const MpiSession& session);
InputTimes over_ranks(const std::vector<InputTimes>& of_ranks);

/// Workers per rank that decode as fast as the JPEG engines of a GPU that trains. Measured on an
/// H200 (ResNet-50, fp16, batch 256, 500x375 pixels): 8,000 images/s by the engines, and 16
/// workers make up to 13,770; 9 make 7,700 at that rate per worker.
inline constexpr int kWorkersLikeEngines = 9;

/// How the input of a rank is set up.
struct InputSetup {
  int workers = 0;              // threads per rank; 0: the data are synthetic
  int cores = 1;                // this rank's share of its host's
  std::string decoder = "cpu";  // of training images: cpu or nvjpeg
  int ranks = 1;                // that load images
  bool packed = false;          // the training images are one packed file
};

struct LoaderSettings {
  int batch_size = 64;  // per rank
  int prefetch = 4;     // batches made ahead of the requested one
  bool shuffle = true;
  bool drop_last = true;  // only full batches; else the last ones are padded
  std::uint64_t seed = 0;
  int rank = 0;
  int world_size = 1;
  int shards = 1;  // of the global batch on this rank: a batch each, in turn
  TransformSettings transform;
  BadImages* bad_images = nullptr;  // outlives the loader; null: none is allowed
};

/// What the device makes of the images; null: the host does.
struct DevicePart {
  DeviceDecoder* decoder = nullptr;
  DeviceCrops* crops = nullptr;  // scales what the host decodes
};

/// In pinned host memory, for copies to the device.
struct Batch {
  std::span<const std::uint8_t> images;  // N H W 3; zero where there is no sample. With
                                         // DeviceCrops: the pixels of `decoded`
  std::span<const std::int32_t> labels;  // N; -1 where there is no sample
  int count = 0;                         // samples, which come first; with padding fewer than N
  std::vector<EncodedImage> encoded;     // rows left to the device decoder, in rising order: what
                                         // `images` has of them is undefined
  std::vector<DecodedCrop> decoded;      // with DeviceCrops the other rows, in rising order
};

/// Batches per epoch of one rank. Throws UsageError if --batch-size is more images than a rank has.
long batches_per_epoch(const ImageSource& source, const LoaderSettings& settings);

/// Rank r of n takes every n-th sample of the epoch's order, starting with the r-th: with the same
/// global batch, an update has the same samples at any number of ranks. With several shards per
/// rank, each has the batches that it would have as a rank of its own. What a batch holds, and who
/// decodes each row, depends on the settings, the epoch and the source alone: not on threads or
/// timing. All ranks make the same number of batches, and no sample is on two of them. The caller
/// is one thread and holds at most two batches at a time; abandon() and times() are for any thread.
class Loader {
 public:
  /// Throws UsageError naming the option that cannot work. All that it is given must outlive it.
  Loader(const ImageSource& source, const LoaderSettings& settings, Device& device,
         Workers& workers, const DevicePart& device_part = {});
  ~Loader();

  /// What is left to it is in the batches.
  const DevicePart& device_part() const { return device_part_; }
  long batches_per_epoch() const { return batches_per_epoch_; }

  /// Abandons what is left of the epoch before, and skips the first batches of this one. Batches
  /// not yet released stay valid.
  void start_epoch(int epoch, long first_batch = 0);

  /// Blocks until the next batch is there; nullptr at the end of the epoch, before the first, and
  /// once the epoch is abandoned. Rethrows what a worker threw (a corrupt file), once all batches
  /// before that one were handed over.
  const Batch* next();

  /// The workers start no more samples of this epoch, and next() returns at once.
  void abandon();

  /// Makes a row on this thread whose encoded image the device decoder did not decode; its pixels
  /// are the batch's. Throws InconclusiveError naming an image that the device failed on and the
  /// host can decode: what decodes it would depend on chance.
  std::span<const std::uint8_t> decode_on_host(const Batch* batch, const Undecoded& left);

  /// The batch's memory may be reused: its copy to the device is done.
  void release(const Batch* batch);

  /// Without the stages after next().
  InputTimes times() const;

 private:
  friend class Workers;
  struct Row {
    std::size_t index = 0;  // of the sample in the source
    std::uint64_t random_seed = 0;
    bool left_to_decoder = false;
    std::size_t encoded_index = 0;  // of the image in `encoded`: index, or a replacement
    LeftToDevice left;
  };
  struct Slot {
    Buffer images;
    Buffer labels;
    std::unique_ptr<CropMemory> crops;  // in `images`; with DeviceCrops
    std::vector<Row> rows;
    Batch batch;
    int unfinished = 0;  // items that workers have still to take or to finish
    bool lent = false;
    std::exception_ptr error;  // of the lowest row that failed
    int error_row = 0;
  };
  struct Item {
    Slot* slot;
    int row;       // in the slot's batch
    bool padding;  // there is no sample
  };

  // The threads call both with the mutex locked.
  bool has_work() const;
  /// Takes one piece of work, and unlocks while it does it. `worker` is below Workers::size().
  void work(int worker, std::unique_lock<std::mutex>& lock);
  Item take() noexcept;  // else a thread ends the program
  long position_of(long item) const;
  void fill(const Item& item, SampleReader& reader) const;
  void finish(const Item& item, std::exception_ptr error);
  void order_samples();
  void wait_for_workers(std::unique_lock<std::mutex>& lock);
  Slot& lent_slot(const Batch* batch);
  std::span<std::uint8_t> square(const Slot& slot, int row) const;

  const ImageSource& source_;
  const LoaderSettings settings_;
  Workers& workers_;
  const DevicePart device_part_;
  BadImages none_allowed_{0, {}};
  long batches_per_epoch_ = 0;
  std::deque<SampleReader> readers_;  // one per worker
  SampleReader callers_reader_;

  // The rest is guarded by the workers' mutex, except a row and its memory, which are its worker's
  // alone until it reports the row finished, and then the caller's.
  std::condition_variable done_;  // the caller waits: a batch is full, or no worker is busy
  std::vector<Slot> slots_;
  // Both have room for every slot: no thread requests memory for them.
  std::vector<Slot*> free_;
  std::vector<Slot*> pending_;  // being filled or full, in the order of the batches
  std::vector<std::size_t> order_;
  std::uint64_t epoch_seed_ = 0;
  long next_item_ = 0;  // counts rows over all batches of the epoch
  long items_ = 0;      // where taking ends
  long delivered_ = 0;  // batches
  int busy_ = 0;        // workers
  bool abandoned_ = false;
  InputTimes times_;
};

}  // namespace shakedown::training

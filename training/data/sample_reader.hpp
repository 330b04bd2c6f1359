// One sample, from its encoded image to the pixels that the network sees.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "training/data/crops.hpp"
#include "training/data/source.hpp"
#include "training/data/transform.hpp"

namespace shakedown::training {

/// An encoded image that the device decodes.
struct EncodedSample {
  std::vector<std::uint8_t> file;
  Crop crop;
};

/// What may be left to the device, and what it gets.
struct LeftToDevice {
  const DeviceDecoder* decoder = nullptr;  // may decode what it supports
  CropMemory* crops = nullptr;             // has what it scales
  EncodedSample encoded;                   // where it decodes
  DecodedCrop decoded;                     // where it only scales
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
  StageTimes take_times() { return std::exchange(times_, {}); }

 private:
  bool read_image(std::size_t index, std::uint64_t random_seed, std::span<std::uint8_t> out,
                  LeftToDevice* left);
  std::optional<Size> size_for(const DeviceDecoder& decoder) const;
  const Image& decode(Crop& crop, Random& random);
  DecodedCrop place(const Image& image, bool mirror, Random& random, CropMemory& crops);

  const ImageSource& source_;
  BadImages& bad_;
  const TransformSettings settings_;
  ImageDecoder decoder_;
  Image turned_;
  Transform transform_;
  StageTimes times_;
  std::vector<std::uint8_t> encoded_;
};

/// Whether a device can make what these settings ask of training images: it only scales crops.
inline bool device_can_transform(const TransformSettings& settings) {
  return settings.augmentation == Augmentation::resized_crop;
}

// The threads that make samples: one pool per rank, which all its loaders share.

/// Threads that live as long as the run. Jobs that were added first are served first.
class Workers {
 public:
  /// Something to work on. The threads call both functions with the mutex locked.
  class Job {
   public:
    virtual bool has_work() const = 0;
    /// Takes one piece of work, and unlocks while it does it. `worker` is below size().
    virtual void work(int worker, std::unique_lock<std::mutex>& lock) = 0;

   protected:
    ~Job() = default;
  };

  /// Throws UsageError naming --workers when the threads cannot be started.
  explicit Workers(int count);
  /// No job is left by then.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int size() const { return size_; }
  /// Guards the jobs and what they share with the threads.
  std::mutex& mutex() { return mutex_; }
  /// A job has work again.
  void wake() { work_.notify_all(); }
  // Both with the mutex locked; a job is removed when no thread works on it any more.
  void add(Job& job) { jobs_.push_back(&job); }
  void remove(Job& job) { std::erase(jobs_, &job); }

 private:
  void run(int worker);
  void end();
  Job* next_job() const;

  const int size_;
  std::mutex mutex_;
  std::condition_variable work_;  // the threads wait: a job has work, or it ends
  std::vector<Job*> jobs_;
  bool ending_ = false;
  std::vector<std::jthread> threads_;  // last: joined before anything else goes
};

}  // namespace shakedown::training

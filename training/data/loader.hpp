// Batches of decoded and transformed images, made ahead of the training step by several threads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "common/device.hpp"
#include "training/data/sample_reader.hpp"

namespace shakedown::training {

struct LoaderSettings {
  int batch_size = 64;  // per rank
  int workers = 4;      // threads
  int prefetch = 4;     // batches made ahead of the requested one
  bool shuffle = true;
  bool drop_last = true;  // only full batches; else the last ones are padded
  std::uint64_t seed = 0;
  int rank = 0;
  int world_size = 1;
  TransformSettings transform;
};

/// In pinned host memory, for copies to the device.
struct Batch {
  std::span<const std::uint8_t> images;  // N H W 3; zero where there is no sample
  std::span<const std::int32_t> labels;  // N; -1 where there is no sample
  int count = 0;                         // samples, which come first; with padding fewer than N
};

/// Batches per epoch of one rank. Throws UsageError if --batch-size is more images than a rank has.
long batches_per_epoch(const ImageSource& source, const LoaderSettings& settings);

/// Rank r of n takes every n-th sample of the epoch's order, starting with the r-th. What a batch
/// holds depends on the settings, the epoch and the source alone: not on threads or timing.
/// All ranks make the same number of batches, and no sample is on two of them. The caller is one
/// thread and holds at most two batches at a time.
class Loader {
 public:
  /// Throws UsageError naming the option that cannot work. The source must outlive this.
  Loader(const ImageSource& source, const LoaderSettings& settings, Device& device);
  ~Loader();

  long batches_per_epoch() const { return batches_per_epoch_; }

  /// Abandons what is left of the epoch before. Batches not yet released stay valid.
  void start_epoch(int epoch);

  /// Blocks until the next batch is there; nullptr at the end of the epoch, and before the first.
  /// Rethrows what a worker threw (a corrupt file), once all batches before that one were handed
  /// out.
  const Batch* next();

  /// The batch's memory may be reused: its copy to the device is done.
  void release(const Batch* batch);

  /// How long next() has blocked in this epoch.
  double stall_seconds() const { return stall_seconds_; }

 private:
  struct Slot {
    Buffer images;
    Buffer labels;
    Batch batch;
    int unfinished = 0;  // items that workers have still to take or to finish
    bool lent = false;
    std::exception_ptr error;  // of the lowest row that failed
    int error_row = 0;
  };
  struct Item {
    Slot* slot;
    int row;            // in the slot's batch
    bool padding;       // there is no sample
    std::size_t index;  // of the sample in the source
  };

  void work();
  void end();
  bool can_take() const;
  Item take();
  void fill(const Item& item, SampleReader& reader) const;
  void finish(const Item& item, std::exception_ptr error);
  void order_samples();

  const ImageSource& source_;
  const LoaderSettings settings_;
  long batches_per_epoch_ = 0;
  double stall_seconds_ = 0;

  // The rest is guarded by mutex_, except the memory of a row, which is its worker's alone until
  // it reports the row finished.
  std::mutex mutex_;
  std::condition_variable work_;  // workers wait: there are items to take, or it ends
  std::condition_variable done_;  // the caller waits: a batch is full, or no worker is busy
  std::vector<Slot> slots_;
  std::vector<Slot*> free_;
  std::deque<Slot*> pending_;  // being filled or full, in the order of the batches
  std::vector<std::size_t> order_;
  std::uint64_t epoch_seed_ = 0;
  long next_item_ = 0;  // counts rows over all batches of the epoch
  long items_ = 0;      // where taking ends
  long delivered_ = 0;  // batches
  int busy_ = 0;        // workers
  bool ending_ = false;

  std::vector<std::jthread> workers_;  // last: joined before anything else goes
};

}  // namespace shakedown::training

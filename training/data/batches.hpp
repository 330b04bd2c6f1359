// Where a step's batch comes from: one fixed synthetic batch, or images through the loader.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "common/communicator.hpp"
#include "common/device.hpp"
#include "resnet/network.hpp"
#include "training/data/loader.hpp"

namespace shakedown::training {

/// A batch in device memory, valid until the next call of next(); see Network::set_batch.
struct DeviceBatch {
  const std::uint8_t* images = nullptr;
  const std::int32_t* labels = nullptr;
};

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Enqueues what brings the next batch to the device. None at the end of the epoch (synthetic
  /// data never end).
  virtual std::optional<DeviceBatch> next() = 0;
  /// Enqueues the next batch into the network. False at the end of the epoch.
  virtual bool load_next(Network& network);
  /// Skips the first batches of the epoch. How many are done is the caller's count, of steps that
  /// were taken: more than those have been made ahead.
  virtual void start_epoch(int epoch, long first_batch = 0) = 0;
  /// Where one rank makes the batches of all, there: the last ones, in the order of the ranks that
  /// compute, valid until the next call of next(). Else empty.
  virtual std::vector<DeviceBatch> of_all_ranks() const { return {}; }
  /// Since the start of the run.
  virtual InputTimes times() const { return {}; }
  /// The stall in steps that the device has not come to yet will not count.
  virtual void drop_pending_stall() {}
};

/// A source's epochs one after another.
class EndlessBatches {
 public:
  explicit EndlessBatches(BatchSource& source) : source_(source) { source_.start_epoch(0); }
  void load_next(Network& network);
  InputTimes times() const { return source_.times(); }
  void drop_pending_stall() { source_.drop_pending_stall(); }

 private:
  BatchSource& source_;
  int epoch_ = 0;
};

/// A batch in host memory: N H W 3, and a label for each image.
struct HostBatch {
  std::vector<std::uint8_t> images;
  std::vector<std::int32_t> labels;
};
/// These batches over and over. On the device from the start, so they cost a step nothing.
std::unique_ptr<BatchSource> make_held_batches(Device& device, Stream& stream,
                                               const std::vector<HostBatch>& batches);

/// The same of random pixels and labels, a batch of each seed.
std::unique_ptr<BatchSource> make_synthetic_batches(Device& device, Stream& stream,
                                                    const NetworkSettings& shape,
                                                    const std::vector<std::uint64_t>& seeds);
inline std::unique_ptr<BatchSource> make_synthetic_batches(Device& device, Stream& stream,
                                                           const NetworkSettings& shape,
                                                           std::uint64_t seed) {
  return make_synthetic_batches(device, stream, shape, std::vector{seed});
}

/// Device memory that a source of loaded batches holds: one batch is filled while another is read.
inline constexpr int kLoadedBatchesHeld = 2;

/// Through `loader`, which must outlive it: no other source may share its device part. A thread
/// copies batches on a stream of its own, ahead of `stream`, which waits for them. Work on `stream`
/// may depend on the other `ranks`: the caller's waiting for it ends with an error past their
/// timeout.
std::unique_ptr<BatchSource> make_loaded_batches(Communicator& ranks, Loader& loader,
                                                 Device& device, Stream& stream,
                                                 const NetworkSettings& shape);

/// Rank 0's `of_every_rank` are the sources of all ranks' batches, which it sends out; empty on
/// other ranks. batches_per_epoch 0: the epoch does not end.
std::unique_ptr<BatchSource> make_scattered_batches(
    Communicator& ranks, Device& device, Stream& stream, const NetworkSettings& shape,
    std::vector<std::unique_ptr<BatchSource>> of_every_rank, long batches_per_epoch);

/// For a rank that does not compute: each epoch has this many batches of nothing, by load_next().
std::unique_ptr<BatchSource> make_no_batches(long batches_per_epoch = 0);

/// Device memory of one batch.
std::size_t batch_bytes(const NetworkSettings& shape);

}  // namespace shakedown::training

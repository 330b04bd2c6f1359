// Where a step's batch comes from: one fixed synthetic batch, or images through the loader.
#pragma once

#include <array>
#include <memory>

#include "common/device.hpp"
#include "resnet/network.hpp"
#include "training/data/loader.hpp"

namespace shakedown {

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Enqueues the next batch into the network. False at the end of the epoch (synthetic data
  /// never end).
  virtual bool load_next(Network& network) = 0;
  virtual void start_epoch(int epoch) = 0;
  /// Seconds the host has waited for data in this epoch.
  virtual double stall_seconds() const = 0;
};

/// Random pixels and labels, the same at every step, different on every rank. On the device from
/// the start, so it costs a step nothing.
std::unique_ptr<BatchSource> make_synthetic_batches(Device& device, Stream& stream,
                                                    const NetworkSettings& shape,
                                                    std::uint64_t seed);

/// Through `loader`, which must outlive it.
std::unique_ptr<BatchSource> make_loaded_batches(Loader& loader, Device& device, Stream& stream,
                                                 const NetworkSettings& shape);

/// Device memory that a source of either kind takes.
std::size_t batch_bytes(const NetworkSettings& shape);

}  // namespace shakedown

// The flat buffers of a network: master weights, compute weights, gradients, running statistics.
#pragma once

#include "common/device.hpp"
#include "resnet/architecture.hpp"

namespace shakedown {

class Weights {
 public:
  /// Allocated and zeroed. `compute_type` is the type of compute weights and gradients; with
  /// float32 the compute weights are the master weights.
  Weights(Device& device, Stream& stream, const ParameterTable& table, DataType compute_type);

  // The whole buffers, stored_count() elements each.
  View master() const { return master_.view(DataType::float32); }
  View compute() const { return has_copy() ? compute_.view(type_) : master(); }
  View gradients() const { return gradients_.view(type_); }
  View statistics() const { return statistics_.view(DataType::float32); }
  bool has_copy() const { return type_ != DataType::float32; }
  DataType type() const { return type_; }

  // Where parameter or running statistics number `index` of the table begins.
  float* master(int index) const;
  void* compute(int index) const;
  void* gradient(int index) const;
  float* running_mean(int index) const;
  float* running_variance(int index) const;

  std::size_t bytes() const;

 private:
  const Parameter& parameter(int index) const {
    return table_.parameters().at(static_cast<std::size_t>(index));
  }

  const ParameterTable& table_;
  DataType type_;
  Buffer master_;
  Buffer compute_;
  Buffer gradients_;
  Buffer statistics_;
};

}  // namespace shakedown

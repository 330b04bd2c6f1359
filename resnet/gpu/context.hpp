// The context that the gpu units share, and the functions that make them.
#pragma once

#include <map>
#include <memory>

#include "common/gpu/native.hpp"
#include "resnet/gpu/fusable_reduction.hpp"
#include "resnet/gpu/handles.hpp"
#include "resnet/gpu/tuner.hpp"
#include "resnet/roofs.hpp"
#include "resnet/units.hpp"

namespace shakedown::gpu {

struct GpuContext : UnitContext {
  explicit GpuContext(const UnitContext& context)
      : UnitContext(context),
        type(compute_type(precision)),
        cuda_stream(native(stream)),
        dnn(cuda_stream),
        blas(device, cuda_stream),
        tuner(context, dnn) {}
  GpuContext(const GpuContext&) = delete;
  GpuContext& operator=(const GpuContext&) = delete;

  /// Over the gradient that is computed into this slot; null where there is none.
  FusableReduction* reduction_over(const Slot* gradient) const {
    const auto found = reductions.find(gradient);
    return found == reductions.end() ? nullptr : found->second;
  }

  /// Enqueues random data of moderate size into a whole slot.
  void randomise(const Slot& slot, DataType slot_type) const {
    gpu::randomise(slot.data(), slot.bytes() / size_of(slot_type), slot_type, cuda_stream);
  }

  /// Enqueues `body`, a kernel that moves `bytes` for the layer with these weights.
  template <class Body>
  void run(const char* kernel, int weight, double bytes, Body&& body) const {
    log.run({kernel, weight, bytes, 0}, body);
  }
  double bytes_of(const ActivationShape& shape) const {
    return static_cast<double>(shape.count() * size_of(type));
  }
  NormParameters parameters_of(const NormedConv& layer) const {
    return {weights.vector(layer.gamma),
            weights.vector(layer.beta),
            weights.running_mean(layer.statistics),
            weights.running_variance(layer.statistics),
            weights.gradient(layer.gamma),
            weights.gradient(layer.beta)};
  }

  DataType type;
  cudaStream_t cuda_stream;
  DnnHandle dnn;
  BlasHandle blas;
  Tuner tuner;
  Fused fused;
  std::map<const Slot*, FusableReduction*> reductions;  // of the units made so far
  bool repeatable = false;                              // while set, forward adds in a fixed order
};

Roofs measure_roofs(GpuContext& context);

std::unique_ptr<NetworkUnit> make_stem(GpuContext& context, const StemSpec& spec);
std::unique_ptr<NetworkUnit> make_conv_norm(GpuContext& context, const ConvNormSpec& spec);
std::unique_ptr<NetworkUnit> make_conv_norm_add(GpuContext& context, const ConvNormAddSpec& spec);
std::unique_ptr<NetworkUnit> make_head(GpuContext& context, const HeadSpec& spec);

}  // namespace shakedown::gpu

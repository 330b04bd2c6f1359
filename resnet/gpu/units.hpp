// What the gpu units share: library handles, tuned convolutions, and a convolution with its norm.
#pragma once

#include <cublas_v2.h>
#include <cudnn.h>

#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "common/gpu/native.hpp"
#include "resnet/gpu/cudnn.hpp"
#include "resnet/gpu/unit_kernels.hpp"
#include "resnet/units.hpp"

namespace shakedown::gpu {

void check_cublas(cublasStatus_t status, const char* expression, const char* file, int line);
#define CHECK_CUBLAS(expression) \
  ::shakedown::gpu::check_cublas((expression), #expression, __FILE__, __LINE__)

struct DnnHandle {
  cudnnHandle_t get = nullptr;
  explicit DnnHandle(cudaStream_t stream);
  ~DnnHandle() { cudnnDestroy(get); }
  DnnHandle(const DnnHandle&) = delete;
  DnnHandle& operator=(const DnnHandle&) = delete;
};

struct BlasHandle {
  cublasHandle_t get = nullptr;
  BlasHandle(Device& device, cudaStream_t stream);
  ~BlasHandle() { cublasDestroy(get); }
  BlasHandle(const BlasHandle&) = delete;
  BlasHandle& operator=(const BlasHandle&) = delete;

 private:
  Buffer workspace_;
};

/// The algorithms that can serve a convolution, and which one does.
struct ConvChoice {
  std::vector<std::shared_ptr<const ConvPlan>> candidates;
  std::optional<std::size_t> chosen;  // none before it was timed
};

struct Shared {
  explicit Shared(const UnitContext& context)
      : context(context),
        type(compute_type(context.precision)),
        stream(native(context.stream)),
        dnn(stream),
        blas(context.device, stream) {}

  /// One for all units that convolve alike.
  ConvChoice& choice(ConvKind kind, const ConvShape& conv);

  UnitContext context;
  DataType type;
  cudaStream_t stream;
  DnnHandle dnn;
  BlasHandle blas;

 private:
  using Key = std::tuple<ConvKind, int, int, int, int, int, int, int, int>;
  std::map<Key, ConvChoice> choices_;
};

/// One direction of one convolution.
class Convolution {
 public:
  Convolution(Shared& shared, ConvKind kind, const ConvShape& conv);

  /// Enough for every candidate.
  std::size_t workspace_bytes() const;
  /// Times the candidates, unless autotune is off or an equal convolution was timed: overwrites
  /// the buffers.
  void bind(const ConvBuffers& buffers, void* workspace);
  void run() const;

 private:
  void tune(const ConvBuffers& buffers, void* workspace);

  Shared& shared_;
  ConvKind kind_;
  ConvShape conv_;
  ConvChoice& choice_;
  std::optional<BoundPlan> bound_;
};

/// z = conv(x) and the vectors that normalise z; backward from dz. What is done with z in between
/// is the unit's.
class NormedConvolution {
 public:
  /// `dx` may be null: the gradient of x is not needed. `dz` is where backward finds z's gradient.
  NormedConvolution(Shared& shared, const NormedConv& layer, Moments when, const Slot* x,
                    const Slot* dz, const Slot* dx);

  void bind();
  void forward(Pass pass);
  void backward();

  const void* z() const { return z_->data(); }
  NormVectors vectors() const { return NormVectors::in(vectors_->as<float>(), layer_.conv.k); }
  NormParameters parameters() const;
  ActivationShape shape() const { return layer_.conv.y(); }

 private:
  Shared& shared_;
  NormedConv layer_;
  const Slot* x_;
  const Slot* dz_;
  const Slot* dx_;
  const Slot* z_;
  const Slot* vectors_;
  const Slot* sums_;
  const Slot* workspace_;
  const Slot* backward_workspace_;
  Convolution forward_;
  std::optional<Convolution> backward_data_;
  Convolution backward_weights_;
};

std::unique_ptr<Unit> make_stem(Shared& shared, const StemSpec& spec);
std::unique_ptr<Unit> make_conv_norm(Shared& shared, const ConvNormSpec& spec);
std::unique_ptr<Unit> make_conv_norm_add(Shared& shared, const ConvNormAddSpec& spec);
std::unique_ptr<Unit> make_head(Shared& shared, const HeadSpec& spec);

}  // namespace shakedown::gpu

// Kernels run alone: each with its reference, its time, and the time of what it replaces
// (tests/kernels).
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/device.hpp"
#include "resnet/gpu/convolution.hpp"
#include "resnet/gpu/handles.hpp"
#include "resnet/gpu/unit_kernels.hpp"

namespace shakedown::timing {

using namespace shakedown::gpu;

using Call = std::function<void()>;  // enqueues
using Values = std::vector<double>;

/// One way to compute something; nothing where this GPU, or a library, does not have it.
struct Way {
  std::string name;
  Call run;
};

/// A kernel at a shape.
struct Bench {
  std::string shape;
  double bytes = 0;  // that it moves at least
  double flop = 0;
  std::vector<Way> ways;  // its own, what it replaces, others
  /// Of each some elements, or sums: after a run of the first way as after one of the second.
  std::function<std::vector<Values>()> outputs;
  double roundings = 8;  // of the element type: the largest error
};

class Lab;

struct Kernel {
  std::string name;
  std::string what;
  std::vector<std::function<Bench(Lab&)>> shapes;
};
std::vector<Kernel> all_kernels();

/// A GPU with libraries' handles and memory of random numbers, which lasts until clear().
class Lab {
 public:
  static constexpr int kTurns = 9;
  static constexpr int kCalls = 5;  // of a turn, back to back

  Lab(Device& on_device, Precision of, int images);

  Launch on(const ActivationShape& shape) const { return {shape, type, cuda_stream}; }
  double bytes(const ActivationShape& shape) const {
    return static_cast<double>(shape.count() * size_of(type));
  }

  /// Uniform in [-1, 1), unlike those of other buffers.
  void* random(std::size_t count, DataType of);
  void* tensor(const ActivationShape& shape) { return random(shape.count(), type); }
  float* floats(std::size_t count) { return static_cast<float*>(random(count, DataType::float32)); }
  std::uint8_t* octets(std::size_t count) {
    return static_cast<std::uint8_t*>(random(count / 2, DataType::float16));
  }
  NormVectors norm(int channels) {
    return NormVectors::in(floats(NormVectors::kCount * static_cast<std::size_t>(channels)),
                           channels);
  }
  NormParameters parameters(int channels) {
    const auto n = static_cast<std::size_t>(channels);
    return {floats(n), floats(n), floats(n), floats(n), floats(n), floats(n)};
  }
  void clear() { memory_.clear(); }

  /// The fastest of cuDNN's algorithms, bound.
  Call convolution(ConvKind kind, const ConvShape& conv, const ConvBuffers& buffers);
  /// left' right in parts (PartedProduct), the fastest of cublasLt's.
  Call product(const PartedProduct::Shape& shape, const void* left, const void* right, float* to);

  /// `take` elements, then those `every` further on, and so on.
  Values sample(const void* from, DataType of, std::size_t count, std::size_t every,
                std::size_t take) const;
  Values floats_at(const float* from, std::size_t count) const {
    return sample(from, DataType::float32, count, count, count);
  }
  /// About 500 rows of a tensor.
  Values rows(const void* from, const ActivationShape& shape) const;
  /// The first eight channels of partial sums: of each of `sums` of `width` channels.
  Values totals(const float* partials, int count, int sums, int width);

  /// Microseconds of one call of each way: kTurns times, interleaved.
  std::vector<std::vector<double>> times_us(const std::vector<Way>& ways);

  Device& device;
  int batch;
  Precision precision;
  DataType type;
  std::unique_ptr<Stream> stream;
  cudaStream_t cuda_stream;
  DnnHandle dnn;
  BlasHandle blas;

 private:
  double time_us(const Call& run);
  Call fastest(const std::vector<Call>& calls);

  std::unique_ptr<Event> start_, end_;
  Buffer workspace_;
  std::deque<Buffer> memory_;
  std::size_t buffers_ = 0;  // so far
};

inline std::size_t rows_of(const ActivationShape& shape) {
  return shape.count() / static_cast<std::size_t>(shape.c);
}
std::string text_of(const ActivationShape& shape);
/// Nothing where one of them is.
Call in_order(const std::vector<Call>& calls);

}  // namespace shakedown::timing

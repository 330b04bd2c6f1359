// The ResNets of torchvision (v1.5: a bottleneck's stride is in its 3x3): which convolutions there
// are, and every parameter with its name, shape and place in the flat buffers.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/device.hpp"
#include "common/host_device.hpp"
#include "common/types.hpp"

namespace shakedown {

// Shapes of activations and convolutions. Counts are elements, whatever layout a backend gives
// them.

struct ActivationShape {
  int n = 0;
  int c = 0;
  int h = 0;
  int w = 0;

  std::size_t count() const {
    return static_cast<std::size_t>(n) * static_cast<std::size_t>(c) * static_cast<std::size_t>(h) *
           static_cast<std::size_t>(w);
  }
  bool operator==(const ActivationShape&) const = default;
};

/// A square convolution without bias: x is N C H W, w is K C R S with R = S = kernel.
struct ConvShape {
  ActivationShape x;
  int k = 0;
  int kernel = 1;
  int stride = 1;
  int pad = 0;

  int out(int in) const { return (in + 2 * pad - kernel) / stride + 1; }
  ActivationShape y() const { return {x.n, k, out(x.h), out(x.w)}; }
  std::size_t weight_count() const {
    return static_cast<std::size_t>(k) * static_cast<std::size_t>(x.c) *
           static_cast<std::size_t>(kernel) * static_cast<std::size_t>(kernel);
  }
  /// FLOP of the forward pass, a multiply and an add counted as two. Each of the backward pass's
  /// two convolutions (data gradient, weight gradient) has the same number.
  double flop() const { return 2.0 * static_cast<double>(y().count()) * x.c * kernel * kernel; }
  bool operator==(const ConvShape&) const = default;
};

/// Every stride-th row and column, from the first on.
inline ActivationShape strided(const ActivationShape& x, int stride) {
  return {x.n, x.c, (x.h - 1) / stride + 1, (x.w - 1) / stride + 1};
}

/// The stem's max-pooling: 3x3, stride 2, padding 1.
inline ActivationShape pooled(const ActivationShape& x) {
  return {x.n, x.c, (x.h - 1) / 2 + 1, (x.w - 1) / 2 + 1};
}

/// Division by a number known before a kernel runs: a product and a shift (Granlund and Montgomery
/// 1994). Exact for numerators below 2^31 and divisors up to 2^31.
struct Divisor {
  std::uint32_t value;
  std::uint32_t factor;
  std::uint32_t shift;

  explicit Divisor(std::uint32_t divisor)
      : value(divisor), shift(static_cast<std::uint32_t>(std::bit_width(divisor - 1))) {
    const std::uint64_t excess = (std::uint64_t{1} << shift) - divisor;
    factor = static_cast<std::uint32_t>((excess << 32) / divisor + 1);
  }
  SHAKEDOWN_HOST_DEVICE std::uint32_t quotient(std::uint32_t n) const {
    const auto high = static_cast<std::uint32_t>((std::uint64_t{factor} * n) >> 32);
    return (high + n) >> shift;
  }
};

/// Maps the pixels of a tensor, numbered as they lie in memory (N, H, W), to those of its even rows
/// and columns.
struct EvenPixels {
  static constexpr std::uint32_t kNone = ~0U;
  Divisor width;
  Divisor height;
  std::uint32_t even_width;
  std::uint32_t even_height;

  /// `shape` is the whole tensor's.
  explicit EvenPixels(const ActivationShape& shape)
      : width(static_cast<std::uint32_t>(shape.w)),
        height(static_cast<std::uint32_t>(shape.h)),
        even_width(static_cast<std::uint32_t>(strided(shape, 2).w)),
        even_height(static_cast<std::uint32_t>(strided(shape, 2).h)) {}

  /// kNone where the row or the column is odd.
  SHAKEDOWN_HOST_DEVICE std::uint32_t of(std::uint32_t pixel) const {
    const std::uint32_t line = width.quotient(pixel);
    const std::uint32_t image = height.quotient(line);
    const std::uint32_t x = pixel - line * width.value;
    const std::uint32_t y = line - image * height.value;
    if (((x | y) & 1U) != 0) return kNone;
    return (image * even_height + y / 2) * even_width + x / 2;
  }
};

struct Architecture {
  std::string name;
  bool bottleneck = false;
  std::array<int, 4> blocks{};  // residual blocks in each stage
  bool for_tests = false;       // known by name, but listed nowhere
};

/// The one list of them. The last is `tiny`, for tests of what does not depend on the network: a
/// thirty-fifth of resnet18's parameters.
const std::vector<Architecture>& architectures();
/// Throws UsageError listing the known names.
const Architecture& find_architecture(const std::string& name);

/// One convolution and the batch normalisation after it, with torchvision's names.
struct ConvLayer {
  std::string conv;  // "layer1.0.conv1"
  std::string norm;  // "layer1.0.bn1"
  int c = 0;
  int k = 0;
  int kernel = 1;
  int stride = 1;
  /// Over this input, of c channels or more.
  ConvShape on(const ActivationShape& x) const { return {x, k, kernel, stride, kernel / 2}; }
};

struct ResidualBlock {
  std::string name;  // "layer1.0"
  std::vector<ConvLayer> path;
  std::optional<ConvLayer> shortcut;  // absent: the identity
};

/// The network's layers between the image and the classifier.
struct Layers {
  ConvLayer stem;
  std::vector<ResidualBlock> blocks;
  int features = 0;  // channels into the classifier
};
Layers layers_of(const Architecture& architecture);
/// "stem", "layer1.0", ..., "head": by the index that Parameter::block is.
std::vector<std::string> block_names(const Architecture& architecture);

enum class ParameterKind { conv_weight, norm_weight, norm_bias, linear_weight, linear_bias };

struct Parameter {
  std::string name;                 // "layer1.0.conv1.weight"
  std::vector<std::int64_t> shape;  // torchvision's: K C R S, classes x features, or one dimension
  ParameterKind kind = ParameterKind::conv_weight;
  int block = 0;           // 0 the stem, 1.. the residual blocks, last the head
  std::size_t count = 0;   // elements
  std::size_t offset = 0;  // where it starts in the flat buffers, in elements
  std::size_t stored = 0;  // elements it takes there: more than count where padded with zeros
};

/// A batch normalisation's running mean and variance, `channels` elements each.
struct RunningStatistics {
  std::string name;  // "layer1.0.bn1"
  std::size_t channels = 0;
  std::size_t offset = 0;  // of the mean in the statistics buffer; the variance follows it
};

/// Elements [begin, end) of the flat buffers.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t count() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// Every parameter, in torchvision's order, and the layout of the flat buffers: parameters lie in
/// the reverse of that order, which is the order in which backward finishes them. Each starts at a
/// multiple of kFlatAlignment elements; what lies between is zero and stays so.
class ParameterTable {
 public:
  /// `stem_channels` is 3, or more where the backend pads the image's channels with zeros.
  ParameterTable(const Layers& layers, int classes, int stem_channels);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<RunningStatistics>& statistics() const { return statistics_; }

  /// Index by torchvision's name; throws InternalError when there is none.
  int parameter(const std::string& name) const;
  int statistic(const std::string& name) const;

  int blocks() const { return static_cast<int>(block_ranges_.size()); }
  Range block_range(int block) const { return block_ranges_.at(static_cast<std::size_t>(block)); }

  std::size_t payload_count() const { return payload_; }  // elements without padding
  std::size_t stored_count() const { return stored_; }    // elements of a flat buffer
  std::size_t statistics_count() const { return statistics_stored_; }
  /// The padding in a block's range: elements of no parameter, zero.
  std::vector<Range> gaps(int block) const;
  /// Payload elements within a range that starts and ends at parameters.
  std::size_t payload_in(Range range) const;

 private:
  void add(std::string name, std::vector<std::int64_t> shape, ParameterKind kind, int block,
           std::size_t stored = 0);
  void add_conv_norm(const ConvLayer& layer, int block, int stored_channels = 0);

  std::vector<Parameter> parameters_;
  std::vector<RunningStatistics> statistics_;
  std::vector<Range> block_ranges_;
  std::size_t payload_ = 0;
  std::size_t stored_ = 0;
  std::size_t statistics_stored_ = 0;
};

// The precision a network computes in.

/// fp32: float32 throughout. tf32: float32 memory, tensor cores on inputs rounded to 10 bits.
/// fp16, bf16: activations, weights and gradients in 16 bits, sums and master weights in float32.
enum class Precision { fp32, tf32, fp16, bf16 };

const char* name_of(Precision precision);
/// "auto" is tf32 on gpu. The cpu backend computes every precision in fp32.
Precision parse_precision(const std::string& name, BackendKind backend);
/// "--precision fp16: computed in fp32, as the cpu backend does"; "" where the requested precisions
/// are those that are computed.
std::string precision_remark(const std::string& option, const std::vector<std::string>& requested,
                             BackendKind backend);
/// The type of activations, compute weights and gradients.
DataType compute_type(Precision precision);
/// Only float16's range needs the loss scaled.
inline bool scales_loss(Precision precision) { return precision == Precision::fp16; }

}  // namespace shakedown

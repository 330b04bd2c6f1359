// The ResNets of torchvision (v1.5: a bottleneck's stride is in its 3x3): which convolutions there
// are, and every parameter with its name, shape and place in the flat buffers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shakedown {

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
  int pad() const { return kernel / 2; }
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

}  // namespace shakedown

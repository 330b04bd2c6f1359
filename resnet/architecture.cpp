#include "resnet/architecture.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "common/error.hpp"
#include "common/kernels.hpp"

namespace shakedown {

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> table{
      {"resnet18", false, {2, 2, 2, 2}},  {"resnet34", false, {3, 4, 6, 3}},
      {"resnet50", true, {3, 4, 6, 3}},   {"resnet101", true, {3, 4, 23, 3}},
      {"resnet152", true, {3, 8, 36, 3}}, {"tiny", false, {1, 1, 0, 0}, true}};
  return table;
}

const Architecture& find_architecture(const std::string& name) {
  std::vector<std::string> listed;
  for (const Architecture& architecture : architectures()) {
    if (architecture.name == name) return architecture;
    if (!architecture.for_tests) listed.push_back(architecture.name);
  }
  throw UsageError(fmt::format("--model {}: must be one of {}", name, fmt::join(listed, ", ")));
}

Layers layers_of(const Architecture& architecture) {
  constexpr std::array kWidths{64, 128, 256, 512};
  const int expansion = architecture.bottleneck ? 4 : 1;
  Layers layers;
  layers.stem = {"conv1", "bn1", 3, 64, 7, 2};
  int channels = 64;
  for (std::size_t stage = 0; stage < kWidths.size(); ++stage) {
    const int width = kWidths[stage];
    for (int b = 0; b < architecture.blocks[stage]; ++b) {
      ResidualBlock block;
      block.name = fmt::format("layer{}.{}", stage + 1, b);
      const int stride = stage > 0 && b == 0 ? 2 : 1;
      auto conv = [&](int index, int c, int k, int kernel, int conv_stride) {
        block.path.push_back({fmt::format("{}.conv{}", block.name, index),
                              fmt::format("{}.bn{}", block.name, index), c, k, kernel,
                              conv_stride});
      };
      if (architecture.bottleneck) {
        conv(1, channels, width, 1, 1);
        conv(2, width, width, 3, stride);
        conv(3, width, width * expansion, 1, 1);
      } else {
        conv(1, channels, width, 3, stride);
        conv(2, width, width, 3, 1);
      }
      if (stride != 1 || channels != width * expansion)
        block.shortcut = {block.name + ".downsample.0",
                          block.name + ".downsample.1",
                          channels,
                          width * expansion,
                          1,
                          stride};
      channels = width * expansion;
      layers.blocks.push_back(std::move(block));
    }
  }
  layers.features = channels;
  return layers;
}

std::vector<std::string> block_names(const Architecture& architecture) {
  std::vector<std::string> names{"stem"};
  for (const ResidualBlock& block : layers_of(architecture).blocks) names.push_back(block.name);
  names.emplace_back("head");
  return names;
}

void ParameterTable::add(std::string name, std::vector<std::int64_t> shape, ParameterKind kind,
                         int block, std::size_t stored) {
  Parameter p;
  p.name = std::move(name);
  p.count = static_cast<std::size_t>(
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
  p.shape = std::move(shape);
  p.kind = kind;
  p.block = block;
  p.stored = stored > 0 ? stored : p.count;
  parameters_.push_back(std::move(p));
}

void ParameterTable::add_conv_norm(const ConvLayer& layer, int block, int stored_channels) {
  const std::size_t stored = static_cast<std::size_t>(layer.k) *
                             static_cast<std::size_t>(stored_channels) *
                             static_cast<std::size_t>(layer.kernel * layer.kernel);
  add(layer.conv + ".weight", {layer.k, layer.c, layer.kernel, layer.kernel},
      ParameterKind::conv_weight, block, stored);
  add(layer.norm + ".weight", {layer.k}, ParameterKind::norm_weight, block);
  add(layer.norm + ".bias", {layer.k}, ParameterKind::norm_bias, block);
  const auto channels = static_cast<std::size_t>(layer.k);
  statistics_.push_back({layer.norm, channels, statistics_stored_});
  statistics_stored_ += 2 * channels;
}

ParameterTable::ParameterTable(const Layers& layers, int classes, int stem_channels) {
  add_conv_norm(layers.stem, 0, stem_channels);
  int block = 1;
  for (const ResidualBlock& residual : layers.blocks) {
    for (const ConvLayer& layer : residual.path) add_conv_norm(layer, block);
    if (residual.shortcut) add_conv_norm(*residual.shortcut, block);
    ++block;
  }
  add("fc.weight", {classes, layers.features}, ParameterKind::linear_weight, block);
  add("fc.bias", {classes}, ParameterKind::linear_bias, block);

  block_ranges_.resize(static_cast<std::size_t>(block) + 1);
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    Parameter& p = parameters_[i];
    p.offset = stored_;
    stored_ += (p.stored + kFlatAlignment - 1) / kFlatAlignment * kFlatAlignment;
    payload_ += p.count;
    Range& range = block_ranges_[static_cast<std::size_t>(p.block)];
    if (range.end == 0) range.begin = p.offset;
    range.end = stored_;
  }
}

namespace {

template <class Named>
int index_of(const std::vector<Named>& all, const std::string& name) {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Named& of) { return of.name == name; });
  if (found == all.end()) throw InternalError("no parameter or running statistics " + name);
  return static_cast<int>(found - all.begin());
}

}  // namespace

int ParameterTable::parameter(const std::string& name) const { return index_of(parameters_, name); }
int ParameterTable::statistic(const std::string& name) const { return index_of(statistics_, name); }

std::vector<Range> ParameterTable::gaps(int block) const {
  std::vector<Range> gaps;
  std::size_t end = block_range(block).end;
  for (const Parameter& p : parameters_) {  // from the end of the range to its begin
    if (p.block != block) continue;
    if (p.offset + p.stored < end) gaps.push_back({p.offset + p.stored, end});
    end = p.offset;
  }
  return gaps;
}

std::size_t ParameterTable::payload_in(Range range) const {
  std::size_t count = 0;
  for (const Parameter& p : parameters_)
    if (p.offset >= range.begin && p.offset < range.end) count += p.count;
  return count;
}

const char* name_of(Precision precision) {
  switch (precision) {
    case Precision::fp32: return "fp32";
    case Precision::tf32: return "tf32";
    case Precision::fp16: return "fp16";
    case Precision::bf16: return "bf16";
  }
  throw InternalError("unknown precision");
}

Precision parse_precision(const std::string& name, BackendKind backend) {
  Precision precision = Precision::tf32;  // of auto
  if (name != "auto") {
    const auto all = {Precision::fp32, Precision::tf32, Precision::fp16, Precision::bf16};
    const auto* const found =
        std::find_if(all.begin(), all.end(), [&](Precision p) { return name == name_of(p); });
    if (found == all.end())
      throw UsageError("--precision " + name + ": must be one of fp32, tf32, fp16, bf16");
    precision = *found;
  }
  return backend == BackendKind::cpu ? Precision::fp32 : precision;
}

std::string precision_remark(const std::string& option, const std::vector<std::string>& requested,
                             BackendKind backend) {
  const auto is_computed = [&](const std::string& name) {
    return name == "auto" || name == name_of(parse_precision(name, backend));
  };
  if (std::all_of(requested.begin(), requested.end(), is_computed)) return "";
  return fmt::format("{} {}: computed in fp32, as the cpu backend does", option,
                     fmt::join(requested, ","));
}

DataType compute_type(Precision precision) {
  switch (precision) {
    case Precision::fp16: return DataType::float16;
    case Precision::bf16: return DataType::bfloat16;
    default: return DataType::float32;
  }
}

}  // namespace shakedown

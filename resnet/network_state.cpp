// A network's weights: seeded, from tensors, to tensors.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "common/hash.hpp"
#include "common/kernels.hpp"
#include "common/text_table.hpp"
#include "common/usage_error.hpp"
#include "resnet/network.hpp"

namespace shakedown {
namespace {

std::span<float> stored_part(std::vector<float>& flat, const Parameter& p) {
  return std::span(flat).subspan(p.offset, p.stored);
}

std::string text_of(const std::vector<std::int64_t>& shape) {
  return fmt::format("{}", fmt::join(shape, "x"));
}

/// torchvision's: convolutions He normal by fan-out (He et al. 2015), norms 1 and 0, the classifier
/// nn.Linear's uniform +-1/sqrt(features).
std::vector<float> initial_values(const Parameter& p, int features, Random random) {
  std::vector<float> values(p.count);
  switch (p.kind) {
    case ParameterKind::conv_weight: {
      const double fan_out = static_cast<double>(p.shape[0] * p.shape[2] * p.shape[3]);
      const double deviation = std::sqrt(2 / fan_out);
      for (float& v : values) v = static_cast<float>(deviation * random.normal());
      break;
    }
    case ParameterKind::norm_weight: std::fill(values.begin(), values.end(), 1.0F); break;
    case ParameterKind::norm_bias: break;
    case ParameterKind::linear_weight:
    case ParameterKind::linear_bias: {
      const double bound = 1 / std::sqrt(features);
      for (float& v : values) v = static_cast<float>(bound * (2 * random.uniform() - 1));
      break;
    }
  }
  return values;
}

/// Without the prefixes that DistributedDataParallel and torch.compile add.
std::string plain_name(std::string name) {
  for (const std::string prefix : {"module.", "_orig_mod."})
    if (name.starts_with(prefix)) return plain_name(name.substr(prefix.size()));
  return name;
}

/// Of num_batches_tracked, from any number, as load_state_dict takes it. 0, as of a file without
/// one, where it is no count: a float16 overflows at 65520.
std::int64_t count_in(const Tensor* tracked, const std::string& file) {
  if (tracked == nullptr) return 0;
  if (tracked->values.size() + tracked->integers.size() != 1)
    throw UsageError(fmt::format("{}: tensor {} is not one number", file, tracked->name));
  if (tracked->is_integer()) return std::max<std::int64_t>(0, tracked->integers[0]);
  const float count = tracked->values[0];
  return count >= 0 && count < 0x1p63F ? static_cast<std::int64_t>(count) : 0;
}

/// A file's tensors by name, and which of them were requested.
class NamedTensors {
 public:
  NamedTensors(const std::vector<Tensor>& tensors, std::string file, std::string network)
      : file_(std::move(file)), network_(std::move(network)) {
    for (const Tensor& tensor : tensors)
      if (!rest_.emplace(plain_name(tensor.name), &tensor).second)
        throw UsageError(fmt::format("{}: tensor {} is there twice, with and without a prefix",
                                     file_, quoted(plain_name(tensor.name))));
  }

  bool has(const std::string& name) const { return rest_.contains(name); }

  /// Null where there is none.
  const Tensor* find(const std::string& name) {
    const auto found = rest_.find(name);
    if (found == rest_.end()) return nullptr;
    const Tensor* tensor = found->second;
    rest_.erase(found);
    return tensor;
  }

  const Tensor& floating_point(const std::string& name) {
    const Tensor* tensor = find(name);
    if (tensor == nullptr)
      throw UsageError(fmt::format("{}: no tensor {}, which {} has", file_, name, network_));
    if (!tensor->unread.empty())
      throw UsageError(fmt::format("{}: tensor {} is of dtype {}, which is not supported", file_,
                                   name, quoted(tensor->unread)));
    if (tensor->is_integer())
      throw UsageError(fmt::format("{}: tensor {} holds integers, {} needs floating-point numbers",
                                   file_, name, network_));
    return *tensor;
  }

  /// Names the tensors that were never requested; empty if there are none.
  std::string ignored() const {
    constexpr std::size_t kNamed = 3;
    std::vector<std::string> names;
    for (const auto& [name, tensor] : rest_)
      if (name.rfind(kTrainingState, 0) != 0) names.push_back(quoted(tensor->name));
    if (names.empty()) return "";
    const std::size_t count = names.size();
    names.resize(std::min(count, kNamed));
    return fmt::format("{}: {} that {} does not have, ignored: {}{}", file_,
                       counted(static_cast<long>(count), "tensor"), network_,
                       fmt::join(names, ", "), count > kNamed ? ", ..." : "");
  }

 private:
  std::string file_;
  std::string network_;
  std::map<std::string, const Tensor*> rest_;
};

}  // namespace

void Network::set_weights(const std::vector<float>& master) {
  for (const PlacedRange& placed : weights_.layout().master) {
    const View part = weights_.master(placed.range);
    upload<float>(device_, stream_, part.data,
                  std::span(master).subspan(placed.range.begin, part.count));
    if (const View copy = weights_.copy_of(placed.range); copy.count > 0)
      device_.kernels().convert(part, copy, stream_);
  }
  stream_.synchronize();
}

std::vector<float> Network::seeded(std::uint64_t seed) const {
  const auto& parameters = table_.parameters();
  std::vector<std::vector<float>> values(parameters.size());
#pragma omp parallel for schedule(dynamic)
  for (std::size_t i = 0; i < parameters.size(); ++i)
    values[i] = initial_values(parameters[i], layers_.features, Random(derive_seed(seed, i)));
  std::vector<float> master(table_.stored_count(), 0.0F);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    units_->pack_parameter(parameters[i], values[i], stored_part(master, parameters[i]));
  return master;
}

void Network::reset_statistics() {
  std::vector<float> statistics(table_.statistics_count(), 0.0F);
  for (const RunningStatistics& s : table_.statistics())
    std::fill_n(statistics.begin() + static_cast<std::ptrdiff_t>(s.offset + s.channels), s.channels,
                1.0F);
  upload<float>(device_, stream_, weights_.statistics().data, statistics);
  batches_tracked_ = 0;
}

LoadRemarks Network::take(const std::vector<Tensor>& tensors, const std::string& file,
                          std::vector<float>& master) {
  NamedTensors named(tensors, file, settings_.architecture.name);
  LoadRemarks remarks;
  const bool has_classifier = named.has("fc.weight") || named.has("fc.bias");
  if (!has_classifier) remarks.seeded = fmt::format("{}: it has no classifier, fc: seeded", file);
  for (const Parameter& p : table_.parameters()) {
    const bool is_classifier = p.name.starts_with("fc.");
    if (is_classifier && !has_classifier) continue;
    const Tensor& tensor = named.floating_point(p.name);
    if (tensor.shape == p.shape) {
      units_->pack_parameter(p, tensor.values, stored_part(master, p));
    } else if (is_classifier && tensor.shape.size() == p.shape.size() &&
               tensor.shape.back() == (p.shape.size() == 2 ? p.shape.back() : tensor.shape[0])) {
      remarks.seeded =
          fmt::format("{}: its classifier is for {} classes, this network's for {}: seeded", file,
                      tensor.shape[0], p.shape[0]);
    } else {
      throw UsageError(fmt::format("{}: tensor {} has shape {}, {} needs {}", file, p.name,
                                   text_of(tensor.shape), settings_.architecture.name,
                                   text_of(p.shape)));
    }
  }

  std::vector<float> statistics(table_.statistics_count());
  for (const RunningStatistics& s : table_.statistics()) {
    const Tensor& mean = named.floating_point(s.name + ".running_mean");
    const Tensor& variance = named.floating_point(s.name + ".running_var");
    for (const Tensor* tensor : {&mean, &variance})
      if (tensor->values.size() != s.channels)
        throw UsageError(fmt::format("{}: tensor {} has {} elements, not {}", file, tensor->name,
                                     tensor->values.size(), s.channels));
    const Tensor* tracked = named.find(s.name + ".num_batches_tracked");
    const std::int64_t count = count_in(tracked, file);
    if (&s == &table_.statistics().front()) batches_tracked_ = count;
    const auto to = statistics.begin() + static_cast<std::ptrdiff_t>(s.offset);
    std::copy(mean.values.begin(), mean.values.end(), to);
    std::copy(variance.values.begin(), variance.values.end(),
              to + static_cast<std::ptrdiff_t>(s.channels));
  }
  upload<float>(device_, stream_, weights_.statistics().data, statistics);
  remarks.ignored = named.ignored();
  return remarks;
}

std::vector<Tensor> Network::state(const std::vector<float>& master) const {
  std::vector<Tensor> tensors = unpacked(master, "");
  const auto statistics =
      download<float>(device_, stream_, weights_.statistics().data, table_.statistics_count());
  for (Tensor& tensor : statistics_tensors(statistics, batches_tracked_))
    tensors.push_back(std::move(tensor));
  return tensors;
}

std::vector<Tensor> Network::unpacked(std::span<const float> flat,
                                      const std::string& prefix) const {
  std::vector<Tensor> tensors;
  for (const Parameter& p : table_.parameters()) {
    Tensor tensor{prefix + p.name, p.shape, std::vector<float>(p.count)};
    units_->unpack_parameter(p, flat.subspan(p.offset, p.stored), tensor.values);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<float> Network::packed(const std::vector<Tensor>& tensors, const std::string& prefix,
                                   const std::string& file) const {
  NamedTensors named(tensors, file, settings_.architecture.name);
  std::vector<float> flat(table_.stored_count(), 0.0F);
  for (const Parameter& p : table_.parameters()) {
    const Tensor& tensor = named.floating_point(prefix + p.name);
    if (tensor.shape != p.shape)
      throw UsageError(fmt::format("{}: tensor {} has shape {}, {} needs {}", file, tensor.name,
                                   text_of(tensor.shape), settings_.architecture.name,
                                   text_of(p.shape)));
    units_->pack_parameter(p, tensor.values, stored_part(flat, p));
  }
  return flat;
}

std::vector<Tensor> Network::statistics_tensors(std::span<const float> statistics,
                                                std::int64_t batches_tracked) const {
  std::vector<Tensor> tensors;
  for (const RunningStatistics& s : table_.statistics()) {
    const auto from = statistics.begin() + static_cast<std::ptrdiff_t>(s.offset);
    const auto channels = static_cast<std::ptrdiff_t>(s.channels);
    const std::vector<std::int64_t> shape{channels};
    tensors.push_back({s.name + ".running_mean", shape, {from, from + channels}});
    tensors.push_back({s.name + ".running_var", shape, {from + channels, from + 2 * channels}});
    tensors.push_back({s.name + ".num_batches_tracked", {}, {}, {batches_tracked}});
  }
  return tensors;
}

}  // namespace shakedown

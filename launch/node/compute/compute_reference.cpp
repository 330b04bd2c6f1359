#include "launch/node/compute/compute_reference.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "common/error.hpp"
#include "common/record.hpp"

namespace shakedown::node {
namespace {

std::string key_of(const std::string& model, const std::string& metric) {
  return model + "\n" + metric;
}

void add_number(std::vector<double>& numbers, const Json& value) {
  if (value.is_number()) numbers.push_back(value);
}

}  // namespace

ComputeReference::ComputeReference(const std::string& path, const std::string& text, int size,
                                   std::size_t bytes, double seconds) {
  std::istringstream in(text);
  bool any = false;
  for (std::string line; std::getline(in, line);) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object() || json.value("kind", "") != "compute") continue;
    any = true;
    const bool same_size =
        json.contains("size") ? json.at("size") == size : json.value("bytes", Json()) == bytes;
    const Json timed = json.value("seconds", Json());
    if (!same_size || timed != seconds || !json.value("correct", false) || json.contains("in_use"))
      continue;
    ReferenceFigures& figures = figures_[key_of(json.at("model"), json.at("test"))];
    for (const Json& sample : json.at("samples")) add_number(figures.rates, sample);
    add_number(figures.clocks_mhz, json.value("sm_clock_mhz", Json()));
    add_number(figures.temperatures_c, json.value("temperature_c", Json()));
  }
  if (!any) throw UsageError(fmt::format("--reference {}: holds no compute records", path));
}

ReferenceFigures ComputeReference::figures(const std::string& model,
                                           const std::string& metric) const {
  const auto found = figures_.find(key_of(model, metric));
  return found == figures_.end() ? ReferenceFigures{} : found->second;
}

}  // namespace shakedown::node

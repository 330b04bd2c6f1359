#include "common/judge/observation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "common/error.hpp"

namespace shakedown::judge {
namespace {

constexpr std::array<const char*, 3> kChecks{"verified", "unchecked", "wrong"};
constexpr std::array<const char*, 4> kTaken{"measured", "timed_out", "not_supported",
                                            "out_of_memory"};
constexpr const char* kCondition = "condition.";
constexpr const char* kVersion = "version.";

struct Reading {
  const char* key;
  double Circumstances::*value;
};
constexpr std::array<Reading, 4> kReadings{{{"clock_mhz", &Circumstances::clock_mhz},
                                            {"temperature_c", &Circumstances::temperature_c},
                                            {"power_w", &Circumstances::power_w},
                                            {"power_limit_w", &Circumstances::power_limit_w}}};

[[noreturn]] void refuse(const Json& line, const char* key, const char* allowed) {
  throw UsageError(fmt::format("metric line of {}: {}: {} is allowed",
                               line.contains("metric") ? json_text(line["metric"]) : "no metric",
                               key, allowed));
}

std::string text(const Json& line, const char* key, bool needed = false) {
  const auto found = line.find(key);
  if (found == line.end() && !needed) return "";
  if (found == line.end() || !found->is_string()) refuse(line, key, "a text");
  return found->get<std::string>();
}

double number(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>() : kUnknown;
}

template <class T>
std::vector<T> list(const Json& line, const char* key, const char* allowed) {
  const auto found = line.find(key);
  if (found == line.end()) return {};
  try {
    return found->get<std::vector<T>>();
  } catch (const Json::exception&) {
    refuse(line, key, allowed);
  }
}

/// The position of a word in a list of names.
template <std::size_t N>
std::size_t place(const Json& line, const char* key, const std::array<const char*, N>& names) {
  const std::string word = text(line, key);
  if (word.empty()) return 0;
  const auto found = std::find(names.begin(), names.end(), word);
  if (found == names.end()) refuse(line, key, fmt::format("{}", fmt::join(names, ", ")).c_str());
  return static_cast<std::size_t>(found - names.begin());
}

std::map<std::string, std::string> with_prefix(const Json& line, const std::string& prefix) {
  std::map<std::string, std::string> found;
  for (const auto& [key, value] : line.items())
    if (key.starts_with(prefix))
      found[key.substr(prefix.size())] =
          value.is_string() ? value.get<std::string>() : json_text(value);
  return found;
}

}  // namespace

std::string Subject::key() const {
  if (!uuids.empty()) return fmt::format("{} {}", name_of(scope), fmt::join(uuids, " "));
  if (scope == Scope::rank || scope == Scope::link)
    return fmt::format("{} {} on {}", name_of(scope), name, fmt::join(hosts, " "));
  return fmt::format("{} {}", name_of(scope), name);
}

std::string Subject::text() const {
  const std::string host = hosts.empty() ? "" : hosts.front();
  switch (scope) {
    case Scope::gpu:
    case Scope::rank:
      return ranks.empty() ? name : fmt::format("rank {} on {}", ranks.front(), host);
    case Scope::link: {
      const bool apart = hosts.size() == 2 && hosts[0] != hosts[1];
      return fmt::format("{} on {}{}", name, host, apart ? " and " + hosts[1] : "");
    }
    default: return name;
  }
}

std::vector<std::string> distinct(const std::vector<std::string>& names) {
  std::vector<std::string> found;
  std::set<std::string_view> known;  // linear: a group may have thousands of ranks
  for (const std::string& name : names)
    if (known.insert(name).second) found.push_back(name);
  return found;
}

Json record_of(const Observation& o) {
  Json line{
      {"metric", o.metric}, {"unit", o.unit}, {"scope", name_of(o.of.scope)}, {"name", o.of.name}};
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) line[key] = value;
  };
  const auto add_list = [&](const char* key, const auto& values) {
    if (!values.empty()) line[key] = values;
  };
  add_list("ranks", o.of.ranks);
  add_list("hosts", o.of.hosts);
  add_list("uuids", o.of.uuids);
  add_list("serials", o.of.serials);
  add("backend", o.backend);
  add("board", o.board);
  add("pci_device_id", o.pci_device_id);
  add("compute_capability", o.compute_capability);
  add("path_class", o.path_class);
  for (const auto& [key, value] : o.conditions) line[kCondition + key] = value;
  for (const auto& [key, value] : o.versions) line[kVersion + key] = value;
  line["look"] = o.look;
  line["samples"] = o.samples;
  if (std::isfinite(o.peak)) line["peak"] = o.peak;
  for (const Reading& reading : kReadings)
    if (std::isfinite(o.seen.*reading.value)) line[reading.key] = o.seen.*reading.value;
  if (o.seen.reasons) line["reasons"] = *o.seen.reasons;
  line["check"] = kChecks[static_cast<std::size_t>(o.check)];
  line["outcome"] = kTaken[static_cast<std::size_t>(o.taken)];
  add("disturbed_by", o.disturbed_by);
  return line;
}

Observation observation_of(const Json& line) {
  Observation o;
  o.metric = text(line, "metric", true);
  o.unit = text(line, "unit", true);
  const std::optional<Scope> scope = named(kScopes, text(line, "scope", true));
  if (!scope) refuse(line, "scope", "gpu, rank, link, rail, node or group");
  o.of = {*scope,
          text(line, "name", true),
          list<int>(line, "ranks", "a list of ranks"),
          list<std::string>(line, "hosts", "a list of hosts"),
          list<std::string>(line, "uuids", "a list of UUIDs"),
          list<std::string>(line, "serials", "a list of serial numbers")};
  if (o.of.hosts.empty() || (o.of.scope == Scope::link && o.of.hosts.size() != o.of.ranks.size()))
    refuse(line, "hosts", "one per rank");
  o.backend = text(line, "backend");
  o.board = text(line, "board");
  o.pci_device_id = text(line, "pci_device_id");
  o.compute_capability = text(line, "compute_capability");
  o.path_class = text(line, "path_class");
  o.conditions = with_prefix(line, kCondition);
  o.versions = with_prefix(line, kVersion);
  o.look = line.contains("look") && line["look"].is_number_integer() ? line["look"].get<int>() : 1;
  const auto samples = line.find("samples");
  if (samples == line.end() || !samples->is_array()) refuse(line, "samples", "a list of numbers");
  for (const Json& sample : *samples)  // null: not finite
    o.samples.push_back(sample.is_number() ? sample.get<double>() : kUnknown);
  o.peak = number(line, "peak");
  for (const Reading& reading : kReadings) o.seen.*reading.value = number(line, reading.key);
  if (line.contains("reasons") && line["reasons"].is_number_unsigned())
    o.seen.reasons = line["reasons"].get<std::uint64_t>();
  o.check = static_cast<Check>(place(line, "check", kChecks));
  o.taken = static_cast<Taken>(place(line, "outcome", kTaken));
  o.disturbed_by = text(line, "disturbed_by");
  o.stage = text(line, "stage");
  return o;
}

}  // namespace shakedown::judge

#include "common/judge/observation.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "common/judge/strict_json.hpp"

namespace shakedown::judge {
namespace {

constexpr std::array<const char*, 3> kChecks{"verified", "unchecked", "wrong"};
constexpr std::array<const char*, 4> kTaken{"measured", "timed_out", "not_supported",
                                            "out_of_memory"};
constexpr const char* kCondition = "condition.";
constexpr const char* kVersion = "version.";

struct Word {
  const char* key;
  std::string Observation::*value;
};
constexpr std::array<Word, 5> kWords{{{"backend", &Observation::backend},
                                      {"board", &Observation::board},
                                      {"pci_device_id", &Observation::pci_device_id},
                                      {"compute_capability", &Observation::compute_capability},
                                      {"path_class", &Observation::path_class}}};
struct Reading {
  const char* key;
  double Circumstances::*value;
};
constexpr std::array<Reading, 4> kReadings{{{"clock_mhz", &Circumstances::clock_mhz},
                                            {"temperature_c", &Circumstances::temperature_c},
                                            {"power_w", &Circumstances::power_w},
                                            {"power_limit_w", &Circumstances::power_limit_w}}};

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
  for (const Word& word : kWords) add(word.key, o.*word.value);
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

void write_table(const std::vector<Observation>& observations, Record& record) {
  std::vector<Json> lines;
  for (const Observation& observation : observations) lines.push_back(record_of(observation));
  record.write_table("metric", lines, {"name", "ranks", "uuids", "serials", "samples"});
}

Observation observation_of(const Json& line) {
  StrictObject row(line, fmt::format("metric line of {}",
                                     line.contains("metric") ? json_text(line["metric"]) : "none"));
  Observation o;
  o.metric = row.text("metric", true);
  o.unit = row.text("unit", true);
  const std::optional<Scope> scope = named(kScopes, row.text("scope", true));
  if (!scope) row.refuse("scope: gpu, rank, link, rail, node or group is allowed");
  o.of = {*scope,
          row.text("name", true),
          row.ranks("ranks"),
          row.texts("hosts", true),
          row.texts("uuids"),
          row.texts("serials")};
  if (o.of.scope == Scope::link && o.of.hosts.size() != o.of.ranks.size())
    row.refuse("hosts: one per rank is allowed");
  for (const Word& word : kWords) o.*word.value = row.text(word.key);
  o.conditions = with_prefix(line, kCondition);
  o.versions = with_prefix(line, kVersion);
  o.look = static_cast<int>(row.number("look").value_or(1));
  for (const Json& sample : row.array("samples"))  // null: not finite
    o.samples.push_back(sample.is_number() ? sample.get<double>() : kUnknown);
  o.peak = row.number("peak").value_or(kUnknown);
  for (const Reading& reading : kReadings)
    o.seen.*reading.value = row.number(reading.key).value_or(kUnknown);
  if (line.contains("reasons") && line["reasons"].is_number_unsigned())
    o.seen.reasons = line["reasons"].get<std::uint64_t>();
  o.check = static_cast<Check>(row.choice("check", kChecks, true));
  o.taken = static_cast<Taken>(row.choice("outcome", kTaken, true));
  o.disturbed_by = row.text("disturbed_by");
  o.stage = row.text("stage");
  return o;
}

}  // namespace shakedown::judge

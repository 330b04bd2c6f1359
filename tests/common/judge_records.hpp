// What real GPUs measured, for tests of the judge: the metric lines of results/0.2.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "common/judge/judge.hpp"
#include "common/judge/series.hpp"

namespace shakedown::judge {

using Random = std::mt19937_64;
using Groups = std::map<std::string, std::vector<Observation>>;  // by metric, or by board

/// Metric lines by board, of runs without an injected fault: of each subject, metric and conditions
/// the first.
inline Groups metric_lines(const std::vector<std::filesystem::path>& files) {
  Groups boards;
  std::set<std::tuple<std::string, std::string, std::map<std::string, std::string>>> known;
  for (const auto& file : files) {
    std::ifstream in(file);
    bool faulty = false;
    for (std::string line; std::getline(in, line);) {
      if (line.starts_with(R"({"kind":"run")"))
        faulty = Json::parse(line).value("options.inject_fault", "") != "";
      if (faulty || !line.starts_with(R"({"kind":"metric")")) continue;
      Observation o = observation_of(Json::parse(line));
      if (o.backend == "gpu" && o.look == 1 && o.taken == Taken::measured &&
          o.disturbed_by.empty() && known.emplace(o.of.key(), o.metric, o.conditions).second)
        boards[o.board].push_back(std::move(o));
    }
  }
  return boards;
}

inline const Groups& recorded() {
  static const Groups boards = [] {
    std::vector<std::filesystem::path> files;
    for (const char* folder : {"results/0.2/h100", "results/0.2/h200"})
      for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
        if (entry.path().extension() == ".jsonl") files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    Groups all = metric_lines(files);
    if (all.empty()) throw std::runtime_error("no metric lines in results/0.2");
    return all;
  }();
  return boards;
}

/// Null where it fails nothing.
inline const Limit* failing_limit(const std::string& metric) {
  const Limit* limit = Limits::embedded().find(metric);
  return limit == nullptr || limit->warns || limit->rates.empty() ? nullptr : limit;
}

/// Peers: of each metric those under the conditions that most subjects have, of these the largest.
inline Groups by_metric(const std::vector<Observation>& all) {
  std::map<std::string, Groups> groups;
  for (const Observation& o : all) {
    const Limit* limit = failing_limit(o.metric);
    if (limit == nullptr || o.samples.size() < limit->samples) continue;
    std::string key = o.path_class;
    for (const auto& [name, value] : o.conditions)
      key += fmt::format(" {}={:>12}", name, value);  // numbers in their order
    groups[o.metric][key].push_back(o);
  }
  Groups chosen;
  for (const auto& [metric, of_metric] : groups)
    for (const auto& [key, group] : of_metric)
      if (group.size() >= chosen[metric].size()) chosen[metric] = group;
  return chosen;
}

inline Judgement judged(const std::vector<Observation>& observations,
                        const References& references = References::embedded()) {
  return judge::judge({observations, {}, {}}, references, Limits::embedded(), Boards::embedded(),
                      {"test", {}});
}

}  // namespace shakedown::judge

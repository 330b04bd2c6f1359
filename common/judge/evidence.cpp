#include "common/judge/judge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "common/judge/references.hpp"
#include "common/judge/series.hpp"
#include "common/statistics.hpp"
#include "common/usage_error.hpp"

namespace shakedown::judge {
namespace {

namespace fs = std::filesystem;
constexpr const char* kRuns = "runs.jsonl";

std::string text_at(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_string() ? found->get<std::string>() : "";
}

std::vector<std::string> texts(const Json& line, const char* key) {
  std::vector<std::string> found;
  if (line.contains(key) && line[key].is_array())
    for (const Json& each : line[key])
      found.push_back(each.is_string() ? each.get<std::string>() : "");
  return found;
}

Statement statement_of(const Json& line) {
  Statement said;
  said.verdict = {named(kScopes, text_at(line, "scope")).value_or(Scope::job),
                  text_at(line, "name"),
                  named(kOutcomes, text_at(line, "verdict")).value_or(Outcome::inconclusive),
                  text_at(line, "cause"),
                  named(kClasses, text_at(line, "class")),
                  text_at(line, "action")};
  said.verdict.check = text_at(line, "check");
  said.stage = text_at(line, "stage");
  said.nodes = texts(line, "nodes");
  said.accepted = line.value("accepted", Json()) == true;
  return said;
}

class Reader {
 public:
  explicit Reader(std::string stage) : stage_(std::move(stage)) {}

  void read(const std::string& path) {
    if (!fs::is_directory(path)) {
      record(path, fs::path(path).filename(), stage_, true);
    } else if (fs::exists(fs::path(path) / kRuns)) {
      acceptance(path);
    } else {
      std::vector<std::string> files;
      for (const auto& entry : fs::directory_iterator(path))
        if (entry.path().extension() == ".jsonl") files.push_back(entry.path());
      if (files.empty()) throw UsageError(path + ": a folder without records (.jsonl)");
      std::sort(files.begin(), files.end());
      for (const std::string& file : files) record(file, fs::path(file).filename(), stage_, true);
    }
  }

  Read take() { return std::move(read_); }

 private:
  void acceptance(const std::string& folder) {
    struct Part {
      std::string record, stage;
      std::vector<std::string> nodes;
    };
    std::vector<Part> parts;
    for_lines(fs::path(folder) / kRuns, {"node", "stage", "verdict"}, [&](const Json& line) {
      const std::string kind = text_at(line, "kind");
      if (kind == "node") {
        read_.evidence.nodes.push_back(text_at(line, "name"));
        for (const std::string& host : texts(line, "hosts")) node_of_[host] = text_at(line, "name");
      } else if (kind == "stage") {
        parts.push_back({text_at(line, "record"), text_at(line, "name"), texts(line, "nodes")});
      } else if (stage_.empty() || text_at(line, "stage") == stage_) {
        read_.evidence.statements.push_back(statement_of(line));
      }
    });
    if (!stage_.empty() && std::none_of(parts.begin(), parts.end(),
                                        [&](const Part& part) { return part.stage == stage_; }))
      throw UsageError(fmt::format("{}: {} has no stage of that name", stage_, folder));
    for (const Part& part : parts) {
      const std::string file = fs::path(folder) / part.record;
      if (part.record.empty() || !(stage_.empty() || part.stage == stage_)) continue;
      // Of one that is cut the acceptance's own statement says so.
      if (fs::exists(file))
        record(file, part.record, part.stage, false);
      else
        incomplete(part.record + ": the record is missing", part.nodes);
    }
  }

  /// Of a program; its lines have a run_id in common.
  struct Run {
    bool began = false, ended = false;
    std::vector<std::string> hosts;             // distinct
    std::map<std::string, std::string> places;  // UUIDs and ranks: hosts
    std::vector<Json> verdicts;
    int exit_code = 0;
  };

  void record(const std::string& file, const std::string& name, const std::string& stage,
              bool with_statements) {
    std::map<std::string, Run> runs;
    std::size_t cut = 0;
    for_lines(
        file, {"run", "metric", "verdict", "end"},
        [&](const Json& line) {
          const std::string kind = text_at(line, "kind");
          Run& run = runs[text_at(line, "run_id")];
          if (kind == "metric") {
            metric(line, name, stage);
          } else if (kind == "end") {
            run.ended = true;
            const Json code = line.value("exit_code", Json());
            run.exit_code = code.is_number_integer() ? code.get<int>() : 0;
          } else if (kind == "run") {
            run.began = true;
            hosts_of(line, run);
          } else {
            run.verdicts.push_back(line);
          }
        },
        &cut);
    if (!with_statements) return;
    std::vector<std::string> hosts;
    for (const auto& [id, run] : runs) {
      for (const Json& line : run.verdicts) statement(line, run);
      if (run.began && !run.ended)
        incomplete(name + ": a run without an end line", run.hosts);
      else if (!is_explained(run))
        incomplete(fmt::format("{}: a run ended with exit code {}", name, run.exit_code),
                   run.hosts);
      hosts.insert(hosts.end(), run.hosts.begin(), run.hosts.end());
    }
    if (cut > 0) incomplete(fmt::format("{}: line {} is cut", name, cut), hosts);
  }

  static void hosts_of(const Json& line, Run& run) {
    const std::vector<std::string> all = texts(line, "hosts");
    const std::vector<std::string> uuids = texts(line, "gpu_uuids");
    run.hosts = distinct(all);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      run.places[std::to_string(rank)] = all[rank];
      if (rank < uuids.size()) run.places[uuids[rank]] = all[rank];
    }
  }

  /// Whether its verdicts say why it did not end well.
  static bool is_explained(const Run& run) {
    return run.exit_code == 0 ||
           std::any_of(run.verdicts.begin(), run.verdicts.end(), [](const Json& line) {
             return named(kOutcomes, text_at(line, "verdict")).value_or(Outcome::inconclusive) >=
                    Outcome::inconclusive;
           });
  }

  void incomplete(const std::string& why, const std::vector<std::string>& hosts) {
    Statement said;
    said.verdict = {Scope::job, why.substr(0, why.find(':')), Outcome::inconclusive, why};
    said.verdict.check = "not-finished";
    said.nodes = hosts;
    read_.evidence.statements.push_back(said);
  }

  void metric(const Json& line, const std::string& name, const std::string& stage) {
    Observation o = observation_of(line);
    for (std::string& host : o.of.hosts)
      if (const auto node = node_of_.find(host); node != node_of_.end()) host = node->second;
    if (!stage.empty()) o.stage = stage;
    o.run = text_at(line, "run_id");
    read_.evidence.observations.push_back(std::move(o));
    read_.records.push_back(name);
  }

  /// A rate's verdict, and a job's that rates are the reason of, is concluded anew.
  void statement(const Json& line, const Run& run) {
    const std::string scope = text_at(line, "scope");
    if (line.contains("metric") || (scope == "job" && text_at(line, "check") == "rates")) return;
    Statement said = statement_of(line);
    const auto at = run.places.find(said.verdict.name);
    if (scope == "node")
      said.nodes = {said.verdict.name};
    else if ((scope == "gpu" || scope == "rank") && at != run.places.end())
      said.nodes = {at->second};
    else
      said.nodes = run.hosts;
    read_.evidence.statements.push_back(said);
  }

  std::string stage_;
  std::map<std::string, std::string> node_of_;  // host: node
  Read read_;
};

}  // namespace

void for_lines(const std::string& path, const std::vector<const char*>& kinds,
               const std::function<void(const Json& line)>& use, std::size_t* cut) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw UsageError(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  std::size_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const auto start = line.find_first_not_of(" \t\r");
    if (start == std::string::npos) continue;
    const bool known = std::any_of(kinds.begin(), kinds.end(), [&](const char* kind) {
      const std::string head = fmt::format(R"({{"kind":"{}")", kind);
      return line.compare(start, head.size(), head) == 0;
    });
    const bool first_key = line.compare(start, 9, R"({"kind":")") == 0;
    if (first_key && !known) continue;
    const Json json = Json::parse(line, nullptr, false);
    if (cut != nullptr && json.is_discarded() && line[start] == '{') {
      *cut = number;
      continue;
    }
    if (!json.is_object() || !json.contains("kind"))
      throw UsageError(fmt::format("{}: line {} is no record", path, number));
    if (std::find(kinds.begin(), kinds.end(), text_at(json, "kind")) == kinds.end()) continue;
    try {
      use(json);
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("{}: line {}: {}", path, number, error.what()));
    }
  }
}

Read read(const std::vector<std::string>& paths, const std::string& stage) {
  Reader reader(stage);
  for (const std::string& path : paths) reader.read(path);
  return reader.take();
}

// A reference made of the observations of what passed, and its file.

namespace {

constexpr std::size_t kLeastUnits = 3;
constexpr double kUnsteady = 0.5;          // looks, or units, that differ by half show nothing
constexpr double kLeastClockRange = 0.04;  // below it, a time does not show how it follows a clock

using Key = std::tuple<std::string, std::string, std::string, std::string,
                       std::map<std::string, std::string>>;

/// Without the rack that links are compared within.
std::map<std::string, std::string> conditions_of(const Observation& o) {
  std::map<std::string, std::string> conditions = o.conditions;
  conditions.erase("clique");
  return conditions;
}

Key key_of(const Observation& o) {
  return {o.board, o.metric, o.unit, o.path_class, conditions_of(o)};
}

/// "10de:2335" of "10de:2335:10de:18be": a board of any maker.
std::string device_of(const std::string& pci_device_id) {
  return pci_device_id.substr(0, pci_device_id.find(':', pci_device_id.find(':') + 1));
}

double median_of_known(const std::vector<const Observation*>& observations,
                       double Circumstances::*value) {
  std::vector<double> known;
  for (const Observation* each : observations)
    if (std::isfinite(each->seen.*value)) known.push_back(each->seen.*value);
  return known.empty() ? kUnknown : median_of(known);
}

/// The library versions that all agree on.
std::map<std::string, std::string> versions_of(const std::vector<const Observation*>& all) {
  std::map<std::string, std::string> common = all.front()->versions;
  for (const Observation* each : all)
    std::erase_if(common, [&](const auto& version) {
      const auto found = each->versions.find(version.first);
      return found == each->versions.end() || found->second != version.second;
    });
  return common;
}

/// Theil (1950), Sen (1968): the median of the slopes of all pairs of (1 / clock, time).
std::optional<ClockLine> line_of(const std::vector<std::pair<double, double>>& clock_and_time) {
  if (clock_and_time.size() < kLeastUnits) return std::nullopt;
  const auto [slowest, fastest] = std::minmax_element(clock_and_time.begin(), clock_and_time.end());
  if (fastest->first < (1 + kLeastClockRange) * slowest->first) return std::nullopt;
  std::vector<double> slopes, offsets;
  for (std::size_t i = 0; i < clock_and_time.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) {
      const double run = 1 / clock_and_time[i].first - 1 / clock_and_time[j].first;
      if (run != 0) slopes.push_back((clock_and_time[i].second - clock_and_time[j].second) / run);
    }
  const double a = median_of(slopes);
  if (!(a > 0)) return std::nullopt;  // slower at a higher clock: something else
  for (const auto& [clock, time] : clock_and_time) offsets.push_back(time - a / clock);
  return ClockLine{a, median_of(offsets)};
}

/// Standard deviation between units, as a share: of the medians of each one's runs.
double spread_between(const std::map<std::string, std::vector<double>>& runs) {
  double mean = 0, squares = 0;
  std::vector<double> logs;
  for (const auto& [unit, of_runs] : runs) logs.push_back(std::log(median_of(of_runs)));
  if (logs.size() < 2) return 0;
  for (const double log : logs) mean += log / static_cast<double>(logs.size());
  for (const double log : logs) squares += std::pow(log - mean, 2);
  return std::sqrt(squares / static_cast<double>(logs.size() - 1));
}

/// Of the last looks of one metric and board.
ReferenceFigure figure_of(const std::vector<const Observation*>& observations, const Limit& limit) {
  const Observation& first = *observations.front();
  const bool less = first.less_is_better();
  std::map<std::string, std::vector<double>> values;  // of each subject's runs
  std::set<std::string> devices;                      // GPUs; of a pair or a group all
  std::vector<std::pair<double, double>> clock_and_time;
  double squares = 0;
  std::size_t looks = 0;
  for (const Observation* each : observations) {
    const double value = statistic_of(each->samples, limit.statistic, less);
    values[each->of.key()].push_back(value);
    devices.insert(each->of.uuids.begin(), each->of.uuids.end());
    if (const double spread = look_spread(each->samples, limit.statistic, less);
        std::isfinite(spread)) {
      squares += spread * spread;
      ++looks;
    }
    if (each->follows_clock() && each->seen.clock_mhz > 0)
      clock_and_time.emplace_back(each->seen.clock_mhz, value);
  }
  std::vector<double> units;
  for (const auto& [unit, of_runs] : values) units.push_back(median_of(of_runs));
  ReferenceFigure figure;
  figure.metric = first.metric;
  figure.unit = first.unit;
  figure.kind = "measured";
  figure.value = median_of(units);
  figure.units = devices.empty() ? units.size() : devices.size();
  // What the clock explains is no difference between GPUs, as the judge explains it too.
  if (clock_and_time.size() == observations.size()) figure.line = line_of(clock_and_time);
  auto explained = values;
  if (figure.line) {
    for (auto& [unit, of_runs] : explained) of_runs.clear();
    for (const Observation* each : observations)
      explained[each->of.key()].push_back(statistic_of(each->samples, limit.statistic, less) /
                                          (figure.line->a / each->seen.clock_mhz + figure.line->b));
  }
  figure.between = spread_between(explained);
  if (units.size() < kLeastUnits) {
    figure.between = std::max(figure.between, limit.spread);
    figure.note = fmt::format("spread between units not known: of {}", units.size());
  }
  if (looks > 0) figure.look = std::sqrt(squares / static_cast<double>(looks));
  figure.path_class = first.path_class;
  figure.conditions = conditions_of(first);
  figure.versions = versions_of(observations);
  figure.clock_mhz = median_of_known(observations, &Circumstances::clock_mhz);
  figure.temperature_c = median_of_known(observations, &Circumstances::temperature_c);
  figure.power_limit_w = median_of_known(observations, &Circumstances::power_limit_w);
  return figure;
}

/// Five digits.
double rounded(double value) { return std::stod(fmt::format("{:.5g}", value)); }

}  // namespace

Reference recorded(const std::vector<Observation>& good, const Limits& limits,
                   const std::string& name, const std::string& source, bool few,
                   const std::string& date) {
  std::map<Key, std::vector<const Observation*>> groups;
  std::map<Key, std::map<std::string, std::size_t>> last;  // of each unit, in its group
  std::map<std::string, std::set<std::string>> units;      // GPUs or ranks of each board
  std::set<std::string> ids;
  for (const Observation& each : good) {
    const Limit* limit = limits.find(each.metric);
    if (limit == nullptr || each.samples.size() < limit->samples ||
        !(statistic_of(each.samples, limit->statistic, each.less_is_better()) > 0))
      continue;
    std::vector<const Observation*>& group = groups[key_of(each)];
    const auto [place, is_first] = last[key_of(each)].try_emplace(each.of.key(), group.size());
    if (each.look > 1 && !is_first) {
      group[place->second] = &each;
    } else {
      place->second = group.size();
      group.push_back(&each);
    }
    units[each.board].insert(each.of.uuids.begin(), each.of.uuids.end());
    if (each.of.uuids.empty()) units[each.board].insert(each.of.key());
    if (!each.pci_device_id.empty()) ids.insert(device_of(each.pci_device_id));
  }
  Reference reference{name, "", "", {ids.begin(), ids.end()}, {}, {}, {}};
  std::set<std::string> boards;
  for (const auto& [key, group] : groups) {
    boards.insert(std::get<0>(key));
    ReferenceFigure figure = figure_of(group, *limits.find(std::get<1>(key)));
    if (std::max(figure.look, figure.between) > kUnsteady) {
      reference.noisy.push_back(figure.metric);
      continue;
    }
    figure.source = source;
    figure.date = date.empty() ? utc_now().substr(0, 10) : date;
    reference.figures.push_back(std::move(figure));
  }
  reference.models = {boards.begin(), boards.end()};
  reference.noisy = distinct(reference.noisy);
  if (few) return reference;
  if (boards.empty()) throw UsageError("no reference recorded: nothing that passed was measured");
  for (const std::string& board : boards) {
    if (boards.size() > 1)
      throw UsageError(
          fmt::format("no reference recorded: of several boards: {}", fmt::join(boards, ", ")));
    if (units[board].size() < kLeastUnits)
      throw UsageError(fmt::format(
          "no reference recorded: {} of {} passed, and the spread between them needs at least {}",
          units[board].size(), board, kLeastUnits));
  }
  return reference;
}

std::string text_of(const Reference& reference) {
  std::vector<std::string> figures;
  for (const ReferenceFigure& figure : reference.figures) {
    Json json{{"metric", figure.metric},
              {"unit", figure.unit},
              {"value", rounded(figure.value)},
              {"kind", figure.kind},
              {"source", figure.source}};
    const auto add_text = [&](const char* key, const std::string& text) {
      if (!text.empty()) json[key] = text;
    };
    const auto add_words = [&](const char* key, const auto& words) {
      if (!words.empty()) json[key] = words;
    };
    const auto add = [&](const char* key, double value) {
      if (std::isfinite(value)) json[key] = rounded(value);
    };
    add_text("date", figure.date);
    if (figure.units > 0) json["units"] = figure.units;
    if (figure.between > 0) add("between", figure.between);
    if (figure.look > 0) add("look", figure.look);
    add_text("path_class", figure.path_class);
    add_words("conditions", figure.conditions);
    add_words("versions", figure.versions);
    add("clock_mhz", figure.clock_mhz);
    add("temperature_c", figure.temperature_c);
    add("power_limit_w", figure.power_limit_w);
    if (figure.line)
      json["line"] = {{"a", rounded(figure.line->a)}, {"b", rounded(figure.line->b)}};
    add_text("note", figure.note);
    figures.push_back("  " + json_text(json));
  }
  Json head{{"name", reference.name}};
  if (!reference.pci_device_ids.empty()) head["pci_device_ids"] = reference.pci_device_ids;
  head["models"] = reference.models;
  if (!reference.note.empty()) head["note"] = reference.note;
  std::string text = "{\n";
  for (const auto& [key, value] : head.items())
    text += fmt::format(" \"{}\": {},\n", key, json_text(value));
  return text + fmt::format(" \"figures\": [\n{}\n ]\n}}\n", fmt::join(figures, ",\n"));
}

}  // namespace shakedown::judge

#include "common/judge/references.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "common/judge/court.hpp"
#include "common/judge/judge.hpp"
#include "common/judge/series.hpp"
#include "common/judge/strict_json.hpp"
#include "common/statistics.hpp"
#include "common/usage_error.hpp"

namespace shakedown::judge {
namespace {

constexpr const char* kRack =
    "clique";  // whose links are compared with one another; all are of a kind
constexpr std::array kKinds{"measured", "published", "stated"};

struct Seen {
  const char* key;
  double ReferenceFigure::*value;
  double Circumstances::*circumstance;
};
constexpr std::array<Seen, 3> kSeen{
    {{"clock_mhz", &ReferenceFigure::clock_mhz, &Circumstances::clock_mhz},
     {"temperature_c", &ReferenceFigure::temperature_c, &Circumstances::temperature_c},
     {"power_limit_w", &ReferenceFigure::power_limit_w, &Circumstances::power_limit_w}}};

double positive(StrictObject& row, const char* key) {
  const auto value = row.number(key);
  if (!value) row.refuse(fmt::format("{} is missing", key));
  if (!(*value > 0)) row.refuse(fmt::format("{}: more than 0 is allowed, not {}", key, *value));
  return *value;
}

/// "2026-11-26" or "2026-11"
bool is_date(const std::string& text) {
  const std::string digits = "dddd-dd-dd";
  if (text.size() != 10 && text.size() != 7) return false;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (digits[i] == '-' ? text[i] != '-' : (text[i] < '0' || text[i] > '9')) return false;
  return true;
}

/// A measured figure is judged with, and needs all that a judgement does.
void check_measured(StrictObject& row, const ReferenceFigure& figure) {
  if (Limits::embedded().find(figure.metric) == nullptr)
    row.refuse("metric: nothing measures it; limits.json has the metrics");
  if (!is_date(figure.date))
    row.refuse(fmt::format("date: YYYY-MM-DD or YYYY-MM is allowed, not {}",
                           figure.date.empty() ? "none" : figure.date));
  if (figure.units == 0) row.refuse("units is missing");
}

ReferenceFigure figure_of(StrictObject& row) {
  ReferenceFigure figure;
  figure.metric = row.text("metric", true);
  figure.unit = row.text("unit", true);
  figure.value = positive(row, "value");
  figure.kind = kKinds[row.choice("kind", kKinds, true)];
  figure.source = row.text("source", true);
  figure.date = row.text("date");
  if (row.has("units")) figure.units = static_cast<std::size_t>(positive(row, "units"));
  for (const auto& [key, share] : {std::pair{"between", &figure.between}, {"look", &figure.look}}) {
    *share = row.number(key).value_or(0);
    if (!(*share >= 0 && *share < 1))
      row.refuse(fmt::format("{}: 0 to 1 is allowed, not {}", key, *share));
  }
  figure.path_class = row.text("path_class");
  figure.conditions = row.words("conditions");
  figure.versions = row.words("versions");
  for (const Seen& seen : kSeen) figure.*seen.value = row.number(seen.key).value_or(kUnknown);
  if (row.has("line")) {
    const std::map<std::string, double> line = row.numbers("line");
    if (line.size() != 2 || !line.contains("a") || !line.contains("b"))
      row.refuse("line: {\"a\": number, \"b\": number} is allowed");
    figure.line = ClockLine{line.at("a"), line.at("b")};
  }
  figure.note = row.text("note");
  if (figure.kind == kKinds.front()) check_measured(row, figure);
  return figure;
}

/// Date (of the run's start, which its run_id begins with) and observations of a record's metric
/// lines of what can serve.
void read_record(const std::string& path, std::vector<Observation>& good, std::string& date) {
  std::size_t cut = 0;  // what was measured before counts
  const auto add = [&](const Json& line) {
    Observation observation = observation_of(line);
    const Json id = line.value("run_id", Json());
    const std::string start = id.is_string() ? id.get<std::string>().substr(0, 10) : "";
    if (is_date(start)) date = std::max(date, start);
    if (observation.check != Check::wrong && observation.taken == Taken::measured &&
        observation.disturbed_by.empty())
      good.push_back(std::move(observation));
  };
  for_lines(path, {"metric"}, add, &cut);
}

bool is_board_of(const Reference& reference, const Observation& observation) {
  return std::ranges::any_of(
             reference.pci_device_ids,
             [&](const std::string& each) { return is_of(each, observation.pci_device_id); }) ||
         std::ranges::count(reference.models, observation.board) != 0;
}

using Words = std::map<std::string, std::string>;

/// "bytes 1048576, reference 134217728" for all that differs.
std::vector<std::string> differences(const Observation& observation,
                                     const ReferenceFigure& figure) {
  const auto text = [](const std::string& word) { return word.empty() ? "none" : word; };
  std::vector<std::string> found;
  const auto compare = [&](const std::string& key, const std::string& ours,
                           const std::string& its) {
    if (ours != its)
      found.push_back(fmt::format("{} {}, reference {}", key, text(ours), text(its)));
  };
  compare("unit", observation.unit, figure.unit);
  compare("path", observation.path_class, figure.path_class);
  Words keys = observation.conditions;
  keys.insert(figure.conditions.begin(), figure.conditions.end());
  keys.erase(kRack);
  const auto of = [](const Words& words, const std::string& key) {
    const auto at = words.find(key);
    return at == words.end() ? "" : at->second;
  };
  for (const auto& [key, word] : keys)
    compare(key, of(observation.conditions, key), of(figure.conditions, key));
  return found;
}

}  // namespace

std::vector<std::string> other_versions(const Observation& observation,
                                        const ReferenceFigure& figure) {
  std::vector<std::string> found;
  for (const auto& [library, version] : figure.versions) {
    const auto own = observation.versions.find(library);
    if (own != observation.versions.end() && own->second != version)
      found.push_back(fmt::format("measured with {} {}, here {}", library, version, own->second));
  }
  return found;
}

Reference reference_of(const std::string& text, const std::string& file) {
  const Json json = parsed(text, file);
  StrictObject table(json, file);
  if (json.contains("devices"))
    table.refuse(
        "written by an older version, whose figures are not comparable: record it anew with "
        "bin/judge RECORD --record-reference FILE");
  Reference reference;
  reference.file = file;
  reference.name = table.text("name", true);
  reference.note = table.text("note");
  reference.pci_device_ids = table.texts("pci_device_ids");
  reference.models = table.texts("models", true);
  for_rows(table.array("figures"), file, "figure", "metric",
           [&](StrictObject& row) { reference.figures.push_back(figure_of(row)); });
  table.done();
  return reference;
}

References::References(std::vector<Reference> all) : all_(std::move(all)) {
  for (std::size_t r = 0; r < all_.size(); ++r)
    for (std::size_t f = 0; f < all_[r].figures.size(); ++f)
      by_metric_[all_[r].figures[f].metric].push_back({r, f});
}

const References& References::embedded() {
  static const References references([] {
    std::vector<Reference> all;
    for (const auto& [name, text] : embedded_files())
      if (name != "boards.json" && name != "limits.json") all.push_back(reference_of(text, name));
    return all;
  }());
  return references;
}

References References::load(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const bool folder = fs::is_directory(path, error);
  if (!folder && !fs::exists(path, error)) throw UsageError(path + ": there is no such file");
  std::vector<fs::path> files;
  try {
    if (folder)
      for (const auto& entry : fs::recursive_directory_iterator(path)) {
        const std::string name = entry.path().filename().string();
        if (entry.is_regular_file() && name != "boards.json" && name != "limits.json")
          files.push_back(entry.path());
      }
    else
      files.emplace_back(path);
  } catch (const fs::filesystem_error& cause) {
    throw UsageError(fmt::format("{}: cannot be read: {}", path, cause.code().message()));
  }
  std::sort(files.begin(), files.end());
  std::vector<Reference> all;
  std::vector<Observation> good;
  std::string date;
  for (const fs::path& file : files)
    if (file.extension() == ".json") {
      const std::string text = text_of_file(file);
      if (!folder || text.find("\"figures\"") != std::string::npos)
        all.push_back(reference_of(text, file.string()));
    } else if (!folder || file.extension() == ".jsonl") {
      read_record(file, good, date);
    }
  // Each board's: a figure is of one board alone.
  std::map<std::string, std::vector<Observation>> by_board;
  for (Observation& each : good) by_board[each.board].push_back(std::move(each));
  for (const auto& [board, observations] : by_board) {
    all.push_back(recorded(observations, Limits::embedded(), board, path, true, date));
    all.back().file = path;
  }
  if (all.empty())
    throw UsageError(path +
                     ": no reference: a JSON file of results/reference's form, or a record "
                     "with metric lines, is allowed");
  References references(std::move(all));
  references.named_ = true;
  return references;
}

const ReferenceFigure* References::find(const Observation& observation, std::string* missed) const {
  if (missed != nullptr) missed->clear();
  std::vector<std::string> nearest;
  const ReferenceFigure* found = nullptr;
  const auto rank = [&](const ReferenceFigure& figure) {
    return std::tuple(-std::ssize(other_versions(observation, figure)), figure.date, figure.units);
  };
  const auto places = by_metric_.find(observation.metric);
  for (const Place& place : places == by_metric_.end() ? std::vector<Place>{} : places->second) {
    const ReferenceFigure& figure = all_[place.reference].figures[place.figure];
    if (figure.kind != kKinds.front() || !is_board_of(all_[place.reference], observation)) continue;
    std::vector<std::string> differ = differences(observation, figure);
    if (!differ.empty() && (nearest.empty() || differ.size() < nearest.size()))
      nearest = std::move(differ);
    else if (differ.empty() && (found == nullptr || rank(figure) > rank(*found)))
      found = &figure;
  }
  if (found != nullptr) return found;
  if (std::ranges::any_of(all_, [&](const Reference& each) {
        return std::ranges::count(each.noisy, observation.metric) != 0 &&
               is_board_of(each, observation);
      }))
    nearest.emplace_back("its own are too noisy or of too few samples");
  if (missed != nullptr) *missed = fmt::format("{}", fmt::join(nearest, "; "));
  return nullptr;
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
  for (const Seen& seen : kSeen)
    figure.*seen.value = median_of_known(observations, seen.circumstance);
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
  std::set<std::string> ids, boards;
  Reference reference{name, "", "", {}, {}, {}, {}};
  for (const Observation& each : good) {
    const Limit* limit = limits.find(each.metric);
    if (limit == nullptr ||
        !(statistic_of(each.samples, limit->statistic, each.less_is_better()) > 0))
      continue;
    if (each.samples.size() < limit->samples) {
      if (few) reference.noisy.push_back(each.metric);
      if (few) boards.insert(each.board);
      continue;
    }
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
  reference.pci_device_ids = {ids.begin(), ids.end()};
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
    for (const Seen& seen : kSeen) add(seen.key, figure.*seen.value);
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

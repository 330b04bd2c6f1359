#include "common/judge/references.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "common/judge/court.hpp"
#include "common/judge/judge.hpp"
#include "common/judge/limits.hpp"
#include "common/judge/strict_json.hpp"
#include "common/usage_error.hpp"

namespace shakedown::judge {
namespace {

constexpr const char* kRack =
    "clique";  // whose links are compared with one another; all are of a kind
constexpr std::array kKinds{"measured", "published", "stated"};

struct Seen {
  const char* key;
  double ReferenceFigure::*value;
};
constexpr std::array<Seen, 3> kSeen{{{"clock_mhz", &ReferenceFigure::clock_mhz},
                                     {"temperature_c", &ReferenceFigure::temperature_c},
                                     {"power_limit_w", &ReferenceFigure::power_limit_w}}};

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
  if (folder)
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      const std::string name = entry.path().filename().string();
      if (entry.is_regular_file() && name != "boards.json" && name != "limits.json")
        files.push_back(entry.path());
    }
  else
    files.emplace_back(path);
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
  const auto places = by_metric_.find(observation.metric);
  if (places == by_metric_.end()) return nullptr;
  std::vector<std::string> nearest;
  for (const Place& place : places->second) {
    const ReferenceFigure& figure = all_[place.reference].figures[place.figure];
    if (figure.unit != observation.unit || figure.kind != kKinds.front() ||
        !is_board_of(all_[place.reference], observation))
      continue;
    std::vector<std::string> differ = differences(observation, figure);
    if (differ.empty()) return &figure;
    if (nearest.empty() || differ.size() < nearest.size()) nearest = std::move(differ);
  }
  if (missed != nullptr) *missed = fmt::format("{}", fmt::join(nearest, "; "));
  return nullptr;
}

}  // namespace shakedown::judge

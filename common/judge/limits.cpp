#include "common/judge/limits.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "common/judge/court.hpp"
#include "common/judge/strict_json.hpp"
#include "common/usage_error.hpp"

namespace shakedown::judge {
namespace {

constexpr std::array kStatistics{"median", "best", "last"};
constexpr std::array kRates{"",      "products", "memory",     "host_link",
                            "links", "training", "collectives"};

/// "memory/{copy,read}": both.
std::vector<std::string> alternatives(const std::string& metric) {
  const std::size_t open = metric.find('{'), close = metric.find('}', open);
  if (open == std::string::npos || close == std::string::npos) return {metric};
  std::vector<std::string> all;
  for (std::size_t begin = open + 1; begin <= close;) {
    const std::size_t end = std::min(metric.find(',', begin), close);
    for (const std::string& rest : alternatives(metric.substr(close + 1)))
      all.push_back(metric.substr(0, open) + metric.substr(begin, end - begin) + rest);
    begin = end + 1;
  }
  return all;
}

double least(StrictObject& row, const char* key, double value, double bound) {
  if (!(value >= bound)) row.refuse(fmt::format("{}: {} is less than {}", key, value, bound));
  return value;
}

int count(StrictObject& row, const char* key, double value, int bound) {
  if (value != std::floor(value) || value > 1e6)
    row.refuse(fmt::format("{}: a whole number is allowed, not {}", key, value));
  return static_cast<int>(least(row, key, value, bound));
}

/// Of the keys that the row names; null takes `share` and the bars away.
void change(Limit& limit, StrictObject& row) {
  if (row.has("statistic"))
    limit.statistic = static_cast<Statistic>(row.choice("statistic", kStatistics, true));
  if (const auto samples = row.number("samples"))
    limit.samples = static_cast<std::size_t>(count(row, "samples", *samples, 1));
  if (const auto looks = row.number("looks")) limit.looks = count(row, "looks", *looks, 0);
  for (const auto& [key, share] : {std::pair{"floor", &limit.floor}, {"spread", &limit.spread}})
    if (const auto value = row.number(key)) {
      *share = least(row, key, *value, 0);
      if (*share > 1)
        row.refuse(fmt::format("{}: at most 1 is allowed, not {}: 0.05 is 5 %", key, *share));
    }
  if (row.has("share")) {
    limit.share = row.number("share");
    if (limit.share && !(*limit.share > 0 && *limit.share <= 1))
      row.refuse(fmt::format("share: more than 0 and at most 1 is allowed, not {}", *limit.share));
  }
  limit.constant = row.flag("constant").value_or(limit.constant);
  limit.warns = row.flag("warns").value_or(limit.warns);
  if (row.has("class")) {
    std::vector<const char*> names;
    for (const Class one : kClasses) names.push_back(name_of(one));
    limit.class_ = kClasses[row.choice("class", names, true)];
  }
  if (row.has("rates")) limit.rates = kRates[row.choice("rates", kRates)];
  if (row.has("action")) limit.action = row.text("action");
  if (row.has("least")) limit.least = row.number("least");
  if (row.has("most")) limit.most = row.number("most");
  if (limit.least && limit.most && *limit.least > *limit.most)
    row.refuse(fmt::format("least: {} is above most, {}", *limit.least, *limit.most));
}

/// The rows of a file.
void for_limits(const std::string& text, const std::string& file,
                const std::function<void(StrictObject& row, const std::string& metric)>& use) {
  const Json json = parsed(text, file);
  if (!json.is_array()) throw UsageError(file + ": a list of limits is allowed");
  for_rows(json, file, "limit", "metric",
           [&](StrictObject& row) { use(row, row.text("metric", true)); });
}

/// The rows that `glob` matches, and of those that match it a copy of its own, in their order.
std::vector<Limit> common_rows(const std::vector<Limit>& rows, const std::string& glob) {
  std::vector<Limit> found;
  for (const std::string& each : alternatives(glob))
    for (const Limit& limit : rows) {
      const bool whole = matches(each, limit.metric);
      const std::string& metric = whole ? limit.metric : each;
      const bool known = std::ranges::count(found, metric, &Limit::metric) > 0;
      if (known || !(whole || matches(limit.metric, each))) continue;
      found.push_back(limit);
      found.back().metric = metric;
    }
  return found;
}

}  // namespace

bool matches(const std::string& glob, const std::string& text) {
  return fnmatch(glob.c_str(), text.c_str(), 0) == 0;
}

Limits::Limits(const std::string& text, const std::string& file) {
  for_limits(text, file, [&](StrictObject& row, const std::string& metric) {
    Limit limit;
    limit.floor = std::numeric_limits<double>::infinity();
    change(limit, row);
    for (const std::string& each : alternatives(metric)) {
      rows_.push_back(limit);
      rows_.back().metric = each;
    }
  });
}

const Limits& Limits::embedded() {
  static const Limits limits(embedded_files().at("limits.json"), "limits.json");
  return limits;
}

Limits Limits::with(const std::string& text, const std::string& file) const {
  Limits changed = *this;
  for_limits(text, file, [&](StrictObject& row, const std::string& metric) {
    std::vector<Limit> found = common_rows(changed.rows_, metric);
    if (found.empty()) row.refuse("metric: matches none that is measured");
    for (Limit& limit : found) change(limit, row);
    changed.rows_.insert(changed.rows_.begin(), found.begin(), found.end());
  });
  return changed;
}

void Limits::bar(const std::string& metric, std::optional<double> least,
                 std::optional<double> most) {
  std::vector<Limit> found = common_rows(rows_, metric);
  if (found.empty()) throw UsageError(metric + ": no such metric");
  for (Limit& limit : found) {
    if (least) limit.least = least;
    if (most) limit.most = most;
    limit.samples = 1;  // what the user measured is what the bar is for
  }
  rows_.insert(rows_.begin(), found.begin(), found.end());
}

const Limit* Limits::find(const std::string& metric) const {
  for (const Limit& limit : rows_)
    if (matches(limit.metric, metric)) return &limit;
  return nullptr;
}

namespace {

/// Every row names documents of the table's `sources`, and when they were read.
void check_source(StrictObject& row, const std::map<std::string, std::string>& sources) {
  for (const std::string& source : row.texts("source", true))
    if (!sources.contains(source)) row.refuse(fmt::format("source: {} is not in sources", source));
  row.text("date", true);
  row.words("sure");
}

Board board_of(StrictObject& row) {
  Board board;
  board.architecture = row.text("architecture", true);
  board.sms = row.number("sms").value_or(kUnknown);
  board.flop_per_cycle_sm = row.numbers("flop_per_cycle_sm");
  board.memory_mhz = row.number("memory_mhz").value_or(kUnknown);
  board.memory_bits = row.number("memory_bits").value_or(kUnknown);
  board.base_mhz = row.number("base_mhz").value_or(kUnknown);
  board.power_w = row.number("power_w").value_or(kUnknown);
  if (const auto links = row.number("nvlinks")) board.nvlinks = static_cast<int>(*links);
  board.nvlink_gbs = row.number("nvlink_gbs").value_or(kUnknown);
  board.pcie_generation = static_cast<int>(row.number("pcie_generation").value_or(0));
  board.pcie_width = static_cast<int>(row.number("pcie_width").value_or(0));
  GpuDescription wires;
  wires.pcie_generation = board.pcie_generation;
  wires.pcie_width = board.pcie_width;
  board.pcie_gbs = row.number("c2c_gbs").value_or(wires.pcie_gbs());
  board.note = row.text("cut");
  return board;
}

}  // namespace

bool is_of(const std::string& id, const std::string& device) {
  return !id.empty() && device.starts_with(id) &&
         (device.size() == id.size() || device[id.size()] == ':');
}

Boards::Boards(const std::string& text, const std::string& file) {
  const Json json = parsed(text, file);
  StrictObject table(json, file);
  const std::map<std::string, std::string> sources = table.words("sources");
  for_rows(table.array("architectures"), file, "architecture", "architecture", [&](auto& row) {
    Board board = board_of(row);
    board.name = board.architecture;
    board.known = false;
    check_source(row, sources);
    if (!architectures_.emplace(board.architecture, board).second)
      row.refuse(fmt::format("architecture: {} is there twice", board.architecture));
  });
  for_rows(table.array("boards"), file, "board", "names", [&](auto& row) {
    Row found{board_of(row), row.texts("pci_device_ids"), row.texts("names")};
    found.board.name = found.names.empty() ? row.text("name", true) : found.names.front();
    check_source(row, sources);
    for (const Row& other : rows_)
      for (const std::string& id : found.pci_device_ids)
        if (std::count(other.pci_device_ids.begin(), other.pci_device_ids.end(), id) != 0)
          row.refuse(fmt::format("pci_device_ids: {} is {}'s as well", id, other.board.name));
    rows_.push_back(std::move(found));
  });
  table.done();
}

const Boards& Boards::embedded() {
  static const Boards boards(embedded_files().at("boards.json"), "boards.json");
  return boards;
}

std::optional<Board> Boards::find(const std::string& pci_device_id, const std::string& model,
                                  const std::string& compute_capability) const {
  const Row* best = nullptr;
  std::size_t longest = 0;  // with the subsystem before without
  for (const Row& row : rows_)
    for (const std::string& id : row.pci_device_ids)
      if (is_of(id, pci_device_id) && id.size() > longest) {
        best = &row;
        longest = id.size();
      }
  if (best != nullptr) return best->board;
  for (const Row& row : rows_)
    if (std::count(row.names.begin(), row.names.end(), model) != 0) return row.board;
  std::string architecture = "sm_";
  for (const char c : compute_capability)
    if (c != '.') architecture += c;
  const auto found = architectures_.find(architecture);
  if (found == architectures_.end()) return std::nullopt;
  return found->second;
}

}  // namespace shakedown::judge

#include "common/judge/boards.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/error.hpp"
#include "common/judge/embedded.hpp"
#include "common/judge/strict_json.hpp"

namespace shakedown::judge {
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

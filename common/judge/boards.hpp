// What GPU boards are made of (results/reference/boards.json, which is embedded): data with
// sources.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/nvml.hpp"

namespace shakedown::judge {

/// kUnknown, or 0 links where there are none; an unknown figure judges nothing.
struct Board {
  std::string name;          // "H100 SXM5 80 GB"
  std::string architecture;  // "sm_90"
  bool known = true;         // false: the architecture's own row serves an unknown board
  double sms = kUnknown;
  std::map<std::string, double> flop_per_cycle_sm;  // dense, by product type: "fp16", "fp8", "int8"
  double memory_mhz = kUnknown, memory_bits = kUnknown;
  double base_mhz = kUnknown;  // of the SMs; a product under the power limit lies below it
  double power_w = kUnknown;
  std::optional<int> nvlinks;               // none: unknown, or by bridge
  double nvlink_gbs = kUnknown;             // of one link, one way
  int pcie_generation = 0, pcie_width = 0;  // 0: unknown, or no PCIe slot (Grace boards)
  double pcie_gbs = kUnknown;               // one way; of Grace boards C2C's
  std::string note;                         // what is cut on purpose

  double memory_gbs() const { return 2 * memory_mhz * 1e6 * memory_bits / 8 / 1e9; }
};

/// "10de:2330" is of "10de:2330:10de:16c1".
bool is_of(const std::string& id, const std::string& device);

class Boards {
 public:
  /// Of the text of `file`. Throws UsageError that names the row and the key.
  Boards(const std::string& text, const std::string& file);
  static const Boards& embedded();

  /// By PCI device and subsystem id, by the device id alone, then by the name that the driver
  /// gives; else the architecture's, if `compute_capability` ("9.0") is given and known.
  std::optional<Board> find(const std::string& pci_device_id, const std::string& model,
                            const std::string& compute_capability = "") const;

 private:
  struct Row {
    Board board;
    std::vector<std::string> pci_device_ids, names;
  };
  std::vector<Row> rows_;
  std::map<std::string, Board> architectures_;
};

}  // namespace shakedown::judge

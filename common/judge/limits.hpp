// The limits of every metric (results/reference/limits.json, which is embedded): one table of data.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/nvml.hpp"
#include "common/record.hpp"

namespace shakedown::judge {

/// The value of a look's samples. `best`: other work on a link or a memory only adds time.
enum class Statistic { median, best, last };

/// Shares are of time: r = time / usual time - 1, and of a rate usual / rate - 1.
struct Limit {
  std::string metric;  // a glob: "collective/*/busbw"
  Statistic statistic = Statistic::median;
  std::size_t samples = 1;  // fewer are not judged
  int looks = 0;            // further ones at who seems slow, before it fails
  double floor = 0;         // the least r that fails; infinite: recorded and printed only
  double spread = 0;  // of units that are alike: the standard deviation of r, without a reference
  std::optional<double> share;  // of the peak, of a clock the base clock: below it, first
                                // principles fail it
  bool constant = false;        // a property of the GPU: two are peers
  bool warns = false;           // never fails
  std::optional<Class> class_;
  std::string
      rates;  // the class of rates: products, memory, host_link, links, collectives, training
  std::string action;
  std::optional<double> least, most;  // the user's bars, in the metric's unit
};

class Limits {
 public:
  /// Of the text of `file`: a list of rows, the first whose metric matches counts. "{a,b}" in a
  /// metric stands for a row each. Throws UsageError that names row and key.
  Limits(const std::string& text, const std::string& file);
  static const Limits& embedded();
  /// With each row of `text` changing the keys that it names, a later one last. Throws UsageError:
  /// an unknown key, a glob that matches none of the metrics that there are, a floor below 0.
  Limits with(const std::string& text, const std::string& file) const;
  /// The user's bar on one metric or glob. Throws UsageError where it matches no metric.
  void bar(const std::string& metric, std::optional<double> least, std::optional<double> most);

  /// None: the metric is not judged.
  const Limit* find(const std::string& metric) const;
  const std::vector<Limit>& rows() const { return rows_; }

 private:
  std::vector<Limit> rows_;
};

/// "*" is any text.
bool matches(const std::string& glob, const std::string& text);

// What GPU boards are made of (results/reference/boards.json, which is embedded): data with
// sources.

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

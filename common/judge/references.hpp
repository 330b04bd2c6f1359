// What good GPUs and nodes measured (results/reference/*.json, which are embedded), read strictly;
// and a reference made of what passed.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/judge/limits.hpp"
#include "common/judge/observation.hpp"

namespace shakedown::judge {

/// The line t = a / f + b of time (ms) over the SM clock (MHz).
struct ClockLine {
  double a = 0, b = 0;
};

struct ReferenceFigure {
  std::string metric, unit;
  double value = 0;
  std::string kind;          // "measured": judges; "published", "stated": for people
  std::string source, date;  // where it is from; YYYY-MM-DD or YYYY-MM of the measurement
  std::size_t units = 0;     // GPUs, pairs or groups that it is of; below 3 it only warns
  double between = 0;        // standard deviation between units, as a share of the value
  double look = 0;           // what a repeated look changes: standard deviation, as a share
  std::string path_class;
  std::map<std::string, std::string> conditions;  // those of the observations, all
  std::map<std::string, std::string> versions;    // "cublas": of other ones it only warns
  double clock_mhz = kUnknown, temperature_c = kUnknown, power_limit_w = kUnknown;
  std::optional<ClockLine> line;  // of a time that follows the clock
  std::string note;
};

struct Reference {
  std::string name, file, note;
  std::vector<std::string> pci_device_ids, models;  // of its boards
  std::vector<ReferenceFigure> figures;
  std::vector<std::string>
      noisy;  // metrics of which some figures were too noisy, or of too few samples
};

/// "measured with cublas 13.0, here 13.1" for each library whose version is another.
std::vector<std::string> other_versions(const Observation& observation,
                                        const ReferenceFigure& figure);

class References {
 public:
  static const References& embedded();
  /// Of a file, or of all in a folder: JSON references, or records with metric lines. Records of a
  /// folder are one reference, whose units are the distinct GPUs, pairs or groups in them; the user
  /// named it, so it may fail even of one unit. Throws UsageError that names file, figure and key.
  static References load(const std::string& path);
  explicit References(std::vector<Reference> all);

  /// The measured figure of the observation's board, metric, unit, path class and conditions; of
  /// several the one with its library versions, then the latest. `missed`: where there is none,
  /// what is nearest and what differs: "bytes 1048576, reference 134217728"; empty: nothing of this
  /// board and metric.
  const ReferenceFigure* find(const Observation& observation, std::string* missed = nullptr) const;
  bool empty() const { return all_.empty(); }
  bool named() const { return named_; }  // by the user
  const std::vector<Reference>& all() const { return all_; }

 private:
  struct Place {
    std::size_t reference, figure;
  };
  std::vector<Reference> all_;
  std::map<std::string, std::vector<Place>> by_metric_;
  bool named_ = false;
};

/// Of the text of `file`. Throws UsageError that names figure and key.
Reference reference_of(const std::string& text, const std::string& file);

/// `--record-reference`: of the observations of what passed, in the order in which they were made
/// (of a unit that was measured in several runs, the median; of several looks, the last). Throws
/// UsageError for fewer than three units of a board, unless `few`. Fewer units than three have at
/// least the limit's spread. `date`: YYYY-MM-DD of the measurement; empty: today.
Reference recorded(const std::vector<Observation>& good, const Limits& limits,
                   const std::string& name, const std::string& source, bool few = false,
                   const std::string& date = "");
std::string text_of(const Reference& reference);  // the JSON file

}  // namespace shakedown::judge

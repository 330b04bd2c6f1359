// What bin/link_matrix tells: records as they come, matrices, outliers, verdicts.
#pragma once

#include <string>
#include <vector>

#include "collectives/links/links.hpp"
#include "collectives/links/splits.hpp"
#include "common/record.hpp"

namespace shakedown::collectives {

class LinkReport {
 public:
  LinkReport(const LinkOptions& options, const NodeMap& nodes, const Backend& backend,
             const MessageSettings& settings, Record& record);

  /// What is measured and on what, for people.
  std::string headline() const;

  /// Each records what it is given.
  void add(const std::vector<Link>& links);
  void add(const std::vector<Split>& splits);

  /// To be told and recorded with the verdicts.
  void add(const std::vector<Finding>& findings);

  /// The matrices, or where there are many ranks a line for each, and the splits.
  std::string tables() const;

  /// Compares what was measured, records the verdicts and tells them. `code()` is known afterwards.
  std::string judge();
  ExitCode code() const;

 private:
  /// What is compared and shown: one figure of a kind of link.
  struct Series;
  const std::string& node_of(int rank) const;
  ExitCode outlier_code() const;
  double bytes() const;  // of a message
  std::vector<Series> all_series() const;
  /// Of a symmetric figure each pair once.
  std::vector<Link> links_of(const Series& series) const;
  std::string matrix(const Series& series) const;
  std::string rank_table() const;
  std::string split_table() const;
  std::string name_of_series(const Series& series) const;
  /// Adds the series' outliers to the findings; a line for people, or nothing when it has no links.
  std::string compare(const Series& series, bool same_node);
  /// Against --min-bandwidth and --max-latency.
  void check_limits();

  const LinkOptions& options_;
  const NodeMap& nodes_;
  const Backend& backend_;
  MessageSettings settings_;
  Record& record_;
  Json identity_;
  std::vector<Link> links_;
  std::vector<Split> splits_;
  std::vector<Finding> findings_;
  std::vector<std::string> too_few_;  // series of fewer links than can be compared
  bool compared_ = false;             // any series
};

}  // namespace shakedown::collectives

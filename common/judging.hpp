// Rank 0 judges what all ranks measured.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/judge/court.hpp"
#include "common/mpi_session.hpp"
#include "common/record.hpp"

namespace shakedown {

class Judging {
 public:
  /// The files that the options name are read on rank 0; throws UsageError there. `unasked`:
  /// judge::Request's, where they name none.
  Judging(const judge::JudgeOptions& options, const MpiSession& session, std::string program,
          bool unasked = true);

  /// A bar of the user's on a metric or glob, in its unit.
  void bar(const std::string& metric, std::optional<double> least, std::optional<double> most);
  /// Records it. `id`: under which `slow` returns it; none: it is not measured again.
  void add(const judge::Observation& observation, Record& record, std::optional<int> id = {});
  /// The same of many, with ids from `first_id` on; the record has them as tables.
  void add_table(const std::vector<judge::Observation>& observations, Record& record,
                 std::optional<int> first_id = {});
  /// A conclusion about something other than a rate, on these nodes.
  void add(const Verdict& verdict, const std::vector<std::string>& nodes);

  /// On rank 0 alone.
  const judge::Limits& limits() const { return court_->limits(); }

  /// The ids of what was slow in every look and has looks left; the same on every rank. Collective.
  std::vector<int> slow();
  /// Of everything added so far. On rank 0; a PASS elsewhere.
  judge::Judgement judgement() const;

 private:
  const MpiSession& session_;
  std::string program_;
  bool unasked_;                       // the user named nothing to compare with
  std::optional<judge::Court> court_;  // on rank 0
  judge::Evidence evidence_;
  std::vector<std::optional<int>> ids_;  // of the observations
};

/// Records the findings and the job's verdict, with these fields.
void record_judgement(const judge::Judgement& judgement, Record& record, const Json& fields);

}  // namespace shakedown

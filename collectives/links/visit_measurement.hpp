// Links between nodes by sampled pairs: measured, recorded and judged.
#pragma once

#include <string>
#include <vector>

#include "collectives/links/links.hpp"
#include "common/judging.hpp"
#include "common/mpi_session.hpp"
#include "common/units.hpp"

namespace shakedown::collectives {

/// Rounds of nodes' visits that `--pairs` means; 0: each pair of ranks is measured. On one node 0.
/// Throws UsageError that names the option.
int sampled_rounds(const std::string& pairs, const NodeMap& nodes);

/// What a node, one of its ports, or a path between nodes has come to.
struct VisitResults {
  std::vector<Verdict> verdicts;
  std::string table;  // what the ports of each rail reach, for people
};

/// Collective; the verdicts are the same on every rank. Rates of the CPU backend only warn. `units`
/// are under the nodes' names; `words`: of a message.
VisitResults measure_visits(int rounds, const NodeMap& nodes, const std::vector<Unit>& units,
                            std::size_t words, const Backend& backend, const MpiSession& session,
                            LinkMeter& meter, Record& record, Judging& judging);

}  // namespace shakedown::collectives

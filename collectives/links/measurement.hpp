// All that bin/link_matrix measures, recorded as it comes.
#pragma once

#include <vector>

#include "collectives/links/link_records.hpp"
#include "collectives/links/links.hpp"
#include "collectives/links/splits.hpp"

namespace shakedown::collectives {

struct LinkResults {
  std::vector<Link> links;
  std::vector<Split> splits;
  std::vector<Verdict> corruptions;  // where data arrived wrong
};

/// The links of every pair, concurrently and, where `alone`, alone too; on several nodes the
/// splits. Collective.
LinkResults measure_all(bool alone, const NodeMap& nodes, Backend& backend, MpiSession& session,
                        LinkMessages& messages, LinkRecords& records);

}  // namespace shakedown::collectives

// All that bin/link_matrix measures, recorded as it comes.
#pragma once

#include <memory>
#include <vector>

#include "collectives/links/links.hpp"
#include "collectives/links/peer_copies.hpp"
#include "collectives/links/records.hpp"
#include "collectives/links/splits.hpp"
#include "common/judging.hpp"

namespace shakedown::collectives {

struct LinkResults {
  std::vector<Link> links;
  std::vector<LinkFigure> copies;  // between GPUs of a node
  std::vector<Split> splits;
  std::vector<Verdict> corruptions;  // where data arrived wrong
  std::vector<std::string> remarks;  // for people
};

/// Collective; the results are the same on every rank. What can be judged is given to `judging`.
class LinkMeasurement {
 public:
  LinkMeasurement(const NodeMap& nodes, Backend& backend, MpiSession& session,
                  LinkMessages& messages, LinkRecords& records, Judging& judging);

  /// The links of every pair, concurrently and, where `alone`, alone too; copies between the GPUs
  /// of a node; on several nodes the splits.
  LinkResults measure(bool alone);

 private:
  void measure_messages(bool alone, LinkResults& results);
  void measure_copies(LinkResults& results);
  void measure_slow_copies_again(LinkResults& results);

  const NodeMap& nodes_;
  Backend& backend_;
  MpiSession& session_;
  LinkMessages& messages_;
  LinkRecords& records_;
  Judging& judging_;
  std::vector<Unit> units_;
  Paths paths_;
  LinkObserver observer_;
  std::unique_ptr<PeerCopies> copies_;  // null where no node has two GPUs
};

}  // namespace shakedown::collectives

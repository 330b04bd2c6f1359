// The records of bin/link_matrix.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "collectives/links/links.hpp"
#include "collectives/links/splits.hpp"
#include "common/record.hpp"
#include "common/units.hpp"

namespace shakedown::collectives {

class LinkRecords {
 public:
  LinkRecords(Record& record, const MessageSettings& settings, const NodeMap& nodes,
              const Backend& backend)
      : record_(record), settings_(settings), nodes_(nodes), backend_(backend) {}

  void write(const std::vector<Link>& links);
  void write(const std::vector<Split>& splits);
  void write(const Verdict& verdict);

  /// For what others write, and the fields of every line.
  Record& record() { return record_; }
  Json identity() const;

 private:
  Record& record_;
  MessageSettings settings_;
  const NodeMap& nodes_;
  const Backend& backend_;
};

// The `metric` lines of bin/link_matrix.

class LinkObserver {
 public:
  LinkObserver(const NodeMap& nodes, std::vector<Unit> units, const Paths& paths,
               const Communicator& world);

  judge::Observation of(const LinkFigure& figure) const;
  /// Of a rail, a node or all ranks, with messages of these bytes.
  judge::Observation of(const Split& split, std::size_t bytes) const;

 private:
  const NodeMap& nodes_;
  std::vector<Unit> units_;  // under the nodes' names
  const Paths& paths_;
  const Communicator& world_;
  std::map<std::string, std::string> versions_;  // of the transport
};

}  // namespace shakedown::collectives

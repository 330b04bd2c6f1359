// The records and CSV lines of bin/link_matrix.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "collectives/links/links.hpp"
#include "collectives/links/splits.hpp"
#include "common/record.hpp"
#include "common/units.hpp"

namespace shakedown::collectives {

class LinkRecords {
 public:
  LinkRecords(Record& record, const std::string& csv, const MessageSettings& settings,
              const NodeMap& nodes, const Backend& backend);

  void write(const std::vector<Link>& links);
  void write(const std::vector<Split>& splits);
  void write(const Verdict& verdict);

  /// For what others write, and the fields of every line.
  Record& record() { return record_; }
  const Json& identity() const { return identity_; }

 private:
  Record& record_;
  CsvFile csv_;  // of the links
  MessageSettings settings_;
  const NodeMap& nodes_;
  Json identity_;  // in every record
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

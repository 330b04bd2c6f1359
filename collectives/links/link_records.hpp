// The records and CSV lines of bin/link_matrix.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "collectives/links/links.hpp"
#include "collectives/links/splits.hpp"
#include "common/csv.hpp"
#include "common/record.hpp"
#include "common/verdict.hpp"

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

}  // namespace shakedown::collectives

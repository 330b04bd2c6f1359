// The records of bin/link_matrix.
#pragma once

#include <vector>

#include "collectives/links/links.hpp"
#include "collectives/links/splits.hpp"
#include "common/record.hpp"

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

}  // namespace shakedown::collectives

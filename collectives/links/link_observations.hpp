// The `metric` lines of bin/link_matrix.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "collectives/links/link_figure.hpp"
#include "collectives/links/splits.hpp"
#include "common/paths.hpp"
#include "common/units.hpp"

namespace shakedown::collectives {

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

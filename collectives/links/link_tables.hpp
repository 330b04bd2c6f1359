// The tables of bin/link_matrix: matrices, or one line per rank, and the splits.
#pragma once

#include <string>
#include <vector>

#include "collectives/links/links.hpp"
#include "collectives/links/splits.hpp"

namespace shakedown::collectives {

/// The headline: what is measured, and on what.
std::string headline(const MessageSettings& settings, const Backend& backend, const NodeMap& nodes);

/// The tables of the links between `ranks` ranks.
std::string link_tables(const LinkOptions& options, const std::vector<Link>& links, int ranks);

std::string split_table(const std::vector<Split>& splits);

}  // namespace shakedown::collectives

// The tables of bin/link_matrix: matrices, or one line per rank, and the splits.
#pragma once

#include <string>
#include <vector>

#include "collectives/links/measurement.hpp"

namespace shakedown::collectives {

/// What grows with the square of the ranks, on a line of its own; "" for few of them.
std::string size_remark(int ranks, bool alone);

/// The headline: what is measured, and on what.
std::string headline(const LinkOptions& options, const MessageSettings& settings,
                     const Backend& backend, const NodeMap& nodes);

/// The tables of the links between `ranks` ranks.
std::string link_tables(const LinkOptions& options, const LinkResults& results, int ranks);

std::string split_table(const std::vector<Split>& splits);

}  // namespace shakedown::collectives

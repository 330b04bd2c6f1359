// The "collective" record and the CSV line of one operation at one size and placement.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "collectives/perf/perf_table.hpp"
#include "collectives/perf/plan.hpp"
#include "common/mpi_session.hpp"
#include "common/nodes.hpp"
#include "common/record.hpp"
#include "common/units.hpp"

namespace shakedown::collectives {

/// Fields of every record: where it was measured and how, so that records can be compared.
/// Collective.
Json conditions_of(const PerfOptions& options, const Plan& plan, const Communicator& communicator,
                   const Backend& backend, const MpiSession& session);

/// The record of one measurement, without the conditions.
Json record_of(const Trial& trial, const Measurement& measured, const Figures& figures,
               const MpiSession& session);

/// Of a row of which `fields` are the record with its conditions: its busbw, up to 64 KiB its
/// latency. None where nothing was exchanged, or --path was on, as to write NCCL's log is slow.
std::optional<judge::Observation> observation_of(const Json& fields, const Figures& figures,
                                                 const Communicator& communicator,
                                                 const NodeMap& nodes,
                                                 const std::vector<Unit>& units);

/// "all_reduce float32 sum 8 MiB in place", of a "collective" record.
std::string name_of_row(const Json& collective);

/// The record's keys that --csv writes.
std::vector<std::string> csv_columns();

/// "rank 1 on n2, iteration 7, element 3: expected 0x0, found 0x10".
std::string describe(const WrongElement& wrong, const MpiSession& session);

}  // namespace shakedown::collectives

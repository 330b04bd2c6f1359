// The device that each rank of a job runs on, as `metric` lines identify it.
#pragma once

#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/judge/observation.hpp"
#include "common/mpi_session.hpp"

namespace shakedown {

struct Unit {
  int rank = 0;
  std::string host, uuid, board;  // uuid: empty on the CPU backend
  std::string compute_capability;
  int multiprocessors = 0;
  GpuDescription gpu;
};

/// Of every rank, complete on each. Collective.
std::vector<Unit> units_of(const MpiSession& session, const Backend& backend);

/// An observation, without samples, of one rank's device, of a pair ("2->5"; "2<->5" where
/// `both_ways`), or of all `ranks`, named `name`. Board and ids are the first rank's.
judge::Observation observed(const std::string& metric, const std::string& unit, const Unit& of);
judge::Observation observed(const std::string& metric, const std::string& unit, const Unit& from,
                            const Unit& to, bool both_ways);
judge::Observation observed(const std::string& metric, const std::string& unit, Scope scope,
                            const std::string& name, const std::vector<Unit>& units,
                            const std::vector<int>& ranks);

}  // namespace shakedown

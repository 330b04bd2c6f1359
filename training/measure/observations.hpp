// What a throughput run gives the judge: the `metric` lines of its record.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/judge/observation.hpp"
#include "training/measure/records.hpp"

namespace shakedown::training {

/// Forward and backward passes of this rank alone: no exchange shares its SMs and no other rank is
/// waited for, so that a GPU that is slow shows itself, and not its peers.
struct OwnCompute {
  std::vector<double>
      ms;  // of each pass; empty where this rank has no whole weights to compute with
  judge::Circumstances seen;  // of all of them
};

/// The steps' own graph of the two passes, or their launches, on the batch that the network holds,
/// `passes` times after some warm-up. `before_each`: what a fault injects. Metrics and running
/// statistics change. Not collective.
OwnCompute measure_own_compute(Engine& engine, int passes,
                               const std::function<void()>& before_each);

/// Collective; complete on rank 0. train/compute_ms of each rank that computes, train/step_ms of
/// all together by the steps of the slowest. `tuning`: of ThroughputSettings::conditions.
std::vector<judge::Observation> observations_of(const Throughput& measured, const OwnCompute& own,
                                                const Identity& identity,
                                                const std::map<std::string, std::string>& tuning,
                                                const Backend& backend, const MpiSession& session);

}  // namespace shakedown::training

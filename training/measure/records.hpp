// The fields of the records that a measurement leaves: each key is written here and nowhere else.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/judge/observation.hpp"
#include "common/record.hpp"
#include "training/measure/certificate.hpp"
#include "training/measure/layer_times.hpp"
#include "training/measure/throughput.hpp"

namespace shakedown::training {

/// The name of a configuration, repeated in every record of it.
struct Identity {
  std::string backend;
  std::string model;
  int image_size = 0;
  int classes = 0;
  std::string precision;
  std::optional<int> batch_size;  // unknown where --global-batch does not divide
  int accumulate = 1;
  int world_size = 1;
  std::string strategy;
  std::string optimizer;
  std::string data;
  double bucket_cap_mb = 0;  // recorded where the strategy has buckets
  double throttle_gbs = 0;
  std::string setting;  // of bin/compare --settings, or empty
  int invariant = 0;    // shards; 0: --invariant is off
};
/// Its batch is unknown where the options cannot divide it.
Identity identity_of(const StepOptions& options, std::optional<int> batch_size, int classes,
                     int ranks, const Backend& backend, const std::string& data);

Json record_of(const Identity& identity);
Json record_of(const Throughput& measured);
/// The stages of the input per image; nothing where no image was loaded.
Json stages_of(const InputTimes& input);
/// Nothing of synthetic data.
Json record_of(const InputSetup& setup);
/// Times of a step's exchanges, one after another, and of its pushes and pulls if it has any.
Json sums_of_exchanges(const Trace& steps);
Json record_of(const Certificate& certificate);
Json record_of(const Breakdown& breakdown);
Json record_of(const ExchangeTimes& exchange);
Json record_of(const LayerTime& layer, const StepCalls& step);
Json record_of(const KernelTime& kernel, const StepCalls& step);

// What a throughput run gives the judge: the `metric` lines of its record.

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
/// all together by the steps of the slowest. `tuning`: the options that an Identity
/// lacks.
std::vector<judge::Observation> observations_of(const Throughput& measured, const OwnCompute& own,
                                                const Identity& identity,
                                                const std::map<std::string, std::string>& tuning,
                                                const Backend& backend, const MpiSession& session);

}  // namespace shakedown::training

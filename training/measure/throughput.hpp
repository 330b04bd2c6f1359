// The throughput run: warm-up, N timed steps, and what they say.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/mpi_session.hpp"
#include "common/record.hpp"
#include "training/data/batches.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

struct ThroughputSettings {
  int iterations = 100;
  int warmup = 20;            // steps at least
  double warmup_seconds = 0;  // at least, after the first step
  double learning_rate = 0.1;
};

/// How many steps more bring `elapsed_s`, which `steps` took, to `seconds`; 1 where none tells how
/// long it takes.
double steps_to_fill(double seconds, double elapsed_s, long steps);

/// Runs on every rank; the returned "step" record is complete on each.
Json measure_throughput(Engine& engine, BatchSource& batches, const ThroughputSettings& settings,
                        const MpiSession& session);

/// What names a configuration, repeated in every record of it.
struct Identity {
  std::string backend;
  std::string model;
  int image_size = 0;
  int classes = 0;
  std::string precision;
  std::optional<int> batch_size;  // not known where --global-batch does not divide
  int accumulate = 1;
  int world_size = 1;
  const StrategyOptions& strategy;
  std::string optimizer;
  std::string data;
  double throttle_gbs = 0;
};
Json fields_of(const Identity& identity);
Json identity_of(const EngineSettings& settings, const Backend& backend, const std::string& data);

/// Of ranks on one host, the bytes that each sent over NVLink by its GPU's counter, and by the
/// communicator's: whether the first are what was sent. Not where a counter cannot be read, nor
/// where it moved by much less than what was sent: some of that went another way then.
bool nvlink_tells(const std::vector<double>& over_nvlink, const std::vector<double>& counted);

/// Of the last step, averaged over the ranks that compute. Waits; every rank calls it.
double mean_loss(Engine& engine, const MpiSession& session);

/// Throws FailError when the last loss is not finite.
void check_loss(double first, double last);

/// The same for a "step" record, and when every timed step was skipped: nothing was trained.
void check_trained(const Json& step);

/// The lines for people.
std::string summary_of_step(const Json& step);

}  // namespace shakedown::training

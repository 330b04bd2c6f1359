// The throughput run: warm-up, N timed steps, and what they say.
#pragma once

#include <vector>

#include "common/backend.hpp"
#include "common/mpi_session.hpp"
#include "common/record.hpp"
#include "training/batches.hpp"
#include "training/engine.hpp"

namespace shakedown {

struct ThroughputSettings {
  int iterations = 100;
  int warmup = 20;
  double learning_rate = 0.1;
};

/// Runs on every rank; the returned "step" record is complete on each.
Json measure_throughput(Engine& engine, BatchSource& batches, const ThroughputSettings& settings,
                        const MpiSession& session);

/// The fields that name a configuration, repeated in every record of it.
Json identity_of(const EngineSettings& settings, const Backend& backend, const std::string& data);

/// Of ranks on one host, the bytes that each sent over NVLink by its GPU's counter, and by the
/// communicator's: whether the first are what was sent. Not where a counter cannot be read, nor
/// where it moved by much less than what was sent: some of that went another way then.
bool nvlink_tells(const std::vector<double>& over_nvlink, const std::vector<double>& counted);

/// Of the last step, averaged over the ranks that compute. Waits; every rank calls it.
double mean_loss(Engine& engine, const MpiSession& session);

/// Throws FailError when the loss is not finite.
void check_loss(const Json& step);

/// The lines for people.
std::string summary_of_step(const Json& step);

}  // namespace shakedown

// Measures configurations in turns, in one job, and holds each against `none` and against one rank
// alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/mpi_session.hpp"
#include "common/record.hpp"
#include "common/verdict.hpp"
#include "training/measure/profile.hpp"
#include "training/predict/model_inputs.hpp"
#include "training/programs/configurations.hpp"
#include "training/programs/dataset.hpp"

namespace shakedown::training {

/// What all configurations of a job share.
struct Job {
  const CompareOptions& options;
  const Dataset& data;
  Backend& backend;
  const MpiSession& session;
  Record& record;
  long epoch_images;
};

/// Of one configuration; complete on rank 0.
struct Result {
  Configuration configuration;
  Json identity;                      // what names it in every record
  std::vector<Json> steps;            // a "step" record of each round
  std::vector<Profile> profiles;      // of each round
  std::vector<Json> breakdowns;       // a "breakdown" record of each round
  Json certificate;                   // null until there is one
  std::optional<ModelInputs> inputs;  // of `none`
  std::string skipped;                // why it could not run
  std::string failure;                // what went wrong beyond the certificate

  bool measured() const { return !steps.empty(); }
};

/// Builds the first configuration on every rank, and drops it: the steps of a GPU process's first
/// network can be 2 % shorter than those of all that follow (docs/engineering/fast-step.md), which
/// would favour whichever is measured first. Every rank calls it.
void build_discarded_network(const Bench& bench, const Job& job);

/// Every configuration `repeats` times, in rounds. One that cannot run is left out, with its
/// reason; ranks that a configuration does not have wait. Writes the records. Every rank calls it.
std::vector<Result> compare(const Bench& bench, const Job& job);

Verdict verdict_of(const Result& result);

/// The last round's traces into one file, if there is to be one.
void write_traces(const std::string& path, const std::vector<Result>& results,
                  const MpiSession& session);

/// fail when a configuration failed; usage when of the strategies asked for none could run.
ExitCode exit_code_of(const std::vector<Result>& results, const std::vector<std::string>& asked);

}  // namespace shakedown::training

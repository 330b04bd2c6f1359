// The step model of a comparison, fitted to its results.
#pragma once

#include <vector>

#include "training/predict/link_cost.hpp"
#include "training/predict/what_if.hpp"
#include "training/programs/comparison.hpp"

namespace shakedown::training {

/// Medians over the rounds.
double median_over_rounds(const Result& result, double Breakdown::*term);
double step_ms_median(const Result& result);

const StepOptions& options_of(const Result& result);
int batch_of(const Result& result);

/// Results of one model and precision; none of settings, which the model does not describe.
using Group = std::vector<const Result*>;
std::vector<Group> groups_of(const std::vector<Result>& results);

/// `none` on the most ranks, of each batch; those whose links were timed.
std::vector<const Result*> bases_of(const Group& group);

/// The model for the base's batch, with the computing times of all bases.
StepModel model_of(const Group& group, const std::vector<const Result*>& bases, const Result& base);

struct Links {
  LinkFit ring, star;
};
Links fit_links(const Result& base);

/// The measurement of `result`, on these links.
Scenario scenario_of(const Result& result, const ModelInputs& inputs, const Links& links,
                     BackendKind backend);
/// Whether a rank that computes has the share of its host that it has in `none`: on the cpu backend
/// a server leaves cores and memory to the workers, so that their steps cannot be compared.
bool comparable_with_none(const Result& result, BackendKind backend);
/// Whether the model describes what ran.
bool model_describes(const Result& result);

}  // namespace shakedown::training

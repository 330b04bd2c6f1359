// The results of a comparison in sentences: pure functions of its results.
#pragma once

#include <string>
#include <vector>

#include "common/device.hpp"
#include "training/programs/comparison.hpp"

namespace shakedown::training {

/// Names the fastest of the strategies that exchange gradients on the most ranks and did not fail,
/// and by how much; several if their rounds overlap.
std::string sentence_of_fastest(const std::vector<Result>& results);
/// Where the time of the fastest one's step goes.
std::string sentence_of_time(const std::vector<Result>& results, BackendKind backend);
/// Which of its terms costs most: an upper bound of what can be gained.
std::string sentence_of_gain(const std::vector<Result>& results);
/// How far rounds of one configuration differ.
std::string sentence_of_noise(const std::vector<Result>& results);
/// The certificates; what failed, was not certified or was skipped, with its cause.
std::vector<std::string> sentences_of_failures(const std::vector<Result>& results);

/// All of them, one per line, wrapped.
std::string summary_of(const std::vector<Result>& results, BackendKind backend);

}  // namespace shakedown::training

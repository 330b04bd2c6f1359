// The settings that decide what a run of bin/train computes, for its checkpoints.
#pragma once

#include "training/checkpoint/checkpoint.hpp"
#include "training/data/image_source.hpp"
#include "training/data/input_times.hpp"
#include "training/step/engine_settings.hpp"

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::training {

/// Of the options and of what follows from them, the files and the number of ranks.
RunFacts run_facts(const OptionSet& options, const EngineSettings& settings, int ranks_computing,
                   const ImageSource& images, const InputSetup& input);

}  // namespace shakedown::training

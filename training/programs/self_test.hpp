// bin/train --self-test: whether this machine trains correctly, in under a minute.
#pragma once

#include "common/backend.hpp"
#include "common/error.hpp"
#include "common/record.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

struct TrainOptions;

/// A small network on generated images of 32x32 pixels.
EngineSettings self_test_settings(const TrainOptions& options, const Backend& backend);

/// Tests the collectives with known answers, the strategy against its reference, and 200 steps of
/// training: that the loss falls, that nothing diverges, and that the ranks' weights stay equal.
/// Prints and records a verdict for each. Collective.
ExitCode run_self_test(const EngineSettings& settings, Backend& backend, const MpiSession& session,
                       Record& record);

}  // namespace shakedown::training

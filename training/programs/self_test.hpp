// bin/train --self-test: whether this machine trains correctly, in under a minute.
#pragma once

#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/exit_code.hpp"
#include "common/record.hpp"
#include "training/measure/certificate.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

struct TrainOptions;

/// The result of 200 steps, over all ranks.
struct SelfTraining {
  std::vector<double> losses;  // means over 20 steps
  double top1 = 0;             // of the last 20
  int skipped = 0;             // steps
  std::string differed;        // when and how the ranks' weights differed first, or empty
};
Verdict verdict_on_loss(const SelfTraining& trained);
/// `unsound` is a tensor that is not finite, or empty.
Verdict verdict_on_stability(const SelfTraining& trained, const std::string& unsound);
Verdict verdict_on_gradients(const StrategyEntry& strategy, const Certificate& certificate,
                             const SelfTraining& trained);

/// A small network on generated images of 32x32 pixels.
EngineSettings self_test_settings(const TrainOptions& options, const Backend& backend);

/// Tests the strategy against its reference, and 200 steps of training: that the loss falls, that
/// nothing diverges, and that the ranks' weights stay equal. Prints and records a verdict for each.
/// Collective.
ExitCode run_self_test(const EngineSettings& settings, Backend& backend, const MpiSession& session,
                       Record& record);

}  // namespace shakedown::training

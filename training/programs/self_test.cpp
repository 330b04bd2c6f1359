#include "training/programs/self_test.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/hash.hpp"
#include "common/program.hpp"
#include "training/measure/throughput.hpp"
#include "training/programs/epochs.hpp"
#include "training/programs/train_options.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {
namespace {

constexpr int kWindow = 20;  // steps, over which loss and accuracy are averaged
constexpr int kWindows = 10;
constexpr int kBatches = 8;  // over and over
constexpr double kLearningRate = 0.02;

/// Noise with one bright quadrant, which is the class.
HostBatch generated(const NetworkSettings& shape, Random& random) {
  const auto n = static_cast<std::size_t>(shape.batch_size);
  const auto side = static_cast<std::size_t>(shape.image_size);
  HostBatch batch{std::vector<std::uint8_t>(n * side * side * 3), std::vector<std::int32_t>(n)};
  for (std::int32_t& label : batch.labels) label = static_cast<std::int32_t>(random.below(4));
  for (std::size_t i = 0; i < batch.images.size(); ++i) {
    const std::size_t pixel = i / 3 % (side * side);
    const std::size_t quadrant = pixel / side / (side / 2) * 2 + pixel % side / (side / 2);
    const bool bright = static_cast<std::size_t>(batch.labels[i / (3 * side * side)]) == quadrant;
    batch.images[i] = static_cast<std::uint8_t>((bright ? 100 : 0) + random.below(156));
  }
  return batch;
}

SelfTraining train(Engine& engine, BatchSource& batches, const MpiSession& session) {
  SelfTraining trained;
  Network& network = engine.model.network();
  batches.start_epoch(0);
  for (int window = 1; window <= kWindows; ++window) {
    network.zero_total_metrics();
    for (int i = 0; i < kWindow; ++i)
      engine.step.run([&](int) { batches.load_next(network); }, kLearningRate);
    engine.finish();
    const Metrics total = total_metrics(engine, session);
    const auto images = static_cast<double>(total.samples);
    trained.losses.push_back(total.loss_sum / images);
    trained.top1 = static_cast<double>(total.top1) / images;
    if (!engine.step.strategy_entry().ranks_agree || !trained.differed.empty()) continue;
    if (const std::string ranks = differing_ranks(engine, session); !ranks.empty())
      trained.differed = fmt::format("after step {} {}", window * kWindow, ranks);
  }
  trained.skipped =
      static_cast<int>(std::ranges::max(session.all_gather(engine.model.read_scalars().skipped)));
  return trained;
}

}  // namespace

Verdict verdict_on_loss(const SelfTraining& trained) {
  const double first = trained.losses.front();
  const double last = trained.losses.back();
  return {Scope::job, "training", last < first / 2 ? Outcome::pass : Outcome::fail,
          fmt::format("loss from {:.4f} to {:.4f}, top-1 {:.1f} %, in {} steps", first, last,
                      100 * trained.top1, kWindow * kWindows)};
}

Verdict verdict_on_stability(const SelfTraining& trained, const std::string& unsound) {
  const auto fails = [](const std::string& cause) {
    return Verdict{Scope::job, "stability", Outcome::fail, cause};
  };
  for (std::size_t window = 0; window < trained.losses.size(); ++window)
    if (!std::isfinite(trained.losses[window]))
      return fails(
          fmt::format("the loss is not finite by step {}", (window + 1) * std::size_t{kWindow}));
  if (!unsound.empty()) return fails(unsound + " is not finite");
  if (trained.skipped > 0)
    return fails(
        fmt::format("{} steps were skipped: their gradients were not finite", trained.skipped));
  return {Scope::job, "stability", Outcome::pass,
          fmt::format("{} steps: every loss and weight is finite, no step was skipped",
                      kWindow * kWindows)};
}

Verdict verdict_on_gradients(const StrategyEntry& strategy, const Certificate& certificate,
                             const SelfTraining& trained) {
  const auto verdict = [](Outcome outcome, const std::string& cause) {
    return Verdict{Scope::job, "gradient synchronisation", outcome, cause};
  };
  if (!trained.differed.empty()) return verdict(Outcome::fail, trained.differed);
  if (!certificate.applies()) return verdict(Outcome::inconclusive, certificate.waived);
  if (!certificate.passes())
    return verdict(certificate.outcome,
                   !certificate.cause.empty()
                       ? certificate.cause
                       : fmt::format("{} computes other weights than {}, in {}", strategy.name,
                                     certificate.reference, certificate.difference.tensor));
  return verdict(Outcome::pass,
                 fmt::format("{} averages the gradients of {} ranks, each once{}, equal on all "
                             "ranks in every bit",
                             strategy.name, certificate.census.ranks,
                             certificate.reference.empty()
                                 ? ""
                                 : ", and computes the weights of " + certificate.reference));
}

EngineSettings self_test_settings(const TrainOptions& options, const Backend& backend) {
  constexpr int kClasses = 4;
  TrainOptions small = options;
  small.model.model = "tiny";
  small.model.image_size = 32;
  small.model.autotune = false;
  small.batch_size = 16;
  return engine_settings(small, backend, kClasses);
}

ExitCode run_self_test(const EngineSettings& settings, Backend& backend, const MpiSession& session,
                       Record& record) {
  std::vector<Verdict> verdicts;
  const auto conclude = [&](Verdict verdict) {
    if (verdict.outcome == Outcome::inconclusive && session.world_size() == 1)
      verdict.action = "start two ranks or more: launch/mpi train --self-test";
    say(session, line_of(verdict));
    record.write("verdict", merged({{"backend", name_of(backend.kind)},
                                    {"transport", backend.world->transport()},
                                    {"world_size", session.world_size()}},
                                   record_of(verdict)));
    verdicts.push_back(std::move(verdict));
  };
  Engine engine(settings, backend);
  engine.allocate(ranks_on_device(backend, session));
  Random random(settings.seed_of(2000 + static_cast<std::uint64_t>(session.rank())));
  std::vector<HostBatch> few;
  for (int b = 0; b < kBatches; ++b) few.push_back(generated(settings.network, random));
  const auto batches = make_held_batches(engine.device(), engine.stream(), few);
  const Certificate certificate = certify(engine, *batches, kLearningRate, session);
  const SelfTraining trained = train(engine, *batches, session);
  conclude(verdict_on_loss(trained));
  conclude(verdict_on_gradients(engine.step.strategy_entry(), certificate, trained));
  conclude(verdict_on_stability(trained, unsound_weights(engine, session)));
  return worst(verdicts);
}

}  // namespace shakedown::training

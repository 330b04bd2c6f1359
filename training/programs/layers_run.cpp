#include "training/programs/layers_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/laps.hpp"
#include "common/program.hpp"
#include "common/progress.hpp"
#include "common/statistics.hpp"
#include "training/measure/layer_tables.hpp"

namespace shakedown::training {
namespace {

constexpr int kMostLogged = 20;  // steps: enough for a median

/// Trains this many steps after one that starts without another before it; the median step, ms.
template <class Step>
double median_step_ms(Engine& engine, int steps, Step&& step) {
  Laps laps(engine.device(), steps);
  for (int i = 0; i <= steps; ++i) {
    step();
    laps.mark(engine.stream());
  }
  engine.finish();
  return median_of(laps.milliseconds());
}

StepCalls measure(const Run& run, const LayersSettings& settings) {
  Engine& engine = run.engine;
  const MpiSession& session = run.session;
  EndlessBatches endless(run.batches);
  const int logged = std::min(settings.iterations, kMostLogged);
  const long all = settings.warmup + settings.iterations + logged + 3;
  say(session, fmt::format("layers: {} steps: {} timed whole (--iterations), {} call by call", all,
                           settings.iterations, logged));
  Progress progress("layers", all, "steps", session.is_root());
  long done = 0;
  const auto step = [&] {
    engine.step.run([&](int) { endless.load_next(engine.model.network()); },
                    settings.learning_rate);
    progress.update(++done);
  };
  step();
  const double loss_first = mean_loss(engine, session);
  for (int i = 1; i < settings.warmup; ++i) step();
  engine.finish();
  session.barrier();

  StepCalls measured;
  measured.roofs = engine.model.network().measure_roofs();
  session.barrier();
  measured.logged_steps = logged;
  measured.step_ms = median_step_ms(engine, settings.iterations, step);
  session.barrier();
  WorkLog& log = engine.model.network().work_log();
  log.start();
  step();
  engine.finish();  // as it watches the other ranks
  const std::size_t calls = log.stop().size();
  log.start(logged + 1);
  measured.logged_step_ms = median_step_ms(engine, logged, step);
  std::vector<TimedWork> works = log.stop();
  if (engine.step.computes()) {
    works.erase(works.begin(), works.begin() + static_cast<std::ptrdiff_t>(calls));
    measured.calls = median_step(works, logged);
    measured.calls_ms = median_sum_ms(works, logged);
  }
  check_loss(loss_first, mean_loss(engine, session));
  return measured;
}

/// The parts of a step that are not in the log of calls.
std::string rest_of(const Engine& engine) {
  const std::string& strategy = engine.settings().strategy.strategy;
  std::string rest = "copying the batch to the device, the step's scalars";
  if (engine.settings().accumulate > 1) rest += ", sums over micro-batches";
  if (strategy != "none")
    rest += fmt::format(", waiting for the exchange ({}, {} rank{})", strategy,
                        engine.world().size(), engine.world().size() == 1 ? "" : "s");
  return rest;
}

}  // namespace

ExitCode run_layers(const Run& run, const LayersSettings& settings) {
  if (run.engine.step.first_computing() != 0)
    throw UsageError(fmt::format(
        "--layers, --kernels: rank 0 reports, but computes nothing with --strategy {}: use "
        "another, or none",
        run.identity.strategy));
  const StepCalls step = measure(run, settings);
  const ParameterTable& table = run.engine.model.network().table();
  std::string text = text_of_roofs(step, run.identity.precision);
  if (settings.layers) {
    for (const LayerTime& layer : layer_times(step.calls, table, step.roofs))
      run.write("layer", record_of(layer, step));
    text += table_of_layers(step, table);
  }
  if (settings.kernels) {
    for (const KernelTime& kernel : kernel_times(step.calls, step.roofs))
      run.write("kernel", record_of(kernel, step));
    text += table_of_kernels(step);
  }
  say(run.session, text + account_of(step, rest_of(run.engine)));
  return ExitCode::pass;
}

}  // namespace shakedown::training

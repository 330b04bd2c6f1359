#include "training/programs/layers_run.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/program.hpp"
#include "common/progress.hpp"
#include "common/statistics.hpp"
#include "training/measure/layer_tables.hpp"
#include "training/measure/throughput.hpp"

namespace shakedown::training {
namespace {

constexpr int kMostLogged = 20;  // steps: they tell a median

/// Trains so many steps after one that starts without another before it; the median step, ms.
template <class Step>
double median_step_ms(Engine& engine, int steps, Step&& step) {
  std::vector<std::unique_ptr<Event>> marks;
  for (int i = 0; i <= steps; ++i) marks.push_back(engine.device().make_event());
  for (const auto& mark : marks) {
    step();
    mark->record(engine.stream());
  }
  engine.finish();
  std::vector<double> ms;
  for (std::size_t i = 1; i < marks.size(); ++i)
    ms.push_back(marks[i]->milliseconds_since(*marks[i - 1]));
  return median_of(ms);
}

StepCalls measure(Engine& engine, BatchSource& batches, const TrainOptions& options,
                  const MpiSession& session) {
  EndlessBatches endless(batches);
  const int logged = std::min(options.iterations, kMostLogged);
  const long all = options.warmup + options.iterations + logged + 3;
  Progress progress("layers", all, "steps", session.is_root());
  long done = 0;
  const auto step = [&] {
    engine.step.run([&](int) { endless.load_next(engine.model.network()); },
                    options.optimizer.learning_rate);
    progress.update(++done);
  };
  step();
  const double loss_first = mean_loss(engine, session);
  for (int i = 1; i < options.warmup; ++i) step();
  engine.finish();
  session.barrier();

  StepCalls measured;
  measured.roofs = engine.model.network().measure_roofs();
  session.barrier();
  measured.logged_steps = logged;
  measured.step_ms = median_step_ms(engine, options.iterations, step);
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

/// What of a step is no call that is told of.
std::string rest_of(const Engine& engine) {
  const std::string& strategy = engine.settings().strategy.strategy;
  std::string rest = "the batch's way to the device, the step's scalars";
  if (engine.settings().accumulate > 1) rest += ", sums over micro-batches";
  if (strategy != "none")
    rest += fmt::format(", where it waits for the exchange ({}, {} rank{})", strategy,
                        engine.world().size(), engine.world().size() == 1 ? "" : "s");
  return rest;
}

}  // namespace

ExitCode run_layers(Engine& engine, BatchSource& batches, const TrainOptions& options,
                    const Json& identity, const MpiSession& session, Record& record) {
  if (engine.step.first_computing() != 0)
    throw UsageError(fmt::format(
        "--layers, --kernels: rank 0 tells, but computes nothing with --strategy {}: take "
        "another, or none",
        engine.settings().strategy.strategy));
  const StepCalls step = measure(engine, batches, options, session);
  const ParameterTable& table = engine.model.network().table();
  std::string text = text_of_roofs(step, name_of(engine.settings().network.precision));
  if (options.layers) {
    for (const Json& layer : layer_fields(step, table))
      record.write("layer", merged(identity, layer));
    text += table_of_layers(step, table);
  }
  if (options.kernels) {
    for (const Json& kernel : kernel_fields(step)) record.write("kernel", merged(identity, kernel));
    text += table_of_kernels(step);
  }
  say(session, text + account_of(step, rest_of(engine)));
  return ExitCode::pass;
}

}  // namespace shakedown::training

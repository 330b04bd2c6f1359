#include "training/programs/throughput_run.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/program.hpp"
#include "common/text_table.hpp"
#include "training/measure/records.hpp"
#include "training/measure/throughput.hpp"
#include "training/programs/describe.hpp"
#include "training/programs/detector.hpp"
#include "training/programs/invariant.hpp"
#include "training/programs/records.hpp"

namespace shakedown::training {
namespace {

/// Whether the strategy computes what it must; pass where there is nothing to certify.
Outcome certified(const Run& run) {
  const Certificate certificate =
      certify(run.engine, run.batches, run.engine.learning_rate(), run.session);
  run.write("certificate", record_of(certificate));
  say(run.session, summary_of(certificate));
  return certificate.applies() ? certificate.outcome : Outcome::pass;
}

std::vector<judge::Observation> observe(const Run& run, const Throughput& measured,
                                        const Detector& detector, const Conditions& conditions) {
  if (!conditions) return {};
  constexpr int kMost = 30;
  const OwnCompute own = measure_own_compute(run.engine, std::min(measured.iterations, kMost),
                                             [&] { detector.delay(); });
  return observations_of(measured, own, run.identity, *conditions, run.engine.backend, run.session);
}

}  // namespace

ExitCode run_throughput(const Run& run, const TimingOptions& timing, const Conditions& conditions,
                        bool certifies, bool largest, const OutputFiles& files) {
  Engine& engine = run.engine;
  Detector detector(run);
  const Outcome certificate = certifies ? certified(run) : Outcome::pass;
  const std::optional<double> without_tree = rate_without_tree(run, timing);
  detector.start();
  const Throughput measured = measure_throughput(engine, run.batches, timing, run.session);
  const ExitCode detected = detector.finish();
  const bool sound =
      std::isfinite(measured.loss_last) && unsound_weights(engine, run.session).empty();
  const auto trained = sound ? state_to_save(files, engine) : std::vector<Tensor>();
  const auto observations = observe(run, measured, detector, conditions);
  const Trace trace = trace_steps(engine, run.batches, steps_to_trace(timing.iterations),
                                  engine.learning_rate(), run.session);  // trains on
  const ExchangeSums exchange = exchange_sums(trace);
  Json step = merged(record_of(measured), record_of(exchange));
  std::string summary = summary_of(measured);
  if (without_tree) {
    step["images_per_s_without_tree"] = *without_tree;
    summary += text_of_tree_cost(measured, *without_tree);
  }
  if (largest) {
    const LargestBatch batch = largest_batch_of(engine, run.session);
    step.update(record_of(batch));
    summary += summary_of(batch, measured);
  }
  run.write("step", merged(step, record_of(run.input)));
  const Breakdown breakdown = break_down(trace, nullptr);
  run.write("breakdown", record_of(breakdown));
  if (engine.step.strategy_entry().ranks_agree)
    for (const ExchangeTimes& bucket : bucket_times(trace)) run.write("bucket", record_of(bucket));
  for (const judge::Observation& observation : observations)
    run.record.write("metric", judge::record_of(observation));
  say(run.session, summary + summary_of(breakdown));
  if (sound) save(files, trained, run.session);
  write_trace(files, run, trace);
  check_trained(measured);
  const ExitCode certified_as = exit_code_of(certificate);
  return detected == ExitCode::pass || certificate == Outcome::fail ? certified_as : detected;
}

}  // namespace shakedown::training

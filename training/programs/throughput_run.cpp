#include "training/programs/throughput_run.hpp"

#include <fmt/format.h>

#include <cmath>

#include "common/program.hpp"
#include "training/measure/certificate.hpp"
#include "training/measure/profile.hpp"
#include "training/measure/throughput.hpp"
#include "training/measure/trace_file.hpp"
#include "training/measure/weights_check.hpp"
#include "training/programs/max_batch.hpp"

namespace shakedown::training {
namespace {

constexpr int kStepsOfTraining = 10;  // that are traced of a training

void write_if_asked(const TrainOptions& options, const Trace& trace, const MpiSession& session) {
  if (options.trace.empty() || !session.is_root()) return;
  const std::string label =
      fmt::format("{} on {} ranks", options.strategy.strategy, session.world_size());
  write_trace(options.trace, {{label, options.model.model, trace}}, session.hosts());
}

}  // namespace

ThroughputSettings throughput_settings(const TrainOptions& options, BackendKind kind) {
  return {options.iterations, options.warmup, warmup_seconds_of(options, kind),
          options.optimizer.learning_rate};
}

ExitCode run_throughput(Engine& engine, BatchSource& batches, const TrainOptions& options,
                        const Json& identity, const Metadata& metadata, const MpiSession& session,
                        Record& record) {
  const double learning_rate = options.optimizer.learning_rate;
  ExitCode result = ExitCode::pass;
  if (options.certificate) {
    const Json certificate = certify(engine, batches, learning_rate, session);
    record.write("certificate", merged(identity, certificate));
    say(session, summary_of_certificate(certificate));
    if (certificate.at("pass") == false) result = ExitCode::fail;
  }
  Json step = measure_throughput(engine, batches,
                                 throughput_settings(options, engine.device().kind()), session);
  const bool sound =
      std::isfinite(step.at("loss_last").get<double>()) && unsound_weights(engine, session).empty();
  const auto trained = sound ? state_to_save(options, engine) : std::vector<Tensor>();
  const Trace trace =  // which trains on
      trace_steps(engine, batches, steps_to_trace(options.iterations), learning_rate, session);
  step.update(exchange_fields(trace));
  if (options.max_batch) step.update(largest_batch_fields(engine.device(), session));
  record.write("step", merged(identity, step));
  const Json breakdown = breakdown_fields(trace, nullptr);
  record.write("breakdown", merged(identity, breakdown));
  std::vector<Json> buckets;
  if (engine.step.strategy_entry().ranks_agree) buckets = bucket_fields(trace);
  for (const Json& bucket : buckets) record.write("bucket", merged(identity, bucket));
  std::string summary = summary_of_step(step);
  if (options.max_batch) summary += summary_of_largest_batch(step, options.batch_size);
  say(session, summary + summary_of_breakdown(breakdown) + table_of_buckets(buckets));
  if (sound) save_if_asked(options, trained, metadata, session);
  write_if_asked(options, trace, session);
  check_trained(step);
  return result;
}

std::vector<Tensor> state_to_save(const TrainOptions& options, Engine& engine) {
  return options.save.empty() ? std::vector<Tensor>() : engine.model.state();
}

void save_if_asked(const TrainOptions& options, const std::vector<Tensor>& state,
                   const Metadata& metadata, const MpiSession& session) {
  if (!options.save.empty() && session.is_root()) write_safetensors(options.save, state, metadata);
}

void trace_beginning(Engine& engine, BatchSource& batches, const TrainOptions& options,
                     const MpiSession& session) {
  const Trace trace =
      trace_steps(engine, batches, kStepsOfTraining, options.optimizer.learning_rate, session);
  write_if_asked(options, trace, session);
  engine.model.restart();
}

}  // namespace shakedown::training

// bin/train: trains on an image folder (--epochs) or measures throughput (--iterations).
#include "common/identity.hpp"
#include "common/options.hpp"
#include "common/program.hpp"
#include "training/certificate.hpp"
#include "training/describe.hpp"
#include "training/epochs.hpp"
#include "training/profile.hpp"
#include "training/throughput.hpp"
#include "training/train_options.hpp"
#include "training/training_data.hpp"

namespace shakedown {
namespace {

ExitCode run(const TrainOptions& options, Backend& backend, MpiSession& session, Record& record) {
  TrainingData data(options);
  data.check_ranks_agree(session);
  Engine engine(engine_settings(options, backend, data.classes()), backend);
  say(session, headline(engine, backend, data.summary()));
  if (options.describe) {
    say(session, describe(engine));
    return ExitCode::pass;
  }
  if (!options.save.empty() && session.is_root()) check_writable(options.save);
  engine.allocate(backend.kind == BackendKind::cpu ? session.local_size() : 1);
  check_ranks_agree(engine, session, "at the start");
  say(session, engine.load_remark());
  data.open(engine.settings().network, backend, engine.stream());

  const Json identity = identity_of(engine.settings(), backend, data.name());
  const double learning_rate = options.optimizer.learning_rate;
  ExitCode result = ExitCode::pass;
  if (options.epochs >= 0) {
    train_epochs(engine, data.training(), data.batches_per_epoch(), data.validation(),
                 {options.epochs, learning_rate, options.schedule}, identity, session, record);
  } else {
    if (options.certificate) {
      const Json certificate = certify(engine, data.training(), learning_rate, session);
      record.write("certificate", merged(identity, certificate));
      say(session, summary_of_certificate(certificate));
      if (certificate.at("pass") == false) result = ExitCode::fail;
    }
    Json step = measure_throughput(engine, data.training(),
                                   {options.iterations, options.warmup, learning_rate}, session);
    const Trace trace = trace_steps(engine, data.training(), steps_to_trace(options.iterations),
                                    learning_rate, session);
    step.update(exchange_fields(trace));
    record.write("step", merged(identity, step));
    const Json breakdown = breakdown_fields(trace, nullptr);
    record.write("breakdown", merged(identity, breakdown));
    say(session, summary_of_step(step) + summary_of_breakdown(breakdown));
    check_loss(step);
  }
  if (engine.strategy_entry().ranks_agree) check_ranks_agree(engine, session, "at the end");
  if (!options.save.empty()) {
    const std::vector<Tensor> state = engine.state();
    if (session.is_root()) write_safetensors(options.save, state);
  }
  return result;
}

ExitCode train(MpiSession& session, int argc, char** argv) {
  TrainOptions options;
  OptionSet set("train", "Trains a ResNet data-parallel, or measures how fast it trains.");
  declare_options(set, options);
  if (const auto ending = set.parse(argc, argv)) return end_early(session, *ending);

  Backend backend = open_backend(options.backend, session);
  Record record(session.is_root() ? options.record : "");
  record.write("run", describe_run(set, session, backend));
  return recorded(record, [&] { return run(options, backend, session, record); });
}

}  // namespace
}  // namespace shakedown

int main(int argc, char** argv) { return shakedown::run_program(argc, argv, shakedown::train); }

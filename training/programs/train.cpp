// bin/train: trains on an image folder (--epochs) or measures throughput (--iterations).
#include "common/identity.hpp"
#include "common/options.hpp"
#include "common/output_file.hpp"
#include "common/program.hpp"
#include "training/measure/throughput.hpp"
#include "training/measure/weights_check.hpp"
#include "training/programs/describe.hpp"
#include "training/programs/epochs.hpp"
#include "training/programs/layers_run.hpp"
#include "training/programs/max_batch.hpp"
#include "training/programs/throughput_run.hpp"
#include "training/programs/train_options.hpp"
#include "training/programs/training_data.hpp"
#include "training/step/memory_budget.hpp"

namespace shakedown::training {
namespace {

ExitCode run(const TrainOptions& options, const Dataset& dataset, Backend& backend,
             MpiSession& session, Record& record) {
  Engine engine(engine_settings(options, backend, dataset.classes()), backend);
  say(session, headline(engine, backend, session.hosts(), dataset.summary()));
  if (options.describe) say(session, describe(engine));
  if (options.describe) return ExitCode::pass;
  for (const Output& output : {Output{"--save", options.save}, {"--trace", options.trace}})
    if (!output.path.empty() && session.is_root()) check_writable(output);
  engine.allocate(ranks_on_device(backend, session));
  check_weights(engine, session, "at the start");
  check_ranks_agree(engine, session, "at the start");
  say(session, text_of_start(engine));
  TrainingData data(options, dataset);
  data.open(engine.settings().network, backend, engine.stream());
  say(session, data.remark());
  const Json identity = identity_of(engine.settings(), backend, dataset.name());
  const Metadata metadata = dataset.metadata(options.model);
  ExitCode result = ExitCode::pass;
  if (options.layers || options.kernels) {
    result = run_layers(engine, data.training(), options, identity, session, record);
  } else if (options.epochs >= 0) {
    if (!options.trace.empty()) trace_beginning(engine, data.training(), options, session);
    train_epochs(engine, data.training(), data.batches_per_epoch(), data.validation(),
                 {options.epochs, options.optimizer.learning_rate, options.schedule}, identity,
                 session, record);
    save_if_asked(options, state_to_save(options, engine), metadata, session);
  } else {
    result = run_throughput(engine, data.training(), options, identity, metadata, session, record);
  }
  check_weights(engine, session, "at the end");
  if (engine.step.strategy_entry().ranks_agree) check_ranks_agree(engine, session, "at the end");
  return result;
}

ExitCode train(TrainOptions options, const OptionSet& set, MpiSession& session) {
  check_distinct(
      {{"--record", options.record}, {"--trace", options.trace}, {"--save", options.save}});
  Backend backend = open_backend(options.backend, session);
  take_saved_model(set, options);
  Record record(session.is_root() ? options.record : "");
  record.write("run", describe_run(set, session, backend));
  return recorded(record, [&] {
    const Dataset dataset(options);
    dataset.check_ranks_agree(session);
    const auto run_with = [&](const auto& o) { return run(o, dataset, backend, session, record); };
    if (!options.max_batch) return run_with(options);
    return at_largest_batch(options, dataset.classes(), backend, session, run_with);
  });
}

}  // namespace
}  // namespace shakedown::training

int main(int argc, char** argv) {
  using namespace shakedown;
  training::TrainOptions options;
  OptionSet set("train", "Trains a ResNet data-parallel, or measures how fast it trains.");
  training::declare_options(set, options);
  if (const auto code = parse_options(set, argc, argv)) return static_cast<int>(*code);
  return run_program(set, argc, argv, [&](auto& s) { return training::train(options, set, s); });
}

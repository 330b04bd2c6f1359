// bin/train: trains on an image folder (--epochs) or measures throughput (--iterations).
#include <nlohmann/json.hpp>

#include "common/identity.hpp"
#include "common/program.hpp"
#include "training/programs/describe.hpp"
#include "training/programs/epochs.hpp"
#include "training/programs/invariant.hpp"
#include "training/programs/loader_run.hpp"
#include "training/programs/self_test.hpp"
#include "training/programs/train_runs.hpp"

namespace shakedown::training {
namespace {

ExitCode run(const TrainOptions& options, const OptionSet& set, const Dataset& dataset,
             Backend& backend, MpiSession& session, Record& record) {
  Engine engine(run_settings(options, backend, dataset.classes()), backend);
  say(session, headline(engine, backend, session.hosts(), dataset.summary()));
  if (options.describe) return describe(engine, session);
  const OutputFiles files = output_files(options, dataset);
  if (session.is_root()) check_outputs(files);
  engine.allocate(ranks_on_device(backend, session));
  check_weights(engine, session, "at the start");
  check_ranks_agree(engine, session, "at the start");
  say(session, text_of_start(engine));
  TrainingData data(options.data, dataset);
  data.open(engine.settings(), backend, engine.stream());
  say(session, data.remark(batches_needed(options)));
  const Identity identity = identity_of(engine.settings(), backend, dataset.name());
  const Run run{engine, data.training(), identity,         session,
                record, data.setup(),    data.bad_count(), {options.detector, &set}};
  const ExitCode result =
      options.layers ? run_layers(run, options.timing)
      : options.evaluation.evaluate
          ? evaluate(run, *data.validation(), dataset.validation(), options.evaluation)
      : options.epochs > 0 ? run_training(run, options, set, dataset, data, files)
                           : run_throughput(run, options, files);
  say(session, data.bad_images_text());
  check_weights(engine, session, "at the end");
  if (engine.step.strategy_entry().ranks_agree) check_ranks_agree(engine, session, "at the end");
  say(session, text_of_report(options.record));
  return result;
}

ExitCode train(TrainOptions options, const OptionSet& set, MpiSession& session) {
  check_distinct(outputs_of(options));
  find_data(options);
  if (!options.pack.empty()) return pack_images(options, session);
  Backend backend = open_backend(options.backend, session);
  say(session, remarks_of(options, backend.kind));
  take_saved_model(set, options.model);
  divide_shards(options, session.world_size());
  Record record(session.is_root() ? record_or_launchers(options.record) : "");
  record.write("run", describe_run(set, session, backend));
  return recorded(record, [&] {
    if (!options.describe) lock_folder(options.checkpoints, record.run_id(), session);
    take_saved_decoder(options, session);
    if (options.self_test)
      return run_self_test(self_test_settings(options, backend), backend, session, record);
    const Dataset dataset(options.data, options.model, options.evaluation.evaluate, session);
    if (options.loader_only) return run_loader(options, dataset, backend, session, record);
    return at_requested_batch(options, dataset.classes(), backend, session, [&](const auto& o) {
      return run(o, set, dataset, backend, session, record);
    });
  });
}

}  // namespace
}  // namespace shakedown::training

int main(int argc, char** argv) {
  shakedown::training::TrainOptions options;
  shakedown::OptionSet set("train", "Trains a ResNet data-parallel, or times its steps.");
  declare_options(set, options);
  if (const auto code = parse_options(set, argc, argv)) return static_cast<int>(*code);
  using shakedown::training::train;  // an anonymous namespace is not found by arguments
  return run_program(set, argc, argv, [&](auto& s) { return train(options, set, s); });
}

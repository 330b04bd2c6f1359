// bin/train: trains on an image folder (--epochs) or measures throughput (--iterations).
#include <nlohmann/json.hpp>

#include "common/identity.hpp"
#include "common/program.hpp"
#include "training/programs/describe.hpp"
#include "training/programs/epochs.hpp"
#include "training/programs/run.hpp"
#include "training/programs/self_test.hpp"

namespace shakedown::training {
namespace {

ExitCode run(const TrainOptions& options, const OptionSet& set, const Dataset& dataset,
             Backend& backend, MpiSession& session, Record& record) {
  Engine engine(run_settings(options, backend, dataset.classes()), backend);
  say(session, headline(engine, backend, session.hosts(), dataset.summary()));
  if (options.describe) return describe(engine, session);
  if (session.is_root()) check_outputs(options, engine.model.network().table());
  engine.allocate(ranks_on_device(backend, session));
  check_weights(engine, session, "at the start");
  check_ranks_agree(engine, session, "at the start");
  say(session, text_of_start(engine));
  TrainingData data(options.data, dataset, engine.settings(), backend, engine.stream());
  say(session, data.remark(batches_needed(options)));
  const Identity identity =
      identity_of(options, engine.settings().network.batch_size, dataset.classes(),
                  session.world_size(), backend, dataset.name());
  const Run run{options, engine, data.training(), identity, session, record, &set, &data};
  const ExitCode result = options.layers ? run_layers(run)
                          : options.evaluate
                              ? evaluate(run, *data.validation(), dataset.validation())
                          : options.epochs > 0 ? run_training(run)
                                               : run_throughput(run);
  say(session, data.bad_images_text());
  check_weights(engine, session, "at the end");
  if (engine.step.strategy_entry().ranks_agree) check_ranks_agree(engine, session, "at the end");
  say(session, text_of_report(options.record));
  return result;
}

ExitCode train(TrainOptions options, const OptionSet& set, MpiSession& session) {
  check_files(options);
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
    const Dataset dataset(options.data, options.model, options.evaluate, session);
    if (options.loader_only) return run_loader(options, dataset, backend, session, record);
    return at_requested_batch(options, dataset.classes(), backend, session, [&](const auto& o) {
      return run(o, set, dataset, backend, session, record);
    });
  });
}

}  // namespace
}  // namespace shakedown::training

int main(int argc, char** argv) {
  using namespace shakedown;
  training::TrainOptions options;
  OptionSet set("train", "Trains a ResNet data-parallel, or times its steps.");
  training::declare_options(set, options);
  if (const auto code = parse_options(set, argc, argv)) return static_cast<int>(*code);
  return run_program(set, argc, argv, [&](auto& s) { return training::train(options, set, s); });
}

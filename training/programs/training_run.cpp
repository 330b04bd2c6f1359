#include "training/programs/training_run.hpp"

namespace shakedown::training {

ExitCode run_training(const Run& run, TrainingData& data, const TrainingSettings& settings,
                      const OutputFiles& files) {
  const bool writes = run.session.is_root();
  History history(writes ? settings.history.folder : "");
  ExitCode result = ExitCode::pass;
  {
    MlLog mllog(writes ? settings.mllog.file : "");
    trace_beginning(files, run, settings.epochs.learning_rate);
    mllog.begin(settings.facts);
    EpochSettings epochs = settings.epochs;
    epochs.after_epoch = [&](const EpochResult& result) {
      history.add(result);
      mllog.add(result);
    };
    result = train_epochs(run, data.batches_per_epoch(), data.validation(), epochs);
  }
  if (result == ExitCode::stopped) return result;
  save(files, state_to_save(files, run.engine), run.session);
  history.draw_curves();
  return result;
}

}  // namespace shakedown::training

#include "training/programs/training_run.hpp"

namespace shakedown::training {

void run_training(const Run& run, TrainingData& data, const TrainingSettings& settings,
                  const OutputFiles& files) {
  const bool writes = run.session.is_root();
  History history(writes ? settings.history.folder : "");
  {
    MlLog mllog(writes ? settings.mllog.file : "");
    trace_beginning(files, run, settings.epochs.learning_rate);
    mllog.begin(settings.facts);
    EpochSettings epochs = settings.epochs;
    epochs.after_epoch = [&](const EpochResult& result) {
      history.add(result);
      mllog.add(result);
    };
    train_epochs(run, data.batches_per_epoch(), data.validation(), epochs);
  }
  save(files, state_to_save(files, run.engine), run.session);
  history.draw_curves();
}

}  // namespace shakedown::training

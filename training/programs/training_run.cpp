#include "training/programs/training_run.hpp"

#include "training/programs/detector.hpp"

namespace shakedown::training {

ExitCode run_training(const Run& run, TrainingData& data, const TrainingSettings& settings,
                      const OutputFiles& files) {
  Detector detector(run);
  trace_beginning(files, run, settings.epochs.learning_rate);
  run.write("training", merged(settings.fields, {{"init_stop_ms", unix_ms()}}));
  detector.start(data.batches_per_epoch() / run.engine.settings().accumulate);
  const TrainingEnd end =
      train_epochs(run, data.batches_per_epoch(), data.validation(), settings.epochs);
  const ExitCode detected = detector.finish();
  if (!end.complete) return end.code;
  save(files, state_to_save(files, run.engine), run.session);
  return end.code == ExitCode::pass ? detected : end.code;
}

}  // namespace shakedown::training

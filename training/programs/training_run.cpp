#include "training/programs/training_run.hpp"

#include <cstdio>

#include "common/error.hpp"
#include "training/programs/detector.hpp"

namespace shakedown::training {

ExitCode run_training(const Run& run, TrainingData& data, const TrainingSettings& settings,
                      const OutputFiles& files) {
  const bool writes = run.session.is_root();
  History history(writes ? settings.history.folder : "");
  Detector detector(run);
  TrainingEnd end;
  ExitCode detected = ExitCode::pass;
  bool written = true;  // what comes before and after epochs
  {
    MlLog mllog(writes ? settings.mllog : MlLogOptions(),
                continues(settings.epochs.checkpoints.options));
    trace_beginning(files, run, settings.epochs.learning_rate);
    mllog.begin(settings.facts);
    EpochSettings epochs = settings.epochs;
    const auto write = [&](auto&& lines) {
      try {
        lines();
      } catch (const InconclusiveError& error) {  // a full disk: the training is worth more
        std::fprintf(stderr, "error: %s\n", error.what());
        written = false;
      }
    };
    epochs.before_first = [&](int epoch) {
      write([&] { history.continue_at(epoch); });
      write([&] { mllog.continue_at(epoch); });
    };
    epochs.after_epoch = [&](const EpochResult& result) {
      write([&] { history.add(result); });
      write([&] { mllog.add(result); });
    };
    detector.start(data.batches_per_epoch() / run.engine.settings().accumulate);
    end = train_epochs(run, data.batches_per_epoch(), data.validation(), epochs);
    detected = detector.finish();
  }
  if (!end.complete) return end.code;
  save(files, state_to_save(files, run.engine), run.session);
  history.draw_curves();
  const bool all_written = run.session.all_gather(written ? 1.0 : 0.0).front() > 0;
  if (end.code != ExitCode::pass) return end.code;
  return all_written ? detected : ExitCode::inconclusive;
}

}  // namespace shakedown::training

// The checkpoints of one training: where it starts, what it writes and when, when it stops.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "training/checkpoint/checkpoint_file.hpp"
#include "training/checkpoint/folder_lock.hpp"
#include "training/checkpoint/requests.hpp"
#include "training/checkpoint/snapshot.hpp"
#include "training/data/bad_images.hpp"

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::training {

struct CheckpointOptions {
  std::string dir;  // empty: none are written
  int every_epochs = 1;
  double minutes = 0;  // between two within an epoch; 0: none
  std::string resume = "auto";
  double signal_lead_s = 0;  // from the signal to the end of the job; 0: not known
  std::shared_ptr<FolderLock> lock =
      nullptr;  // of the folder; null: other trainings leave it alone
};
void declare_options(OptionSet& options, CheckpointOptions& values);
/// Makes the folder and takes its lock, before anything in it is read. Throws UsageError where
/// another training holds it, or the checkpoint that --resume names. Collective.
void lock_folder(CheckpointOptions& options, const std::string& run_id, const MpiSession& session);
/// Whether a training with these options continues an earlier one, as far as the disk shows.
bool continues(const CheckpointOptions& options);
/// A fixed fact of the checkpoint that a training with these options continues from; "" where there
/// is none that can be read.
std::string saved_fact(const CheckpointOptions& options, const std::string& name);

struct CheckpointSettings {
  CheckpointOptions options;
  RunFacts facts;
  Metadata metadata;                // of the network
  BadImages* bad_images = nullptr;  // of training, where there are any; outlives the training
};

/// One that was written, or was to be.
struct CheckpointReport {
  TrainingPosition position;
  bool best = false;
  double stall_ms = 0;  // of the training
  double write_s = 0;   // in the background
  std::uint64_t bytes = 0;
  std::vector<std::string> files = {};  // that were written, by name
  std::string error = {};               // why the next one was not; empty: all were
};
/// Writes files of these names, up to one that cannot be written.
void write_files(CheckpointReport& report, const CheckpointOptions& options,
                 const std::vector<std::string>& names, const Checkpoint& checkpoint);

/// Every function is collective.
class Checkpoints {
 public:
  Checkpoints(CheckpointSettings settings, Engine& engine, const MpiSession& session);

  /// Gives the engine the state of the checkpoint that --resume names, if there is one.
  TrainingPosition resume();

  // Whether the training is to stop. Then its state has been written, as it was at `at`.

  bool stop_after_update(const TrainingPosition& at);
  bool stop_between(const TrainingPosition& at);
  /// After a batch of a validation: whether it is to be abandoned, and stop() called.
  bool stops_validation();
  /// `at` is the end of the epoch's training, and the engine as it was then.
  void stop(const TrainingPosition& at) { obey(Request::stop, at); }
  /// `at` is the beginning of the next epoch. `best`: no validation before was as good.
  bool stop_after_epoch(const TrainingPosition& at, bool best, bool last);

  /// The writes since the last call, on rank 0.
  std::vector<CheckpointReport> reports();
  /// Waits for what is being written. 3 where something could not be, or the training has stopped
  /// for that, 5 where it was stopped.
  ExitCode finish();

 private:
  bool active() const { return !settings_.options.dir.empty(); }
  bool obey(Request request, const TrainingPosition& at);
  void save(const TrainingPosition& at, bool latest, bool best);
  void note_stop();
  void give_up(const std::string& why);
  void wait_for_write();
  void collect();
  double seconds_to_stop(const CheckpointReport& report) const;
  void say_continues(const std::string& file, const CheckpointState& state,
                     const std::vector<std::string>& changes) const;
  std::string summary() const;

  CheckpointSettings settings_;
  Engine& engine_;
  const MpiSession& session_;
  std::optional<Requests> requests_;
  std::optional<Snapshot> snapshot_;
  bool stopped_ = false;
  bool save_after_validation_ = false;
  // On rank 0.
  std::future<CheckpointReport> writing_;  // after the snapshot, which it reads
  std::vector<CheckpointReport> written_;
  std::size_t reported_ = 0;
  int failures_ = 0;  // since one was written
  bool gave_up_ = false;
};

}  // namespace shakedown::training

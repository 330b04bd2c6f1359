// The checkpoints of one training: where it starts, what it writes and when, when it stops.
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/exit_code.hpp"
#include "common/mpi_session.hpp"
#include "training/checkpoint/checkpoint_file.hpp"
#include "training/checkpoint/folder_lock.hpp"
#include "training/checkpoint/snapshot.hpp"
#include "training/data/source.hpp"

namespace shakedown::training {

// When to write a checkpoint, and when to stop: signals to any rank, files in the folder, time. All
// ranks decide alike at the same step.

enum class Request { none, save, stop };  // the strongest is the highest

class Requests {
 public:
  /// Files named SAVE and STOP in `dir` request what they are named after, and are removed. A
  /// checkpoint is due every `minutes`; 0: never. Ranks may be `slack` steps apart. Collective.
  Requests(const MpiSession& session, const std::string& dir, double minutes, int slack);

  /// After an update, or a batch of a validation: what some rank noticed some of them ago; no rank
  /// waits. Collective.
  Request after_step() { return static_cast<Request>(agreement_.step(noticed())); }
  /// The requests that any rank has noticed by now. Collective.
  Request now() { return static_cast<Request>(agreement_.settle(noticed())); }
  /// A checkpoint was written for another reason: the next is due `minutes` from now.
  void saved() { saved_ = Clock::now(); }
  /// From now on this rank requests to stop.
  void stop(const std::string& why) {
    if (stop_.empty()) stop_ = why;
  }

  /// "SIGUSR2 to rank 1", once stop was agreed. Collective.
  std::string reason() const;
  /// Since this rank noticed that it is to stop; 0 before.
  double seconds_since_notice() const;
  /// Steps from a notice to its effect.
  int lag() const { return agreement_.lag(); }
  /// The longest time in which this rank noticed nothing, as it was between two of these calls.
  double longest_gap_s() const { return longest_gap_.count(); }

 private:
  using Clock = std::chrono::steady_clock;
  int noticed();
  void look_at_files();
  bool take_file(const char* name) const;

  const MpiSession& session_;
  const std::string dir_;
  const std::chrono::duration<double> period_;
  StopSignals signals_;
  MpiAgreement agreement_;
  Clock::time_point saved_ = Clock::now();
  Clock::time_point looked_{};
  Clock::time_point noticed_{};
  std::chrono::duration<double> longest_gap_{0};
  Clock::time_point stop_noticed_{};
  bool save_ = false;
  std::string stop_;  // why
};

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
  std::uint64_t save_bytes = 0;     // of --save, if to the file system of the checkpoints
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
Json record_of(const CheckpointReport& written);
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
  /// `at` is the beginning of the next epoch. `top1`: of the validation; kNoTop1: there was none.
  bool stop_after_epoch(TrainingPosition at, double top1, bool last);

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
  int failures_ = 0;              // since one was written
  double best_top1_ = kNoTop1;    // of the best checkpoint, which may be under way
  double before_best_ = kNoTop1;  // of the one before it
  bool gave_up_ = false;
};

// Whether a training may continue from a checkpoint, and what will differ if it does.

/// The order of the images is a function of seed, epoch and position, and an update uses one global
/// batch of them: with the same facts a training continues on the same images on any number of
/// ranks. Throws UsageError naming `file` and every fixed fact that differs. Returns the options
/// that do, as "learning_rate 0.1 (was 0.2)".
std::vector<std::string> check_continues(const RunFacts& saved, const RunFacts& now,
                                         const std::string& file);

}  // namespace shakedown::training

// Checkpoints in a folder: each name in two generations, written whole or not at all, and verified
// when they are read.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/record.hpp"
#include "resnet/tensor_file.hpp"
#include "resnet/units.hpp"
#include "training/checkpoint/folder_lock.hpp"
#include "training/data/loader.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {

// The contents of a checkpoint: all that a training needs to continue as if it had not stopped.

inline constexpr double kNoTop1 = -1;

/// How far a training has come. Images count when their update was applied, not when they were
/// loaded.
struct TrainingPosition {
  int epoch = 1;            // under way
  long update = 0;          // updates of it that are done
  std::int64_t images = 0;  // that updates have used since the start
  // For the epoch's record.
  double seconds = 0;          // of training in the epoch so far
  int skipped_before = 0;      // steps that were skipped in earlier epochs
  double best_top1 = kNoTop1;  // of the best checkpoint; kNoTop1: there is none
  InputTimes input = {};       // this rank's, in the epoch so far
};

/// The settings that decide what a run computes, as text by name.
struct RunFacts {
  /// Those that must be the same where the training continues, such as "--seed".
  std::map<std::string, std::string> fixed;
  /// Other options, whose changes are reported.
  std::map<std::string, std::string> options;
};

/// The numbers that each rank has of its own.
struct RankNumbers {
  StepScalars scalars;
  Metrics metrics;   // of the epoch so far
  InputTimes input;  // the same
};

/// A checkpoint but for its tensors.
struct CheckpointState {
  TrainingPosition position;
  RunFacts facts;
  int first_computing = 0;         // the rank whose running statistics a network has that is loaded
  std::vector<RankNumbers> ranks;  // one per rank
  std::vector<std::size_t> bad_images = {};  // of training, on all ranks
  std::string run_id = {};                   // of the run that wrote it; empty: not known
};

std::string text_of(const CheckpointState& state);
/// Throws UsageError where the text is not what text_of() writes.
CheckpointState state_of(const std::string& text);

/// The tensors of a .safetensors file: the network's by torchvision's names, so that PyTorch loads
/// them, and the training's, whose names begin with kTrainingState.
struct Checkpoint {
  CheckpointState state;
  std::vector<Tensor> tensors;
  Metadata metadata = {};  // of the network
};

/// Of the state and every tensor's name and values: FNV-1a over 64-bit words.
std::string checksum_of(const std::string& state, const std::vector<Tensor>& tensors);

inline constexpr const char* kLatest = "checkpoint_latest";
inline constexpr const char* kBest = "checkpoint_best";

/// DIR/NAME.safetensors.
std::string checkpoint_path(const std::string& dir, const std::string& name);
/// DIR/NAME.previous.safetensors, which it was before the last one was written.
std::string previous_path(const std::string& dir, const std::string& name);

/// Whether a file of this name, of either generation, is there, sound or not.
bool has_checkpoint(const std::string& dir, const std::string& name);
/// The paths of all, sound or not, the newest first: a best one is newer than the latest where no
/// latest was due since (--checkpoint-every).
std::vector<std::string> checkpoints_in(const std::string& dir);

/// Removes what runs that were killed have left over of files that they wrote. The folder's lock is
/// held.
void remove_partials(const std::string& dir);
/// Writes a file next to the one of this name, on the disk before it takes its place; that one
/// becomes the previous one. At no moment is none of the two names a sound file's. Returns its
/// bytes. Throws InconclusiveError naming the file: then the one before is kept. `lock`: the
/// folder's, checked before the file takes its place.
std::uint64_t write_checkpoint(const std::string& dir, const std::string& name,
                               const Checkpoint& checkpoint, FolderLock* lock = nullptr);

/// Throws UsageError naming the file and what is wrong with it: it is no checkpoint, or not what
/// was written.
Checkpoint read_checkpoint(const std::string& path);

/// The state in a checkpoint, without reading its tensors; throws as read_checkpoint.
CheckpointState read_state(const std::string& path);

struct FoundCheckpoint {
  std::string path;
  Checkpoint checkpoint;
  std::map<std::string, std::string> refused;  // newer ones, and what is wrong with each
};
/// The newest sound one; none where there is no such file. Throws UsageError where there are some
/// and none is sound.
std::optional<FoundCheckpoint> find_checkpoint(const std::string& dir);
/// Renames a checkpoint that was refused, so that it becomes nobody's previous one, and returns its
/// new path.
std::string set_aside(const std::string& path);

}  // namespace shakedown::training

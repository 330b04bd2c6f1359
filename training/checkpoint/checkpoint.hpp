// The contents of a checkpoint: all that a training needs to continue as if it had not stopped.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/record.hpp"
#include "resnet/tensor_file.hpp"
#include "resnet/units.hpp"
#include "training/data/input_times.hpp"
#include "training/exchange/step_scalars.hpp"

namespace shakedown::training {

/// How far a training has come. Images count when their update was applied, not when they were
/// loaded.
struct TrainingPosition {
  int epoch = 1;            // under way
  long update = 0;          // updates of it that are done
  std::int64_t images = 0;  // that updates have used since the start
  // For the epoch's record.
  double seconds = 0;      // of training in the epoch so far
  int skipped_before = 0;  // steps that were skipped in earlier epochs
  double best_top1 = -1;   // of all validations; -1: there was none
  InputTimes input = {};   // this rank's, in the epoch so far
};

/// The settings that decide what a run computes, as text by name.
struct RunFacts {
  /// Those that must be the same where the training continues, such as "--seed".
  std::vector<std::pair<std::string, std::string>> fixed;
  /// Other options, whose changes are reported.
  std::vector<std::pair<std::string, std::string>> options;
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

}  // namespace shakedown::training

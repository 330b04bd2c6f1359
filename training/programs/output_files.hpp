// The files that a run of bin/train leaves next to its record.
#pragma once

#include <string>
#include <vector>

#include "resnet/tensor_file.hpp"
#include "training/programs/run.hpp"

namespace shakedown::training {

/// Empty paths: none.
struct OutputFiles {
  std::string save;    // weights, .safetensors
  std::string trace;   // of some steps, for Perfetto
  std::string logits;  // of --evaluate, .safetensors
  Metadata metadata;   // of the weights
};

/// Throws UsageError where one cannot be written.
void check_writable(const OutputFiles& files);

/// The weights as they are, if they are to be saved; else none. Collective.
std::vector<Tensor> state_to_save(const OutputFiles& files, Engine& engine);
/// Writes them, on rank 0.
void save(const OutputFiles& files, const std::vector<Tensor>& state, const MpiSession& session);

/// Writes the trace, on rank 0, if it was requested.
void write_trace(const OutputFiles& files, const Run& run, const Trace& trace);
/// Traces the first steps of a training, if requested, and restarts it. Collective.
void trace_beginning(const OutputFiles& files, const Run& run, double learning_rate);

}  // namespace shakedown::training

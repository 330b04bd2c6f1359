#include "training/programs/output_files.hpp"

#include <fmt/format.h>

#include "common/output_file.hpp"
#include "training/measure/trace_file.hpp"

namespace shakedown::training {
namespace {

constexpr int kTracedSteps = 10;  // of a training

}  // namespace

void check_writable(const OutputFiles& files) {
  for (const Output& output :
       {Output{"--save", files.save}, {"--trace", files.trace}, {"--logits", files.logits}})
    if (!output.path.empty()) shakedown::check_writable(output);
}

std::vector<Tensor> state_to_save(const OutputFiles& files, Engine& engine) {
  if (files.save.empty()) return {};
  return engine.model.averages_weights() ? engine.model.average_state() : engine.model.state();
}

void save(const OutputFiles& files, const std::vector<Tensor>& state, const MpiSession& session) {
  if (!files.save.empty() && session.is_root())
    write_safetensors({"--save", files.save}, state, files.metadata);
}

void write_trace(const OutputFiles& files, const Run& run, const Trace& trace) {
  if (files.trace.empty() || !run.session.is_root()) return;
  const std::string label =
      fmt::format("{} on {} ranks", run.identity.strategy, run.session.world_size());
  write_trace(files.trace, {{label, run.identity.model, trace}}, run.session.hosts());
}

void trace_beginning(const OutputFiles& files, const Run& run, double learning_rate) {
  if (files.trace.empty()) return;
  write_trace(files, run,
              trace_steps(run.engine, run.batches, kTracedSteps, learning_rate, run.session));
  run.engine.model.restart();
}

}  // namespace shakedown::training

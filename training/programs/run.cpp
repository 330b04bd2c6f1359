#include "training/programs/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "common/options.hpp"
#include "common/text_table.hpp"
#include "training/measure/neighbour_check.hpp"
#include "training/measure/trace_file.hpp"

namespace shakedown::training {

void Run::write(const char* kind, const Json& fields) const {
  record.write(kind, merged(record_of(identity), fields));
}

namespace {

constexpr int kTracedSteps = 10;  // of a training

}  // namespace

void check_outputs(const OutputFiles& files) {
  for (const Output& output :
       {Output{"--save", files.save}, {"--trace", files.trace}, {"--logits", files.logits}})
    if (!output.path.empty()) check_writable(output);
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

void take_saved_decoder(TrainOptions& options, const MpiSession& session) {
  std::string& decoder = options.data.decoder;
  if (options.epochs == 0 || decoder != "auto") return;
  const std::string saved =
      session.is_root() ? saved_fact(options.checkpoints, "--decoder") : std::string();
  const std::string of_root = session.all_gather(saved).front();
  if (!of_root.empty()) decoder = of_root;
}

std::string remarks_of(const TrainOptions& options, BackendKind backend) {
  const auto precision = precision_remark("--precision", {options.model.precision}, backend);
  const std::string data = wrapped(options.data.remark, 2);
  return precision + (precision.empty() || data.empty() ? "" : "\n") + data;
}

EngineSettings run_settings(const TrainOptions& options, const Backend& backend, int classes) {
  EngineSettings settings = engine_settings(options, backend, classes);
  if (settings.no_graph.empty() && options.layers) settings.no_graph = "--layers times each call";
  settings.input_bytes = input_bytes(options.data, settings, backend);
  if (options.detector.check_neighbour > 0)
    settings.input_bytes = [input = settings.input_bytes,
                            kind = backend.kind](const NetworkSettings& shape) {
      return input(shape) + kept_batch_bytes(shape, kind);
    };
  return settings;
}

std::vector<Output> outputs_of(const TrainOptions& options) {
  return {{"--record", options.record},
          {"--trace", options.trace},
          {"--save", options.save},
          {"--logits", options.evaluation.logits}};
}

OutputFiles output_files(const TrainOptions& options, const Dataset& dataset) {
  return {options.save, options.trace, options.evaluation.logits, dataset.metadata(options.model)};
}

long batches_needed(const TrainOptions& options) {
  if (options.epochs > 0 || options.evaluation.evaluate) return 0;
  return (static_cast<long>(options.timing.iterations) + options.timing.warmup) *
         options.accumulate;
}

namespace {

/// Options that must be the same, where the program has them; others follow below.
const std::set<std::string> kFixed{"model",   "image_size", "seed",       "optimizer",
                                   "augment", "exif",       "grad_dtype", "invariant"};
/// Options that change nothing of what is computed, or that a fact below stands for.
const std::set<std::string> kFree{"backend",
                                  "precision",
                                  "iterations",
                                  "warmup",
                                  "weights",
                                  "warmup_seconds",
                                  "global_batch",
                                  "classes",
                                  "val_dir",
                                  "train_dir",
                                  "data_dir",
                                  "cache",
                                  "max_bad_images",
                                  "recipe",
                                  "workers",
                                  "prefetch",
                                  "record",
                                  "trace",
                                  "save",
                                  "describe",
                                  "timeout",
                                  "checkpoint_dir",
                                  "checkpoint_every",
                                  "resume",
                                  "signal_lead",
                                  "checkpoint_minutes",
                                  "decoder",
                                  "loader_only"};

/// As it is given.
std::string flag_of(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return "--" + name;
}

std::string text_of(const OptionValue& option) {
  return std::visit(
      [](const auto& value) {
        const Json json = value;
        return json.is_string() ? json.get<std::string>() : json_text(json);
      },
      option.value);
}

}  // namespace

RunFacts run_facts(const OptionSet& options, const EngineSettings& settings, int ranks_computing,
                   const ImageSource& images, const InputSetup& input) {
  const int batch = settings.network.batch_size * settings.accumulate * ranks_computing;
  RunFacts facts;
  facts.fixed = {
      {"global batch", std::to_string(batch)},
      {"classes", std::to_string(settings.network.classes)},
      {"images", fmt::format("{}, listing {:016x}", images.size(), images.listing_checksum())},
      {"--precision", name_of(settings.network.precision)},
      {"--ema", settings.ema.ema > 0 ? "on" : "off"},
      {"--decoder", input.decoder},
      // of checkpoints that were written when these were options
      {"--decoder-share", input.decoder == "cpu" ? "0" : "100"},
      {"--scaled-decode", "off"}};
  for (const OptionValue& option : options.values()) {
    if (kFixed.contains(option.name))
      facts.fixed.emplace_back(flag_of(option.name), text_of(option));
    else if (option.name == "batch_size")  // or what --global-batch makes of it
      facts.options.emplace_back(flag_of(option.name), std::to_string(settings.network.batch_size));
    else if (!kFree.contains(option.name))
      facts.options.emplace_back(flag_of(option.name), text_of(option));
  }
  return facts;
}

}  // namespace shakedown::training

#include "training/programs/run.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "common/options.hpp"
#include "common/output_file.hpp"
#include "common/program.hpp"
#include "common/text_table.hpp"
#include "training/measure/breakdown.hpp"
#include "training/measure/neighbour_check.hpp"
#include "training/measure/throughput.hpp"
#include "training/programs/describe.hpp"
#include "training/programs/detector.hpp"
#include "training/programs/epochs.hpp"

namespace shakedown::training {

void Run::write(const char* kind, const Json& fields) const {
  record.write(kind, merged(record_of(identity), fields));
}

Json Run::input() const { return record_of(data == nullptr ? InputSetup() : data->setup()); }

namespace {

/// The weights as they are, if they are to be saved; else none. Collective.
std::vector<Tensor> state_to_save(const Run& run) {
  if (run.options.save.empty()) return {};
  ModelState& model = run.engine.model;
  return model.averages_weights() ? model.average_state() : model.state();
}

/// Writes them, on rank 0.
void save(const Run& run, const std::vector<Tensor>& state) {
  if (!run.options.save.empty() && run.session.is_root())
    write_safetensors({"--save", run.options.save}, state,
                      run.data->dataset().metadata(run.options.model));
}

/// On rank 0, if it was requested.
void write_trace(const Run& run, const Trace& trace) {
  if (run.options.trace.empty() || !run.session.is_root()) return;
  const std::string label =
      fmt::format("{} on {} ranks", run.identity.strategy, run.session.world_size());
  training::write_trace(run.options.trace, {{label, run.identity.model, trace}},
                        run.session.hosts());
}

/// Options that the conditions of its `metric` lines have in addition to an Identity: those of
/// references, and what costs time where it is not the default, which references do not have.
std::map<std::string, std::string> conditions_of(const TrainOptions& options) {
  const auto text = [](bool value) { return value ? "true" : "false"; };
  std::map<std::string, std::string> conditions{
      {"fusion", options.model.fusion},
      {"deterministic", text(options.model.deterministic)},
      {"autotune", text(options.model.autotune)},
      {"check_neighbour", std::to_string(options.detector.check_neighbour)}};
  const StepOptions usual;
  const auto add = [&](const char* name, const auto& value, const auto& default_value) {
    if (value != default_value) conditions[name] = fmt::format("{}", value);
  };
  add("no_overlap", options.strategy.no_overlap, usual.strategy.no_overlap);
  add("bucket_order", options.strategy.bucket_order, usual.strategy.bucket_order);
  add("small_bucket_mb", options.strategy.small_bucket_mb, usual.strategy.small_bucket_mb);
  add("norm_stats", options.strategy.norm_stats, usual.strategy.norm_stats);
  add("clip_grad_norm", options.optimizer.clip_grad_norm, usual.optimizer.clip_grad_norm);
  add("ema", options.ema.ema, usual.ema.ema);
  add("recompute", options.model.recompute, usual.model.recompute);
  return conditions;
}

/// Whether the strategy computes what it must; pass where there is nothing to certify.
Outcome certified(const Run& run) {
  const Certificate certificate =
      certify(run.engine, run.batches, run.engine.learning_rate(), run.session);
  run.write("certificate", record_of(certificate));
  say(run.session, summary_of(certificate));
  return certificate.applies() ? certificate.outcome : Outcome::pass;
}

/// None where there is no record.
std::vector<judge::Observation> observe(const Run& run, const Throughput& measured,
                                        const Detector& detector) {
  if (run.options.record.empty()) return {};
  constexpr int kMost = 30;
  const OwnCompute own = measure_own_compute(run.engine, std::min(measured.iterations, kMost),
                                             [&] { detector.delay(); });
  return observations_of(measured, own, run.identity, conditions_of(run.options),
                         run.engine.backend, run.session);
}

/// Images/s of the same steps by plain all-reduce, for comparison; none without --invariant. The
/// engine is at the start again. Collective.
std::optional<double> rate_without_tree(const Run& run, TimingOptions timing) {
  constexpr int kSteps = 20;
  const StrategyOptions own = run.engine.settings().strategy;
  if (own.invariant == 0) return std::nullopt;
  StrategyOptions plain = own;
  plain.invariant = 0;
  timing.iterations = std::min(timing.iterations, kSteps);
  run.engine.step.use_strategy(plain);
  run.engine.model.restart();
  const Throughput measured = measure_throughput(run.engine, run.batches, timing, run.session);
  run.engine.step.use_strategy(own);
  run.engine.model.restart();
  return measured.images_per_s;
}

std::string text_of_tree_cost(const Throughput& measured, double rate_without) {
  return labelled("invariant",
                  fmt::format("{:+.1f} % images/s with the tree, compared with {:.1f} by plain "
                              "all-reduce with the same algorithms",
                              100 * (measured.images_per_s / rate_without - 1), rate_without));
}

}  // namespace

ExitCode run_throughput(const Run& run) {
  const TimingOptions& timing = run.options.timing;
  Engine& engine = run.engine;
  Detector detector(run);
  const Outcome certificate = run.options.certificate ? certified(run) : Outcome::pass;
  const std::optional<double> without_tree = rate_without_tree(run, timing);
  detector.start();
  const Throughput measured = measure_throughput(engine, run.batches, timing, run.session);
  const ExitCode detected = detector.finish();
  const bool sound =
      std::isfinite(measured.loss_last) && unsound_weights(engine, run.session).empty();
  const auto trained = sound ? state_to_save(run) : std::vector<Tensor>();
  const auto observations = observe(run, measured, detector);
  const Trace trace = trace_steps(engine, run.batches, steps_to_trace(timing.iterations),
                                  engine.learning_rate(), run.session);  // trains on
  Json step = merged(record_of(measured), sums_of_exchanges(trace));
  std::string summary = summary_of(measured);
  if (without_tree) {
    step["images_per_s_without_tree"] = *without_tree;
    summary += text_of_tree_cost(measured, *without_tree);
  }
  if (run.options.max_batch > 0) {
    const auto memory =
        run.session.all_gather(static_cast<double>(engine.device().memory().total_bytes));
    step.update({{"max_batch", true}, {"device_memory_bytes", memory}});
    summary += text_of_largest(engine.settings().network.batch_size, measured, memory);
  }
  run.write("step", merged(step, run.input()));
  const Breakdown breakdown = break_down(trace, nullptr);
  run.write("breakdown", record_of(breakdown));
  if (engine.step.strategy_entry().ranks_agree)
    for (const ExchangeTimes& bucket : bucket_times(trace)) run.write("bucket", record_of(bucket));
  for (const judge::Observation& observation : observations)
    run.record.write("metric", judge::record_of(observation));
  say(run.session, summary + summary_of(breakdown));
  if (sound) save(run, trained);
  write_trace(run, trace);
  check_trained(measured);
  const ExitCode certified_as = exit_code_of(certificate);
  return detected == ExitCode::pass || certificate == Outcome::fail ? certified_as : detected;
}

namespace {

constexpr int kTracedSteps = 10;  // of a training

/// The fields of a `training` record, but for when the training begins.
Json training_fields(const Run& run) {
  const TrainOptions& options = run.options;
  const ScheduleOptions& schedule = options.schedule;
  const Dataset& dataset = run.data->dataset();
  const long updates = std::max(1L, run.data->batches_per_epoch() / options.accumulate);
  const Schedule rate(schedule, options.optimizer.learning_rate, options.epochs, updates);
  return {{"train_images", dataset.training().size()},
          {"val_images", options.data.val_dir.empty() ? 0 : dataset.validation().size()},
          {"updates_per_epoch", updates},
          {"ranks_computing", run.engine.step.ranks_computing()},
          {"warmup_epochs", schedule.lr_warmup_steps > 0
                                ? schedule.lr_warmup_steps / static_cast<double>(updates)
                                : schedule.lr_warmup_epochs},
          {"end_learning_rate", rate.at(options.epochs * updates)},
          {"init_start_ms", options.started_ms}};
}

std::uint64_t saved_bytes(const ParameterTable& table) {
  return sizeof(float) * (table.payload_count() + table.statistics_count());
}

/// What --save needs of the checkpoints' file system.
std::uint64_t saved_next_to_checkpoints(const Run& run) {
  const auto device_of = [](const std::filesystem::path& folder) {
    struct stat found {};
    return stat(folder.empty() ? "." : folder.c_str(), &found) == 0 ? found.st_dev : 0;
  };
  const std::filesystem::path file = run.options.save;
  const bool is_next = device_of(file.parent_path()) == device_of(run.options.checkpoints.dir);
  return is_next && !file.empty() ? saved_bytes(run.engine.model.network().table()) : 0;
}

}  // namespace

ExitCode run_training(const Run& run) {
  Engine& engine = run.engine;
  TrainingData& data = *run.data;
  const Json training = training_fields(run);
  Detector detector(run);
  if (!run.options.trace.empty()) {
    write_trace(
        run, trace_steps(engine, run.batches, kTracedSteps, engine.learning_rate(), run.session));
    engine.model.restart();
  }
  run.write("training", merged(training, {{"init_stop_ms", unix_ms()}}));
  detector.start(data.batches_per_epoch() / run.options.accumulate);
  const TrainingEnd end = train_epochs(
      run, data.batches_per_epoch(), data.validation(),
      {run.options.checkpoints, run_facts(run), data.dataset().metadata(run.options.model),
       &data.bad_images(), saved_next_to_checkpoints(run)});
  const ExitCode detected = detector.finish();
  if (!end.complete) return end.code;
  save(run, state_to_save(run));
  return end.code == ExitCode::pass ? detected : end.code;
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

namespace {

std::vector<Output> outputs_of(const TrainOptions& options) {
  return {{"--record", options.record},
          {"--trace", options.trace},
          {"--logits", options.logits},
          {"--save", options.save}};
}

}  // namespace

void check_files(const TrainOptions& options) {
  std::vector<Output> files = outputs_of(options);
  check_distinct(files);
  files.back() = {"--weights", options.model.weights};  // which --save may replace
  check_distinct(files);
}

void check_outputs(const TrainOptions& options, const ParameterTable& table) {
  for (const Output& output : outputs_of(options))
    if (!output.path.empty()) check_writable(output);
  check_space({"--save", options.save}, saved_bytes(table));
}

long batches_needed(const TrainOptions& options) {
  if (options.epochs > 0 || options.evaluate) return 0;
  return (static_cast<long>(options.timing.iterations) + options.timing.warmup) *
         options.accumulate;
}

namespace {

/// Options that must be the same, where the program has them; others follow below.
const std::set<std::string> kFixed{"model",   "image_size", "seed",     "optimizer",
                                   "augment", "grad_dtype", "invariant"};
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
                                  "max_bad_images",
                                  "recipe",
                                  "workers",
                                  "prefetch",
                                  "record",
                                  "trace",
                                  "save",
                                  "max_batch",
                                  "describe",
                                  "timeout",
                                  "checkpoint_dir",
                                  "resume",
                                  "signal_lead",
                                  "checkpoint_every",
                                  "decoder",
                                  "loader_only",
                                  "checkpoint_minutes"};

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

RunFacts run_facts(const Run& run) {
  const EngineSettings& settings = run.engine.settings();
  const ImageSource& images = run.data->dataset().training();
  const std::string& decoder = run.data->setup().decoder;
  const int batch =
      settings.network.batch_size * settings.accumulate * run.engine.step.ranks_computing();
  RunFacts facts;
  facts.fixed = {
      {"global batch", std::to_string(batch)},
      {"classes", std::to_string(settings.network.classes)},
      {"images", fmt::format("{}, listing {:016x}", images.size(), images.listing_checksum())},
      {"--precision", name_of(settings.network.precision)},
      {"--ema", settings.ema.ema > 0 ? "on" : "off"},
      {"--decoder", decoder},
      // of checkpoints that were written when these were options
      {"--decoder-share", decoder == "cpu" ? "0" : "100"},
      {"--exif", "false"},
      {"--scaled-decode", "off"}};
  facts.options = {{"--staleness", std::to_string(settings.strategy.staleness)}};
  for (const OptionValue& option : run.set->values()) {
    if (kFixed.contains(option.name))
      facts.fixed[flag_of(option.name)] = text_of(option);
    else if (option.name == "batch_size")  // or what --global-batch makes of it
      facts.options[flag_of(option.name)] = std::to_string(settings.network.batch_size);
    else if (!kFree.contains(option.name))
      facts.options[flag_of(option.name)] = text_of(option);
  }
  return facts;
}

}  // namespace shakedown::training

#include "training/programs/describe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/device.hpp"
#include "common/nvml.hpp"
#include "common/program.hpp"
#include "common/statistics.hpp"
#include "common/text_table.hpp"
#include "common/usage_error.hpp"
#include "training/measure/layer_times.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {
namespace {

std::string layer_row(const std::string& name, const std::string& output, double parameters,
                      double mflop, double activation_bytes) {
  return fmt::format("{:<24} {:>16} {:>12.0f} {:>10.1f} {:>11}\n", name, output, parameters, mflop,
                     activation_bytes > 0 ? readable_bytes(activation_bytes) : "");
}

std::string text_of(const ActivationShape& s) { return fmt::format("{} x {} x {}", s.c, s.h, s.w); }

std::string text_of_network(const Engine& engine) {
  const Network& network = engine.model.network();
  const NetworkSettings& s = network.settings();
  const ParameterTable& table = network.table();
  const Layers& layers = network.layers();
  const double element = static_cast<double>(size_of(compute_type(s.precision)));

  std::string text = fmt::format("{:<24} {:>16} {:>12} {:>10} {:>11}\n", "layer (of one image)",
                                 "output", "parameters", "MFLOP", "output");
  const auto output_bytes = [&](const ActivationShape& y) {
    return element * static_cast<double>(y.count());
  };
  const auto add = [&](const ConvLayer& layer, const ActivationShape& x) {
    const ConvShape conv = layer.on(x);
    text += layer_row(fmt::format("{} {}x{}{}", layer.conv, layer.kernel, layer.kernel,
                                  layer.stride > 1 ? fmt::format("/{}", layer.stride) : ""),
                      text_of(conv.y()), static_cast<double>(conv.weight_count()) + 2.0 * layer.k,
                      conv.flop() / 1e6, output_bytes(conv.y()));
    return conv.y();
  };
  ActivationShape x = pooled(add(layers.stem, {1, 3, s.image_size, s.image_size}));
  text += layer_row("maxpool 3x3/2", text_of(x), 0, 0, output_bytes(x));
  for (const ResidualBlock& block : layers.blocks) {
    const ActivationShape input = x;
    for (const ConvLayer& layer : block.path) x = add(layer, x);
    if (block.shortcut) add(*block.shortcut, input);
  }
  text += layer_row("fc", fmt::format("{}", s.classes),
                    static_cast<double>(layers.features + 1) * s.classes,
                    2e-6 * layers.features * s.classes, 4.0 * s.classes);

  const FlopCount flop = flop_per_image(layers, s.image_size, s.classes);
  const auto bytes = [](std::size_t count) { return readable_bytes(static_cast<double>(count)); };
  text += fmt::format(
      "\n{}: {} tensors, {} parameters ({} in float32), {} running statistics\n"
      "one image: {:.3f} GFLOP forward, {:.3f} GFLOP forward and backward\n",
      s.architecture.name, table.parameters().size(), table.payload_count(),
      bytes(table.payload_count() * sizeof(float)), 2 * table.statistics().size(),
      flop.forward / 1e9, flop.training / 1e9);
  std::size_t unshared = 0;
  for (const Slot& slot : network.plan().slots()) unshared += slot.bytes();
  text += fmt::format(
      "\nmemory per rank, batch {}, {}:\n"
      "  weights, gradients, statistics  {}\n"
      "  optimizer state{}  {}\n"
      "  activations and their gradients {} (tensors sharing bytes by lifetime;\n"
      "                                  {} if each had its own, {} at least)\n",
      s.batch_size, name_of(s.precision), bytes(network.weights().bytes()),
      engine.settings().accumulate > 1 ? ", sums      " : "              ",
      bytes(engine.model.optimizer_bytes() + engine.step.sum_bytes()),
      bytes(network.plan().bytes()), bytes(unshared), bytes(network.plan().lower_bound()));

  const std::vector<Range> buckets = engine.step.plan().buckets;
  if (buckets.empty()) return text;
  text += "\nbuckets, in the order of exchange (bytes of the payload in float32):\n";
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    std::size_t tensors = 0;
    for (const Parameter& p : table.parameters())
      tensors += p.offset >= buckets[i].begin && p.offset < buckets[i].end ? 1 : 0;
    text += fmt::format("  {:>2} {:>12} bytes, {} tensors\n", i,
                        table.payload_in(buckets[i]) * sizeof(float), tensors);
  }
  return text;
}

}  // namespace

ExitCode describe(const Engine& engine, const MpiSession& session) {
  say(session, text_of_network(engine));
  return ExitCode::pass;
}

std::string text_of_ranks(const std::vector<std::string>& hosts) {
  constexpr std::size_t kNamed = 8;
  std::vector<std::string> nodes;
  for (const std::string& host : hosts)
    if (std::find(nodes.begin(), nodes.end(), host) == nodes.end()) nodes.push_back(host);
  return fmt::format("{} on {} ({})", counted(std::ssize(hosts), "rank"),
                     counted(std::ssize(nodes), "node"), first_of(nodes, kNamed));
}

std::string text_of_machine(const Backend& backend, const std::vector<std::string>& hosts) {
  return fmt::format("on {}, {} ({}), {}", text_of_ranks(hosts), backend.remark,
                     backend.world->transport(), backend.device->identity().model);
}

namespace {

/// How --invariant divides the batch, and the bytes that its tree sends; "" without.
std::string text_of_shards(const Engine& engine) {
  const EngineSettings& settings = engine.settings();
  if (settings.strategy.invariant == 0) return "";
  const Communicator& world = engine.world();
  const Network& network = engine.model.network();
  const auto sent_in = [&](DataType type) {
    const StepVolume volume = volume_of(network.table(), type, network.weights().type(), 1);
    return readable_bytes(
        engine.step.strategy_entry().bytes_sent(volume, world.size(), world.rank()));
  };
  return wrapped(
      fmt::format(
          "invariant: {} shards of {} images, {} per rank, summed in a fixed tree in fp32: "
          "{} sent per rank and update (an all-reduce of {}: {}); deterministic algorithms, "
          "without autotuning",
          settings.strategy.invariant, settings.network.batch_size, settings.accumulate,
          sent_in(engine.step.exchanged_type()), name_of(network.weights().type()),
          sent_in(network.weights().type())),
      2);
}

}  // namespace

std::string headline(const Engine& engine, const Backend& backend,
                     const std::vector<std::string>& hosts, const std::string& data) {
  const NetworkSettings& s = engine.settings().network;
  const int accumulate = engine.settings().accumulate;
  std::string batch = fmt::format("batch {} per rank", s.batch_size);
  if (accumulate > 1) batch += fmt::format(" x {} micro-batches", accumulate);
  std::string text = wrapped(
      fmt::format("train: {}, {}, {}, {}, {} globally, {}x{} pixels, {}", s.architecture.name,
                  name_of(s.precision), engine.settings().strategy.strategy, batch,
                  static_cast<long>(s.batch_size) * accumulate * engine.step.ranks_computing(),
                  s.image_size, s.image_size, data),
      2);
  if (const std::string shards = text_of_shards(engine); !shards.empty()) text += "\n" + shards;
  text += "\n" + wrapped(text_of_machine(backend, hosts), 2);
  const std::string why = engine.step.why_no_graph();
  if (backend.kind == BackendKind::gpu && !why.empty())
    text += "\nsteps are not CUDA graphs: " + why;
  return text;
}

std::string text_of_start(const Engine& engine) {
  const Fused fused = engine.model.network().fused();
  const LoadRemarks& remarks = engine.model.load_remarks();
  std::string text = remarks.seeded;
  if (!remarks.ignored.empty()) text += (text.empty() ? "" : "\n") + remarks.ignored;
  if (fused.norms == 0 || !engine.step.computes()) return text;  // no such choice
  if (!text.empty()) text += "\n";
  text += fmt::format("batch-norm statistics fused into {} of {} convolutions", fused.statistics,
                      fused.norms);
  if (fused.reductions > 0)
    text += fmt::format(
        ", backward reductions into {} of {}, {} norms through the Gram matrix of their "
        "convolution's input (see --fusion)",
        fused.gradients, fused.reductions, fused.gram);
  return text;
}

namespace {

// A host's memory is not for this program alone, and one that uses too much is killed without an
// error.
constexpr double kShareOfHost = 0.8;
constexpr int kMostOnHost = 4096;  // images per rank: a step takes long enough

int find_largest(int limit, const std::function<EngineSettings(int batch)>& settings_of,
                 Backend& backend, const MpiSession& session) {
  const bool gpu = backend.kind == BackendKind::gpu;
  const int bound = gpu || limit < kMostBatch ? limit : kMostOnHost;
  Engine engine(settings_of(std::min(8, bound)), backend);
  const int sharing = ranks_on_device(backend, session);
  const int largest = largest_batch(engine, sharing, bound, gpu ? 1 : kShareOfHost);
  if (largest == 0)
    throw UsageError(
        fmt::format("--max-batch: not even one image fits into {} of free memory",
                    readable_bytes(static_cast<double>(engine.device().memory().free_bytes))));
  std::string text = fmt::format("largest batch by the plan: {} per rank", largest);
  if (largest == bound) text += ", the limit: no larger one was tried (--max-batch N)";
  if (!gpu)
    text += fmt::format("; {} of this host may use {:.0f} % of its free memory",
                        counted(sharing, "rank"), 100 * kShareOfHost);
  say(session, wrapped(text, 10));
  return largest;
}

}  // namespace

ExitCode stepping_down(int batch, bool alone, const std::function<ExitCode(int batch)>& attempt,
                       const std::function<void(const std::string&)>& remark) {
  while (batch > 0) {
    const int smaller = batch - std::max(1, batch / 32);
    const auto step_down = [&](const OutOfMemory& error) {
      remark(fmt::format("--max-batch: {} per rank fit by the plan only ({}); now {}", batch,
                         error.what(), smaller));
      batch = smaller;
    };
    try {
      return attempt(batch);
    } catch (const BatchTooLarge& error) {
      step_down(error);
    } catch (const OutOfMemory& error) {
      if (!alone) throw;  // the other ranks do not know
      step_down(error);
    }
  }
  throw UsageError("--max-batch: not even one image fits");
}

ExitCode at_requested_batch(const TrainOptions& options, int classes, Backend& backend,
                            const MpiSession& session,
                            const std::function<ExitCode(const TrainOptions&)>& run) {
  if (options.max_batch == 0) return run(options);
  TrainOptions at_batch = options;
  const auto settings_of = [&](int batch_size) {
    at_batch.batch_size = batch_size;
    return run_settings(at_batch, backend, classes);
  };
  const auto attempt = [&](int batch_size) {
    at_batch.batch_size = batch_size;
    return run(at_batch);
  };
  return stepping_down(find_largest(options.max_batch, settings_of, backend, session),
                       session.world_size() == 1, attempt,
                       [&](const std::string& text) { say(session, wrapped(text, 10)); });
}

std::string text_of_largest(int batch, const Throughput& measured,
                            const std::vector<double>& device_memory_bytes) {
  // of those that are known; else kUnknown
  const auto highest_share = [&](const std::vector<double>& bytes) {
    double highest = kUnknown;
    for (std::size_t r = 0; r < bytes.size(); ++r)
      highest = std::fmax(highest, bytes[r] / device_memory_bytes[r]);
    return highest;
  };
  std::string text = fmt::format(
      "{} per rank: {:.1f} % of a device's {} of memory planned and allocated", batch,
      100 * highest_share(measured.peak_memory_bytes), readable_bytes(device_memory_bytes.front()));
  if (const double share = highest_share(measured.process_memory_bytes); std::isfinite(share))
    text += fmt::format(", {:.1f} % in use by the process", 100 * share);
  return labelled("max batch", text);
}

namespace {

constexpr int kMostLogged = 20;  // steps: enough for a median

/// Trains this many steps after one that starts without another before it; the median step, ms.
template <class Step>
double median_step_ms(Engine& engine, int steps, Step&& step) {
  Laps laps(engine.device(), steps);
  for (int i = 0; i <= steps; ++i) {
    step();
    laps.mark(engine.stream());
  }
  engine.finish();
  return median_of(laps.milliseconds());
}

/// The parts of a step that are not in the log of calls.
std::string rest_of(const Engine& engine) {
  const std::string& strategy = engine.settings().strategy.strategy;
  std::string rest = "copying the batch to the device, the step's scalars";
  if (engine.settings().accumulate > 1) rest += ", sums over micro-batches";
  if (strategy != "none")
    rest += fmt::format(", waiting for the exchange ({}, {})", strategy,
                        counted(engine.world().size(), "rank"));
  return rest;
}

StepCalls measure(const Run& run) {
  const TimingOptions& timing = run.options.timing;
  Engine& engine = run.engine;
  const MpiSession& session = run.session;
  EndlessBatches endless(run.batches);
  const int logged = std::min(timing.iterations, kMostLogged);
  const long all = timing.warmup + timing.iterations + logged + 3;
  say(session, fmt::format("layers: {} steps: {} timed whole (--iterations), {} call by call", all,
                           timing.iterations, logged));
  Progress progress("layers", all, "steps", session.is_root());
  long done = 0;
  const auto step = [&] {
    engine.step.run([&](int) { endless.load_next(engine.model.network()); },
                    engine.learning_rate());
    progress.update(++done);
  };
  step();
  const double loss_first = mean_loss(engine, session);
  for (int i = 1; i < timing.warmup; ++i) step();
  engine.finish();
  session.barrier();

  StepCalls measured;
  measured.roofs = engine.model.network().measure_roofs();
  session.barrier();
  measured.logged_steps = logged;
  measured.step_ms = median_step_ms(engine, timing.iterations, step);
  session.barrier();
  Recorder& recorder = engine.model.network().recorder();
  recorder.start_calls();
  step();
  engine.finish();  // as it watches the other ranks
  const std::size_t calls = recorder.stop_calls().size();
  recorder.start_calls(logged + 1);
  measured.logged_step_ms = median_step_ms(engine, logged, step);
  std::vector<TimedWork> works = recorder.stop_calls();
  if (engine.step.computes()) {
    works.erase(works.begin(), works.begin() + static_cast<std::ptrdiff_t>(calls));
    measured.calls = median_step(works, logged);
    measured.calls_ms = median_sum_ms(works, logged);
  }
  check_loss(loss_first, mean_loss(engine, session));
  measured.rest = rest_of(engine);
  return measured;
}

std::string text_of(const StepCalls& step) {
  WorkSum sum;
  for (const TimedWork& timed : step.calls) sum.add(timed, step.roofs);
  return labelled("layers",
                  fmt::format("{:.3f} ms per step; with events between {} calls {:.3f} ms, of it "
                              "the calls {:.3f} ms; roof {:.3f} ms, {:.1f} % of the calls' time",
                              step.step_ms, sum.calls, step.logged_step_ms, step.calls_ms,
                              sum.roof_ms(), 100 * sum.roof_ms() / step.calls_ms));
}

}  // namespace

ExitCode run_layers(const Run& run) {
  if (run.engine.step.first_computing() != 0)
    throw UsageError(
        fmt::format("--layers: rank 0 reports, but computes nothing with --strategy {}: use "
                    "another, or none",
                    run.identity.strategy));
  const StepCalls step = measure(run);
  const ParameterTable& table = run.engine.model.network().table();
  for (const LayerTime& layer : layer_times(step.calls, table, step.roofs))
    run.write("layer", record_of(layer, step));
  for (const KernelTime& kernel : kernel_times(step.calls, step.roofs))
    run.write("kernel", record_of(kernel, step));
  say(run.session, text_of(step));
  return ExitCode::pass;
}

}  // namespace shakedown::training

#include "training/measure/throughput.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/device.hpp"
#include "common/error.hpp"
#include "common/identity.hpp"
#include "common/nvml.hpp"
#include "common/options.hpp"
#include "common/record.hpp"
#include "common/statistics.hpp"
#include "common/text_table.hpp"
#include "training/exchange/strategy.hpp"
#include "training/step/model_state.hpp"

namespace shakedown::training {
namespace {

constexpr int kMostSteps = 1'000'000'000;  // twice that is an int

/// A power limit's controller overshoots in the first second and then holds clocks down for as long
/// (measured on an H200: docs/engineering/fast-step.md).
constexpr double kGpuWarmupSeconds = 2;

}  // namespace

void declare_options(OptionSet& options, TimingOptions& values) {
  options.add("--iterations", values.iterations, "timed steps of the throughput run")
      .at_least(1)
      .at_most(kMostSteps)
      .not_with({"--epochs", "--evaluate"})
      .first();
  options
      .add("--warmup", values.warmup,
           "untimed steps before the timed ones, and with 2s seconds: at least both, as a GPU's "
           "power limit settles only under load")
      .at_least(1)
      .at_most(kMostSteps)
      .not_with({"--epochs", "--evaluate"})
      .unit("s", "--warmup-seconds")
      .metavar("N|Xs|N,Xs")
      .default_text(fmt::format("20,{:g}s on gpu, 20 on cpu", kGpuWarmupSeconds));
  options.add("--warmup-seconds", values.warmup_seconds, "seconds of --warmup")
      .at_least(0)
      .not_with({"--epochs", "--evaluate"})
      .hidden();
}

double warmup_seconds_of(const TimingOptions& options, BackendKind kind) {
  if (options.warmup_seconds >= 0) return options.warmup_seconds;
  return kind == BackendKind::gpu ? kGpuWarmupSeconds : 0;
}

namespace {

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

GpuHealth health_of(const GpuWindow& mine, double images, const MpiSession& session) {
  return {session.all_gather(mine.sm_clock_mhz),
          session.all_gather(mine.power_w),
          session.all_gather(mine.temperature_c),
          session.all_gather(mine.memory_used_bytes),
          session.all_gather(text_of_throttle_reasons(mine.throttle_reasons)),
          sum(session.all_gather(mine.energy_j)) / images};
}

bool on_one_host(const MpiSession& session) {
  return std::all_of(session.hosts().begin(), session.hosts().end(),
                     [&](const std::string& host) { return host == session.host(); });
}

/// This rank sent these bytes per step, padding included, as the communicator counts its
/// operations, a formula of their sizes; and as its GPU counts what leaves over NVLink. The
/// prediction is of the payload.
SentBytes sent_bytes(const Engine& engine, double counted, double over_nvlink,
                     const MpiSession& session) {
  const Network& network = engine.model.network();
  const DataType type = network.weights().type();
  const StepVolume step =
      volume_of(network.table(), engine.step.exchanged_type(), type, engine.settings().accumulate);
  SentBytes sent;
  sent.predicted = session.all_gather(
      engine.step.strategy_entry().bytes_sent(step, session.world_size(), session.rank()));
  sent.counted = session.all_gather(counted);
  const auto by_nvlink = session.all_gather(over_nvlink);
  sent.over_nvlink = engine.world().transport() == std::string("nccl") && on_one_host(session) &&
                     nvlink_counts_all(by_nvlink, sent.counted);
  sent.measured = sent.over_nvlink ? by_nvlink : std::vector<double>(sent.counted.size(), kUnknown);
  return sent;
}

/// Steps of the warm-up after the barrier, that count for energy and traffic but not for time. The
/// sampler's first readings can hold up the host for longer than a step, and where ranks exchange
/// all wait for the last: its device has work meanwhile.
constexpr int kLead = 4;

struct WarmUp {
  long steps = 0;
  double seconds = 0;  // of all but the first
  double loss_first = 0;
};

struct Timed {
  std::vector<double> step_ms;
  InputTimes input;
  long graph_steps = 0;
  StepScalars before;  // the first timed step
  GpuWindow window;    // of these steps and the lead before them
  double sent_bytes = 0;
};

/// The steps of a throughput run.
class Steps {
 public:
  Steps(Engine& engine, BatchSource& batches, const TimingOptions& settings,
        const MpiSession& session)
      : engine_(engine),
        batches_(batches),
        settings_(settings),
        warmup_s_(warmup_seconds_of(settings, engine.backend.kind)),
        session_(session),
        scalars_(engine.device(), sizeof(StepScalars)),
        laps_(engine.device(), settings.iterations) {}

  /// All but the lead(). The host waits for the device when the least number of steps is over; then
  /// ranks agree on how many more fill the time.
  WarmUp warm_up() {
    zero_loss();
    step();
    WarmUp warm_up{.loss_first = mean_loss(engine_, session_)};
    const auto start = std::chrono::steady_clock::now();
    Progress progress = shown();
    auto more = static_cast<double>(settings_.warmup - 1 - lead());
    do {
      for (double i = 0; i < more; ++i) {
        step();
        progress.update(0, "warm-up");
      }
      engine_.finish();
      warm_up.seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      more = std::ranges::max(
          session_.all_gather(steps_to_fill(warmup_s_, warm_up.seconds, done_ - 1)));
    } while (more > 0);
    warm_up.steps = done_ + lead();
    return warm_up;
  }

  /// The lead and the timed steps.
  Timed time(const std::shared_ptr<Nvml>& nvml, const std::string& uuid) {
    const double sent_before = engine_.world().traffic().sent_bytes;
    engine_.finish();
    GpuSampler sampler(nvml, uuid);
    session_.barrier();  // so that all begin together
    for (int i = 0; i < lead(); ++i) step();
    batches_.drop_pending_stall();  // of the lead
    const InputTimes input_before = batches_.times();
    const long graphs_before = engine_.step.graph_steps();
    engine_.model.copy_scalars(scalars_);
    laps_.mark(engine_.stream());
    Progress progress = shown();
    for (int i = 1; i <= settings_.iterations; ++i) {
      if (i == settings_.iterations) zero_loss();
      step();
      laps_.mark(engine_.stream());
      progress.update(i);
    }
    engine_.finish();
    Timed timed;
    timed.window = sampler.finish();
    timed.step_ms = laps_.milliseconds();
    timed.input = batches_.times() - input_before;
    timed.graph_steps = engine_.step.graph_steps() - graphs_before;
    timed.before =
        download<StepScalars>(engine_.device(), engine_.stream(), scalars_.data(), 1).front();
    timed.sent_bytes = engine_.world().traffic().sent_bytes - sent_before;
    return timed;
  }

  int lead() const { return std::min(kLead, settings_.warmup - 1); }

 private:
  /// From here on.
  Progress shown() const {
    return {"throughput", settings_.iterations, "steps", session_.is_root()};
  }

  /// mean_loss() is that of the steps from here on.
  void zero_loss() { engine_.model.network().zero_total_metrics(); }

  void step() {
    engine_.step.run([&](int) { batches_.load_next(engine_.model.network()); },
                     engine_.learning_rate());
    ++done_;
  }

  Engine& engine_;
  EndlessBatches batches_;
  const TimingOptions settings_;
  const double warmup_s_;
  const MpiSession& session_;
  Buffer scalars_;  // before the first timed step
  Laps laps_;
  long done_ = 0;
};

/// Throughput of all ranks that compute, each by its own mean step, and its 95 % interval.
void add_rate(Throughput& measured, Engine& engine, const std::vector<double>& step_ms,
              double images_per_rank, const MpiSession& session) {
  const auto rate_by = [&](double mean_ms) {
    return engine.step.computes() ? images_per_rank / mean_ms * 1e3 : 0;
  };
  measured.images_per_s = sum(session.all_gather(rate_by(summarize(step_ms).mean)));
  measured.images_per_s_per_rank = measured.images_per_s / engine.step.ranks_computing();
  std::vector<double> resampled = block_bootstrap_means(step_ms);
  if (resampled.empty()) return;
  for (double& value : resampled) value = rate_by(value);
  const View total{std::span<double>(resampled)};
  engine.host().all_reduce(total, total, Reduction::sum, engine.stream());
  measured.interval = block_bootstrap_interval(std::move(resampled), step_ms.size());
}

/// The step of the slowest rank; its spread and what is fused, of the first that computes.
void add_step(Throughput& measured, const Engine& engine, const std::vector<double>& step_ms,
              const MpiSession& session) {
  const auto first = static_cast<std::size_t>(engine.step.first_computing());
  const Summary spread = summarize(step_ms);
  measured.step_ms_p50 = std::ranges::max(session.all_gather(spread.median));
  measured.step_ms_p95 = std::ranges::max(session.all_gather(spread.p95));
  measured.step_ms_cv = session.all_gather(spread.cv)[first];
  const NetworkSettings& s = engine.settings().network;
  const FlopCount flop = flop_per_image(engine.model.network().layers(), s.image_size, s.classes);
  measured.tflops_per_rank = measured.images_per_s_per_rank * flop.training / 1e12;
  if (const Fused fused = engine.model.network().fused(); fused.norms > 0)
    measured.fused = session.all_gather(fused)[first];
}

void add_memory(Throughput& measured, const Engine& engine, const Nvml* nvml,
                const std::string& uuid, const MpiSession& session) {
  const bool gpu = engine.device().kind() == BackendKind::gpu;
  const double known = nvml != nullptr ? nvml->process_memory_bytes(uuid) : kUnknown;
  measured.peak_memory_bytes =
      session.all_gather(static_cast<double>(engine.device().peak_allocated_bytes()));
  measured.process_memory_bytes = session.all_gather(gpu ? known : peak_resident_bytes());
}

}  // namespace

bool nvlink_counts_all(const std::vector<double>& over_nvlink, const std::vector<double>& counted) {
  constexpr double kLeast = 0.4;  // of what was counted: less, and some went another way
  for (std::size_t r = 0; r < counted.size(); ++r)
    if (!std::isfinite(over_nvlink[r]) || over_nvlink[r] < kLeast * counted[r]) return false;
  return counted.size() > 1;
}

double steps_to_fill(double seconds, double elapsed_s, long steps) {
  if (elapsed_s >= seconds) return 0;
  return steps == 0 ? 1 : std::ceil((seconds - elapsed_s) * static_cast<double>(steps) / elapsed_s);
}

Throughput measure_throughput(Engine& engine, BatchSource& batches, const TimingOptions& settings,
                              const MpiSession& session) {
  engine.device().restart_peak();  // what came before may have needed more
  const bool gpu = engine.device().kind() == BackendKind::gpu;
  const auto nvml = gpu ? Nvml::open() : nullptr;
  const std::string uuid = engine.device().identity().uuid;
  Steps steps(engine, batches, settings, session);
  const WarmUp warm_up = steps.warm_up();
  const Timed timed = steps.time(nvml, uuid);

  const double images_per_rank =
      static_cast<double>(engine.settings().network.batch_size) * engine.settings().accumulate;
  const double sampled = settings.iterations + steps.lead();
  Throughput measured;
  measured.ranks_computing = engine.step.ranks_computing();
  measured.iterations = settings.iterations;
  measured.warmup_steps = warm_up.steps;
  measured.warmup_s = std::ranges::max(session.all_gather(warm_up.seconds));
  add_rate(measured, engine, timed.step_ms, images_per_rank, session);
  measured.step_ms = timed.step_ms;
  add_step(measured, engine, timed.step_ms, session);
  measured.input = over_ranks(timed.input, session);
  add_memory(measured, engine, nvml.get(), uuid, session);
  measured.graph = timed.graph_steps == settings.iterations;
  measured.grad_dtype = engine.step.exchanged_type();
  measured.loss_first = warm_up.loss_first;
  measured.loss_last = mean_loss(engine, session);
  const StepScalars now = engine.model.read_scalars();
  if (engine.settings().optimizer.needs_norms()) measured.grad_norm = now.grad_norm;
  measured.skipped_steps = static_cast<int>(std::ranges::max(session.all_gather(now.skipped)));
  measured.skipped_timed_steps =
      static_cast<int>(std::ranges::max(session.all_gather(now.skipped - timed.before.skipped)));
  measured.sent =
      sent_bytes(engine, timed.sent_bytes / sampled, timed.window.nvlink.sent / sampled, session);
  measured.staleness_updates = engine.step.strategy().staleness();  // known on the server, rank 0
  if (gpu)
    measured.health =
        health_of(timed.window, sampled * images_per_rank * engine.step.ranks_computing(), session);
  return measured;
}

Metrics total_metrics(Engine& engine, const MpiSession& session) {
  Metrics all;
  for (const Metrics& of_rank : session.all_gather(engine.model.network().read_metrics().total))
    all += of_rank;
  return all;
}

double mean_loss(Engine& engine, const MpiSession& session) {
  engine.finish();
  const Metrics total = total_metrics(engine, session);
  return total.loss_sum / static_cast<double>(total.samples);
}

void check_loss(double first, double last) {
  if (std::isfinite(last)) return;
  throw FailError(
      fmt::format("the loss is not finite any more (it began at {:.4g}): a lower --learning-rate, "
                  "or another --precision",
                  first));
}

void check_trained(const Throughput& measured) {
  check_loss(measured.loss_first, measured.loss_last);
  if (measured.skipped_timed_steps == measured.iterations)
    throw FailError(
        fmt::format("all {} timed steps were skipped, as their gradients were not finite: nothing "
                    "was trained",
                    measured.iterations));
}

namespace {

std::string text_of_rate(const Throughput& measured) {
  return fmt::format(
      "{:.1f} total, {:.1f} per rank ({})", measured.images_per_s, measured.images_per_s_per_rank,
      measured.interval ? fmt::format("95 % interval {:.1f} - {:.1f}", measured.interval->low,
                                      measured.interval->high)
                        : "fewer than 25 steps: no interval");
}

std::string text_of_memory(const Throughput& measured) {
  const auto& bytes = measured.peak_memory_bytes;
  const bool alike = std::all_of(bytes.begin(), bytes.end(), [&](double b) {
    return b < 1.01 * bytes.front() && b > 0.99 * bytes.front();
  });
  std::string text = fmt::format(
      "{} planned and allocated {}", readable_bytes(bytes.front()),
      alike ? "per rank"
            : fmt::format("on rank 0, {} on the others",
                          readable_bytes(*std::max_element(bytes.begin() + 1, bytes.end()))));
  if (const double process = measured.process_memory_bytes.front(); std::isfinite(process))
    text += fmt::format(", {} in the process", readable_bytes(process));
  return text;
}

}  // namespace

std::string summary_of(const Throughput& measured) {
  std::string text = labelled("images/s", text_of_rate(measured)) +
                     labelled("step", fmt::format("{:.2f} ms median, {:.2f} ms p95, CV {:.1f} %",
                                                  measured.step_ms_p50, measured.step_ms_p95,
                                                  100 * measured.step_ms_cv)) +
                     labelled("loss", fmt::format("{:.4f} first, {:.4f} last", measured.loss_first,
                                                  measured.loss_last)) +
                     labelled("memory", text_of_memory(measured));
  if (measured.skipped_steps > 0)
    text += labelled("skipped", fmt::format("{} steps whose float16 gradients overflowed",
                                            measured.skipped_steps));
  return text;
}

std::string summary_of(const Certificate& certificate) {
  if (!certificate.applies()) return wrapped("certificate  waived: " + certificate.waived, 13);
  std::string text = fmt::format("certificate  {}: ", name_of(certificate.outcome));
  if (certificate.census.pass)
    text += fmt::format(
        "each rank's gradients are in every average once (stamped: one of {} ranks that is lost, "
        "doubled or swapped shows)",
        certificate.census.ranks);
  if (certificate.census.pass && certificate.inputs_compared)
    text += "; each has the batch made for it";
  const WeightDifference& found = certificate.difference;
  if (!certificate.cause.empty()) {
    text += (certificate.census.pass ? "; but " : "") + certificate.cause;
  } else if (certificate.reference.empty()) {
    text += "; its weights are the reference of others";
  } else {
    const std::string single =
        std::isfinite(found.tolerance) ? fmt::format(" (tolerance {:.2g})", found.tolerance) : "";
    text += fmt::format(
        "; weights after each of 3 steps at learning rate {:g} compared with {}: {} differs most, "
        "by {:.2g} of its movement (tolerance {:.2g}), a weight by {:.2g}{}",
        certificate.learning_rate, certificate.reference, found.tensor, found.relative_diff,
        found.relative_tolerance, found.max_abs_diff, single);
  }
  return wrapped(text, 13);
}

std::string summary_of(const Breakdown& b) {
  const double residual = std::round(1e2 * b.residual_ms()) / 1e2 + 0.0;  // no "-0.00"
  return labelled("breakdown",
                  fmt::format("{:.2f} ms traced: {:.2f} forward and backward, {:.2f} exposed "
                              "communication, {:.2f} input, {:.2f} optimizer, {:.2f} residual; "
                              "{:.2f} of communication hidden",
                              b.step_ms, b.compute_ms, b.exposed_comm_ms, b.input_stall_ms,
                              b.optimizer_ms, residual, b.hidden_comm_ms));
}

namespace {

constexpr std::size_t kMostBuckets = 64;

}  // namespace

Profile profile_steps(Engine& engine, BatchSource& batches, int steps, double learning_rate,
                      const MpiSession& session) {
  Profile profile;
  profile.steps = trace_steps(engine, batches, steps, learning_rate, session);
  profile.alone = trace_exchange(engine, steps, session);
  const StrategyOptions own = engine.settings().strategy;
  if (!engine.step.strategy_entry().overlaps() || own.no_overlap) return profile;
  StrategyOptions serial = own;
  serial.no_overlap = true;
  engine.step.use_strategy(serial);
  engine.model.restart();
  profile.serial = trace_steps(engine, batches, steps, learning_rate, session);
  engine.step.use_strategy(own);
  engine.model.restart();
  return profile;
}

Breakdown break_down(const Profile& profile, const Trace* none) {
  Breakdown b = break_down(profile.steps, none);
  if (none != nullptr) b.none_step_ms = step_ms(*none);
  b.comm_alone_ms = step_ms(profile.alone);
  if (profile.serial) b.serial_step_ms = step_ms(*profile.serial);
  return b;
}

std::vector<ExchangeTimes> bucket_times(const Trace& steps) {
  std::vector<ExchangeTimes> exchanges = exchange_times(steps);
  if (exchanges.size() > kMostBuckets) exchanges.clear();
  return exchanges;
}

std::string unsound_weights(Engine& engine, const MpiSession& session) {
  const auto tensors = session.all_gather(unsound_tensor(engine.model.network().table(),
                                                         engine.model.own_master_weights(),
                                                         engine.model.statistics()));
  for (std::size_t r = 0; r < tensors.size(); ++r)
    if (!tensors[r].empty())
      return fmt::format("{} on rank {} on {}", tensors[r], r, session.hosts()[r]);
  return "";
}

void check_weights(Engine& engine, const MpiSession& session, const char* when) {
  if (const std::string unsound = unsound_weights(engine, session); !unsound.empty())
    throw FailError(fmt::format("{} is not finite {} (or is a negative variance)", unsound, when));
}

std::string differing_ranks(Engine& engine, const MpiSession& session) {
  const auto hashes = session.all_gather(fmt::format("{:016x}", engine.model.checksum()));
  for (std::size_t r = 1; r < hashes.size(); ++r)
    if (hashes[r] != hashes[0])
      return fmt::format("rank {} on {} differs from rank 0 on {} (checksums {} and {})", r,
                         session.hosts()[r], session.hosts()[0], hashes[r], hashes[0]);
  return "";
}

void check_ranks_agree(Engine& engine, const MpiSession& session, const char* when) {
  if (const std::string ranks = differing_ranks(engine, session); !ranks.empty())
    throw FailError(fmt::format("the ranks' weights differ {}: {}", when, ranks));
}

}  // namespace shakedown::training

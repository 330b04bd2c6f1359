#include "training/measure/throughput.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/gpu_sampler.hpp"
#include "common/identity.hpp"
#include "common/progress.hpp"
#include "common/statistics.hpp"
#include "training/exchange/volumes.hpp"

namespace shakedown::training {
namespace {

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}
double highest(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

void add_health(Json& record, const GpuWindow& mine, double images, const MpiSession& session) {
  record["sm_clock_mhz"] = session.all_gather(mine.sm_clock_mhz);
  record["power_w"] = session.all_gather(mine.power_w);
  record["temperature_c"] = session.all_gather(mine.temperature_c);
  record["memory_used_bytes"] = session.all_gather(mine.memory_used_bytes);
  record["joules_per_image"] = sum(session.all_gather(mine.energy_j)) / images;
  Json reasons = Json::array();
  for (const std::string& text :
       session.all_gather(text_of_throttle_reasons(mine.throttle_reasons)))
    reasons.push_back(text == kUnknownText ? Json() : Json(text));
  record["throttle_reasons"] = reasons;
}

bool on_one_host(const MpiSession& session) {
  return std::all_of(session.hosts().begin(), session.hosts().end(),
                     [&](const std::string& host) { return host == session.host(); });
}

/// This rank sent so many bytes a step, padding included, as the communicator counts its
/// operations, and as its GPU counts what leaves over NVLink; the prediction is of the payload.
void add_exchange(Json& record, const Engine& engine, double counted, double over_nvlink,
                  const MpiSession& session) {
  const Network& network = engine.model.network();
  const DataType type = network.weights().type();
  const StepVolume step =
      volume_of(network.table(), engine.step.exchanged_type(), type, engine.settings().accumulate);
  record["bytes_per_step_predicted"] = session.all_gather(engine.step.strategy_entry().bytes_sent(
      step, engine.settings().strategy, session.world_size(), session.rank()));
  const auto by_communicator = session.all_gather(counted);
  const auto by_nvlink = session.all_gather(over_nvlink);
  const bool nvlink = engine.world().transport() == std::string("nccl") && on_one_host(session) &&
                      nvlink_tells(by_nvlink, by_communicator);
  record["bytes_per_step_measured"] = nvlink ? by_nvlink : by_communicator;
  record["bytes_per_step_counted"] = by_communicator;
  record["bytes_source"] = nvlink ? "nvlink" : "communicator";
}

void add_staleness(Json& record, const Engine& engine) {
  if (const std::vector<long> staleness = engine.step.strategy().staleness(); !staleness.empty())
    record["staleness_updates"] = staleness;  // known on the server, rank 0, which records it
}

/// Steps of the warm-up behind the barrier, that count for energy and traffic but not for time. The
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
  double stall_s = 0;
  long graph_steps = 0;
  StepScalars before;  // the first timed step
  GpuWindow window;    // of these steps and the lead before them
  double sent_bytes = 0;
};

/// The steps of a throughput run.
class Steps {
 public:
  Steps(Engine& engine, BatchSource& batches, const ThroughputSettings& settings,
        const MpiSession& session)
      : engine_(engine),
        batches_(batches),
        settings_(settings),
        session_(session),
        scalars_(engine.device(), sizeof(StepScalars)),
        progress_("throughput", settings.iterations, "steps", session.is_root()) {
    for (int i = 0; i <= settings.iterations; ++i) marks_.push_back(engine.device().make_event());
  }

  /// All but the lead(). The host waits for the device when the least number of steps is over; then
  /// ranks agree on how many more fill the time.
  WarmUp warm_up() {
    step();
    WarmUp warm_up{.loss_first = mean_loss(engine_, session_)};
    const auto start = std::chrono::steady_clock::now();
    auto more = static_cast<double>(settings_.warmup - 1 - lead());
    do {
      for (double i = 0; i < more; ++i) {
        step();
        progress_.update(0, "warm-up");
      }
      engine_.finish();
      warm_up.seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      more = highest(
          session_.all_gather(steps_to_fill(settings_.warmup_seconds, warm_up.seconds, done_ - 1)));
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
    const double stall_before_s = batches_.stall_seconds();
    const long graphs_before = engine_.step.graph_steps();
    engine_.model.copy_scalars(scalars_);
    marks_[0]->record(engine_.stream());
    for (std::size_t i = 1; i < marks_.size(); ++i) {
      step();
      marks_[i]->record(engine_.stream());
      progress_.update(static_cast<long>(i));
    }
    engine_.finish();
    Timed timed;
    timed.window = sampler.finish();
    for (std::size_t i = 1; i < marks_.size(); ++i)
      timed.step_ms.push_back(marks_[i]->milliseconds_since(*marks_[i - 1]));
    timed.stall_s = batches_.stall_seconds() - stall_before_s;
    timed.graph_steps = engine_.step.graph_steps() - graphs_before;
    timed.before =
        download<StepScalars>(engine_.device(), engine_.stream(), scalars_.data(), 1).front();
    timed.sent_bytes = engine_.world().traffic().sent_bytes - sent_before;
    return timed;
  }

  int lead() const { return std::min(kLead, settings_.warmup - 1); }

 private:
  void step() {
    engine_.step.run([&](int) { batches_.load_next(engine_.model.network()); },
                     settings_.learning_rate);
    ++done_;
  }

  Engine& engine_;
  EndlessBatches batches_;
  const ThroughputSettings settings_;
  const MpiSession& session_;
  Buffer scalars_;  // before the first timed step
  Progress progress_;
  std::vector<std::unique_ptr<Event>> marks_;
  long done_ = 0;
};

/// Throughput of all ranks that compute, each by its own mean step, and its 95 % interval.
void add_rate(Json& record, Engine& engine, const std::vector<double>& step_ms,
              double images_a_rank, const MpiSession& session) {
  const auto rate_by = [&](double mean_ms) {
    return engine.step.computes() ? images_a_rank / mean_ms * 1e3 : 0;
  };
  const double rate = sum(session.all_gather(rate_by(summarize(step_ms).mean)));
  record["images_per_s"] = rate;
  record["images_per_s_per_rank"] = rate / engine.step.ranks_computing();
  record["images_per_s_interval"] = "block_bootstrap_mean";
  record["images_per_s_low"] = record["images_per_s_high"] = nullptr;
  std::vector<double> resampled = block_bootstrap_means(step_ms);
  if (resampled.empty()) return;
  for (double& value : resampled) value = rate_by(value);
  const View total{std::span<double>(resampled)};
  engine.host().all_reduce(total, total, Reduction::sum, engine.stream());
  const Interval interval = block_bootstrap_interval(std::move(resampled), step_ms.size());
  record["images_per_s_low"] = interval.low;
  record["images_per_s_high"] = interval.high;
}

void add_memory(Json& record, const Engine& engine, const Nvml* nvml, const std::string& uuid,
                const MpiSession& session) {
  const bool gpu = engine.device().kind() == BackendKind::gpu;
  const double known = nvml != nullptr ? nvml->process_memory_bytes(uuid) : kUnknown;
  record["peak_memory_bytes"] =
      session.all_gather(static_cast<double>(engine.device().peak_allocated_bytes()));
  record["process_memory_bytes"] = session.all_gather(gpu ? known : peak_resident_bytes());
}

/// What the scalars tell of the steps; `before` are those before the first timed step.
void add_skipped(Json& record, const StepScalars& before, const StepScalars& now,
                 const MpiSession& session) {
  record["skipped_steps"] = static_cast<int>(highest(session.all_gather(now.skipped)));
  record["skipped_timed_steps"] =
      static_cast<int>(highest(session.all_gather(now.skipped - before.skipped)));
}

}  // namespace

Json fields_of(const Identity& identity) {
  Json fields{{"backend", identity.backend},
              {"model", identity.model},
              {"image_size", identity.image_size},
              {"classes", identity.classes},
              {"precision", identity.precision}};
  if (identity.batch_size) fields["batch_size"] = *identity.batch_size;
  fields.update({{"accumulate", identity.accumulate},
                 {"world_size", identity.world_size},
                 {"strategy", identity.strategy.strategy},
                 {"optimizer", identity.optimizer},
                 {"data", identity.data}});
  if (find_strategy(identity.strategy.strategy).bucketed)
    fields["bucket_cap_mb"] = identity.strategy.bucket_cap_mb;
  if (identity.throttle_gbs > 0) fields["throttle_gbs"] = identity.throttle_gbs;
  return fields;
}

Json identity_of(const EngineSettings& s, const Backend& backend, const std::string& data) {
  return fields_of({name_of(backend.kind), s.network.architecture.name, s.network.image_size,
                    s.network.classes, name_of(s.network.precision), s.network.batch_size,
                    s.accumulate, backend.world->size(), s.strategy, s.optimizer.optimizer, data,
                    backend.throttle_gbs});
}

bool nvlink_tells(const std::vector<double>& over_nvlink, const std::vector<double>& counted) {
  constexpr double kLeast = 0.4;  // of what was counted: less, and some went another way
  for (std::size_t r = 0; r < counted.size(); ++r)
    if (!std::isfinite(over_nvlink[r]) || over_nvlink[r] < kLeast * counted[r]) return false;
  return counted.size() > 1;
}

double steps_to_fill(double seconds, double elapsed_s, long steps) {
  if (elapsed_s >= seconds) return 0;
  return steps == 0 ? 1 : std::ceil((seconds - elapsed_s) * static_cast<double>(steps) / elapsed_s);
}

Json measure_throughput(Engine& engine, BatchSource& batches, const ThroughputSettings& settings,
                        const MpiSession& session) {
  engine.device().restart_peak();  // what came before may have needed more
  const bool gpu = engine.device().kind() == BackendKind::gpu;
  const auto nvml = gpu ? Nvml::open() : nullptr;
  const std::string uuid = engine.device().identity().uuid;
  Steps steps(engine, batches, settings, session);
  const WarmUp warm_up = steps.warm_up();
  const Timed timed = steps.time(nvml, uuid);

  const EngineSettings& s = engine.settings();
  const double images_a_rank = static_cast<double>(s.network.batch_size) * s.accumulate;
  const Summary spread = summarize(timed.step_ms);
  const auto teller = static_cast<std::size_t>(engine.step.first_computing());
  const FlopCount flop =
      flop_per_image(engine.model.network().layers(), s.network.image_size, s.network.classes);

  Json record;
  record["ranks_computing"] = engine.step.ranks_computing();
  add_rate(record, engine, timed.step_ms, images_a_rank, session);
  record["iterations"] = settings.iterations;
  record["warmup_steps"] = warm_up.steps;
  record["warmup_s"] = highest(session.all_gather(warm_up.seconds));
  record["step_ms_p50"] = highest(session.all_gather(spread.median));
  record["step_ms_p95"] = highest(session.all_gather(spread.p95));
  record["step_ms_cv"] = session.all_gather(spread.cv)[teller];
  record["tflops_per_rank"] = record["images_per_s_per_rank"].get<double>() * flop.training / 1e12;
  record["input_stall_ms"] = highest(session.all_gather(timed.stall_s * 1e3));
  add_memory(record, engine, nvml.get(), uuid, session);
  if (const Fused fused = engine.model.network().fused(); fused.norms > 0) {
    record["fused_norms"] = session.all_gather(fused.statistics)[teller];
    record["fused_gradients"] = session.all_gather(fused.gradients)[teller];
  }
  record["graph"] = timed.graph_steps == settings.iterations;
  record["grad_dtype"] = name_of(engine.step.exchanged_type());
  record["loss_first"] = warm_up.loss_first;
  record["loss_last"] = mean_loss(engine, session);
  add_skipped(record, timed.before, engine.model.read_scalars(), session);
  const double sampled = settings.iterations + steps.lead();
  add_exchange(record, engine, timed.sent_bytes / sampled, timed.window.nvlink.sent / sampled,
               session);
  add_staleness(record, engine);
  if (gpu)
    add_health(record, timed.window, sampled * images_a_rank * engine.step.ranks_computing(),
               session);
  return record;
}

double mean_loss(Engine& engine, const MpiSession& session) {
  engine.finish();
  const Metrics step = engine.model.network().read_metrics().step;
  const double mine =
      engine.step.computes() ? step.loss_sum / static_cast<double>(step.samples) : 0;
  return sum(session.all_gather(mine)) / engine.step.ranks_computing();
}

}  // namespace shakedown::training

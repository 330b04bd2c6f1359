#include "training/throughput.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/identity.hpp"
#include "common/nvml.hpp"
#include "common/progress.hpp"
#include "common/statistics.hpp"
#include "training/volumes.hpp"

namespace shakedown {
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
  const Network& network = engine.network();
  const DataType type = network.weights().type();
  const StepVolume step =
      volume_of(network.table(), engine.exchanged_type(), type, engine.settings().accumulate);
  record["bytes_per_step_predicted"] = session.all_gather(
      bytes_sent(engine.settings().strategy, step, session.world_size(), session.rank()));
  const auto by_communicator = session.all_gather(counted);
  const auto by_nvlink = session.all_gather(over_nvlink);
  const bool nvlink = engine.world().transport() == std::string("nccl") && on_one_host(session) &&
                      nvlink_tells(by_nvlink, by_communicator);
  record["bytes_per_step_measured"] = nvlink ? by_nvlink : by_communicator;
  record["bytes_per_step_counted"] = by_communicator;
  record["bytes_source"] = nvlink ? "nvlink" : "communicator";
}

void add_staleness(Json& record, const Engine& engine) {
  if (const std::vector<long> staleness = engine.strategy().staleness(); !staleness.empty())
    record["staleness_updates"] = staleness;  // known on the server, rank 0, which records it
}

/// Steps of the warm-up behind the barrier, that count for energy and traffic but not for time. The
/// sampler's first readings can hold up the host for longer than a step, and where ranks exchange
/// all wait for the last: its device has work meanwhile.
constexpr int kLead = 4;

}  // namespace

Json identity_of(const EngineSettings& s, const Backend& backend, const std::string& data) {
  Json identity{{"backend", name_of(backend.kind)},
                {"model", s.network.architecture.name},
                {"image_size", s.network.image_size},
                {"classes", s.network.classes},
                {"precision", name_of(s.network.precision)},
                {"batch_size", s.network.batch_size},
                {"accumulate", s.accumulate},
                {"world_size", backend.world->size()},
                {"strategy", s.strategy.strategy},
                {"optimizer", s.optimizer.optimizer},
                {"data", data}};
  if (find_volume(s.strategy.strategy).buckets)
    identity["bucket_cap_mb"] = s.strategy.bucket_cap_mb;
  if (backend.throttle_gbs > 0) identity["throttle_gbs"] = backend.throttle_gbs;
  return identity;
}

bool nvlink_tells(const std::vector<double>& over_nvlink, const std::vector<double>& counted) {
  constexpr double kLeast = 0.4;  // of what was counted: less, and some went another way
  for (std::size_t r = 0; r < counted.size(); ++r)
    if (!std::isfinite(over_nvlink[r]) || over_nvlink[r] < kLeast * counted[r]) return false;
  return counted.size() > 1;
}

Json measure_throughput(Engine& engine, BatchSource& batches, const ThroughputSettings& settings,
                        const MpiSession& session) {
  engine.device().restart_peak();  // what came before may have needed more
  EndlessBatches endless(batches);
  const Engine::LoadBatch load = [&](int) { endless.load_next(engine.network()); };
  const long steps = settings.warmup + settings.iterations;
  Progress progress("throughput", steps, "steps", session.is_root());

  engine.step(load, settings.learning_rate);
  const double loss_first = mean_loss(engine, session);
  const int lead = std::min(kLead, settings.warmup - 1);
  for (int i = 1; i < settings.warmup - lead; ++i) {
    engine.step(load, settings.learning_rate);
    progress.update(i + 1, "warm-up");
  }
  std::vector<std::unique_ptr<Event>> marks;
  for (int i = 0; i <= settings.iterations; ++i) marks.push_back(engine.device().make_event());
  const bool gpu = engine.device().kind() == BackendKind::gpu;
  const auto nvml = gpu ? Nvml::open() : nullptr;
  const std::string uuid = engine.device().identity().uuid;
  const double sent_before = engine.world().traffic().sent_bytes;
  engine.finish();
  GpuSampler sampler(nvml, uuid);
  session.barrier();  // so that all begin together
  for (int i = 0; i < lead; ++i) engine.step(load, settings.learning_rate);
  const double stall_before_s = endless.stall_seconds();
  const long graphs_before = engine.graph_steps();
  marks[0]->record(engine.stream());
  for (int i = 0; i < settings.iterations; ++i) {
    engine.step(load, settings.learning_rate);
    marks[static_cast<std::size_t>(i) + 1]->record(engine.stream());
    progress.update(settings.warmup + i + 1);
  }
  engine.finish();
  const GpuWindow window = sampler.finish();

  std::vector<double> step_ms;
  for (std::size_t i = 1; i < marks.size(); ++i)
    step_ms.push_back(marks[i]->milliseconds_since(*marks[i - 1]));
  const double elapsed_s = marks.back()->milliseconds_since(*marks.front()) / 1e3;
  const EngineSettings& s = engine.settings();
  const double images_a_rank = static_cast<double>(s.network.batch_size) * s.accumulate;
  const auto rate_of_ranks = [&](double step_s) {
    return sum(session.all_gather(engine.computes() ? images_a_rank / step_s : 0));
  };
  const double rate = rate_of_ranks(elapsed_s / settings.iterations);
  const Summary spread = summarize(step_ms);
  const Interval mine = bootstrap_median(step_ms);
  const auto teller = static_cast<std::size_t>(engine.first_computing());
  const int ranks = engine.ranks_computing();
  const double images_a_step = images_a_rank * ranks;
  const FlopCount flop =
      flop_per_image(engine.network().layers(), s.network.image_size, s.network.classes);

  Json record;
  record["ranks_computing"] = ranks;
  record["images_per_s"] = rate;
  record["images_per_s_per_rank"] = rate / ranks;
  record["images_per_s_low"] = rate_of_ranks(mine.high / 1e3);
  record["images_per_s_high"] = rate_of_ranks(mine.low / 1e3);
  record["iterations"] = settings.iterations;
  record["step_ms_p50"] = highest(session.all_gather(spread.median));
  record["step_ms_p95"] = highest(session.all_gather(spread.p95));
  record["step_ms_cv"] = session.all_gather(spread.cv)[teller];
  record["tflops_per_rank"] = rate / ranks * flop.training / 1e12;
  record["input_stall_ms"] =
      highest(session.all_gather((endless.stall_seconds() - stall_before_s) * 1e3));
  record["peak_memory_bytes"] =
      session.all_gather(static_cast<double>(engine.device().peak_allocated_bytes()));
  record["process_memory_bytes"] = session.all_gather(
      gpu ? (nvml ? nvml->process_memory_bytes(uuid) : kUnknown) : peak_resident_bytes());
  if (const Fused fused = engine.network().fused(); fused.norms > 0) {
    record["fused_norms"] = session.all_gather(fused.statistics)[teller];
    record["fused_gradients"] = session.all_gather(fused.gradients)[teller];
  }
  record["graph"] = engine.graph_steps() - graphs_before == settings.iterations;
  record["grad_dtype"] = name_of(engine.exchanged_type());
  record["loss_first"] = loss_first;
  record["loss_last"] = mean_loss(engine, session);
  record["skipped_steps"] =
      static_cast<int>(highest(session.all_gather(engine.read_scalars().skipped)));
  const double sampled = settings.iterations + lead;
  add_exchange(record, engine, (engine.world().traffic().sent_bytes - sent_before) / sampled,
               window.nvlink.sent / sampled, session);
  add_staleness(record, engine);
  if (gpu) add_health(record, window, sampled * images_a_step, session);
  return record;
}

double mean_loss(Engine& engine, const MpiSession& session) {
  engine.finish();
  const Metrics step = engine.network().read_metrics().step;
  const double mine = engine.computes() ? step.loss_sum / static_cast<double>(step.samples) : 0;
  return sum(session.all_gather(mine)) / engine.ranks_computing();
}

void check_loss(const Json& step) {
  if (!std::isfinite(step.at("loss_last").get<double>()))
    throw FailError(
        fmt::format("the loss is not finite any more (it began at {:.4g}): a lower "
                    "--learning-rate, or another --precision",
                    step.at("loss_first").get<double>()));
}

std::string summary_of_step(const Json& step) {
  const auto number = [&](const char* key) { return step.at(key).get<double>(); };
  const auto memory = step.at("peak_memory_bytes").get<std::vector<double>>();
  const bool alike = std::all_of(memory.begin(), memory.end(), [&](double bytes) {
    return bytes < 1.01 * memory.front() && bytes > 0.99 * memory.front();
  });
  std::string exchange;
  for (const auto& [key, what] :
       {std::pair{"comm_ms", "a step"}, std::pair{"push_ms", "to push gradients"},
        std::pair{"pull_ms", "to pull weights"}})
    if (step.contains(key))
      exchange +=
          fmt::format("{}{:.2f} ms {}", exchange.empty() ? "exchange  " : ", ", number(key), what);
  if (!exchange.empty()) exchange += ", waiting for other ranks included\n";
  if (step.contains("staleness_updates")) {
    const auto behind = step.at("staleness_updates").get<std::vector<long>>();
    const long all = std::accumulate(behind.begin(), behind.end(), 0L);
    exchange += fmt::format(
        "staleness {:.0f} % of the gradients were not stale, the oldest was {} updates behind\n",
        100.0 * static_cast<double>(behind.front()) / static_cast<double>(all), behind.size() - 1);
  }
  std::string text = fmt::format(
      "images/s  {:.1f} total, {:.1f} per rank; by the median step {:.1f} - {:.1f} (95 % "
      "interval)\n"
      "step      {:.2f} ms median, {:.2f} ms p95, CV {:.1f} %\n"
      "{}"
      "loss      {:.4f} first, {:.4f} last\n"
      "memory    {} planned and allocated {}",
      number("images_per_s"), number("images_per_s_per_rank"), number("images_per_s_low"),
      number("images_per_s_high"), number("step_ms_p50"), number("step_ms_p95"),
      100 * number("step_ms_cv"), exchange, number("loss_first"), number("loss_last"),
      readable_bytes(memory.front()),
      alike ? "a rank"
            : fmt::format("on rank 0, {} on the others",
                          readable_bytes(*std::max_element(memory.begin() + 1, memory.end()))));
  if (step.at("process_memory_bytes").at(0).is_number() &&
      std::isfinite(step.at("process_memory_bytes").at(0).get<double>()))
    text += fmt::format(", {} in the process",
                        readable_bytes(step.at("process_memory_bytes").at(0).get<double>()));
  if (step.at("skipped_steps").get<int>() > 0)
    text += fmt::format("\nskipped   {} steps whose float16 gradients overflowed",
                        step.at("skipped_steps").get<int>());
  if (step.contains("power_w") && std::isfinite(step["power_w"][0].get<double>())) {
    text += fmt::format("\nGPU       {:.0f} W, {:.0f} MHz, {:.0f} C (rank 0)",
                        step["power_w"][0].get<double>(), step["sm_clock_mhz"][0].get<double>(),
                        step["temperature_c"][0].get<double>());
    if (std::isfinite(number("joules_per_image")))
      text += fmt::format(", {:.3f} J/image", number("joules_per_image"));
    for (const Json& reasons : step["throttle_reasons"])
      if (reasons != "") {
        text += reasons.is_null() ? ", throttle reasons unknown"
                                  : ", held back by " + reasons.get<std::string>();
        break;
      }
  }
  return text + "\n";
}

}  // namespace shakedown

#include "training/measure/records.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "common/device.hpp"
#include "common/nvml.hpp"
#include "common/placement.hpp"
#include "common/sm_clock.hpp"
#include "common/statistics.hpp"
#include "common/units.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {
namespace {

Json record_of(const GpuHealth& health) {
  Json reasons = Json::array();
  for (const std::string& text : health.throttle_reasons)
    reasons.push_back(text == kUnknownText ? Json() : Json(text));
  return {{"sm_clock_mhz", health.sm_clock_mhz},
          {"power_w", health.power_w},
          {"temperature_c", health.temperature_c},
          {"memory_used_bytes", health.memory_used_bytes},
          {"joules_per_image", health.joules_per_image},
          {"throttle_reasons", reasons}};
}

Json record_of(const SentBytes& sent) {
  return {{"bytes_per_step_predicted", sent.predicted},
          {"bytes_per_step_measured", sent.measured},
          {"bytes_per_step_counted", sent.counted},
          {"bytes_source", sent.over_nvlink ? "nvlink" : "communicator"}};
}

/// Keys of "layer" and "kernel" records of the step and of some of its calls.
Json record_of(const WorkSum& sum, const StepCalls& step) {
  return {{"calls", sum.calls},
          {"time_ms", sum.ms},
          {"step_share", sum.ms / step.step_ms},
          {"flop", sum.flop},
          {"bytes", sum.bytes},
          {"tflops", sum.tflops()},
          {"gbs", sum.gbs()},
          {"roof", sum.roof()},
          {"roof_ms", sum.roof_ms()},
          {"roof_share", sum.roof_share()},
          {"copy_gbs", step.roofs.copy_gbs},
          {"copy_bytes", step.roofs.copy_bytes},
          {"matrix_tflops", step.roofs.matrix_tflops},
          {"matrix_size", step.roofs.matrix_size},
          {"rest", step.rest},
          {"logged_steps", step.logged_steps},
          {"step_ms", step.step_ms},
          {"logged_step_ms", step.logged_step_ms},
          {"calls_ms", step.calls_ms}};
}

}  // namespace

Identity identity_of(const EngineSettings& s, const Backend& backend, const std::string& data) {
  return {name_of(backend.kind),
          s.network.architecture.name,
          s.network.image_size,
          s.network.classes,
          name_of(s.network.precision),
          s.network.batch_size,
          s.accumulate,
          backend.world->size(),
          s.strategy.strategy,
          s.optimizer.optimizer,
          data,
          s.strategy.bucket_cap_mb,
          backend.throttle_gbs,
          "",
          s.strategy.invariant};
}

Json record_of(const Identity& identity) {
  Json fields{{"backend", identity.backend},
              {"model", identity.model},
              {"image_size", identity.image_size},
              {"classes", identity.classes},
              {"precision", identity.precision}};
  if (identity.batch_size) fields["batch_size"] = *identity.batch_size;
  fields.update({{"accumulate", identity.accumulate},
                 {"world_size", identity.world_size},
                 {"strategy", identity.strategy},
                 {"optimizer", identity.optimizer},
                 {"data", identity.data}});
  if (find_strategy(identity.strategy).bucketed()) fields["bucket_cap_mb"] = identity.bucket_cap_mb;
  if (identity.throttle_gbs > 0) fields["throttle_gbs"] = identity.throttle_gbs;
  if (!identity.setting.empty()) fields["setting"] = identity.setting;
  if (identity.invariant > 0) fields["invariant"] = identity.invariant;
  return fields;
}

Json stages_of(const InputTimes& input) {
  if (input.images == 0) return Json::object();
  const auto per_image = [&](double seconds) { return 1e3 * seconds / input.images; };
  return {{"stage_open_ms", per_image(input.stages.open_s)},
          {"stage_read_ms", per_image(input.stages.read_s)},
          {"stage_decode_ms", per_image(input.stages.decode_s)},
          {"stage_augment_ms", per_image(input.stages.augment_s)},
          {"stage_copy_ms", per_image(input.copy_s)},
          {"stage_device_decode_ms", per_image(input.device_decode_s)},
          {"device_decoded", input.device_images / input.images}};
}

Json record_of(const Throughput& measured) {
  const auto bound = [&](double Interval::*end) {
    return measured.interval ? Json((*measured.interval).*end) : Json();
  };
  Json fields{{"ranks_computing", measured.ranks_computing},
              {"images_per_s", measured.images_per_s},
              {"images_per_s_per_rank", measured.images_per_s_per_rank},
              {"images_per_s_interval", "block_bootstrap_mean"},
              {"images_per_s_high", bound(&Interval::high)},
              {"images_per_s_low", bound(&Interval::low)},
              {"iterations", measured.iterations},
              {"warmup_steps", measured.warmup_steps},
              {"warmup_s", measured.warmup_s},
              {"step_ms_p50", measured.step_ms_p50},
              {"step_ms_p95", measured.step_ms_p95},
              {"step_ms_cv", measured.step_ms_cv},
              {"tflops_per_rank", measured.tflops_per_rank},
              {"input_stall_ms", 1e3 * measured.input.stall_s},
              {"peak_memory_bytes", measured.peak_memory_bytes},
              {"process_memory_bytes", measured.process_memory_bytes}};
  if (measured.fused)
    fields.update({{"fused_norms", measured.fused->statistics},
                   {"fused_gradients", measured.fused->gradients},
                   {"fused_gram", measured.fused->gram}});
  fields.update({{"graph", measured.graph},
                 {"grad_dtype", name_of(measured.grad_dtype)},
                 {"loss_first", measured.loss_first},
                 {"loss_last", measured.loss_last},
                 {"skipped_steps", measured.skipped_steps},
                 {"skipped_timed_steps", measured.skipped_timed_steps}});
  fields.update(stages_of(measured.input));
  if (measured.grad_norm) fields["grad_norm"] = *measured.grad_norm;
  fields.update(record_of(measured.sent));
  if (!measured.staleness_updates.empty()) fields["staleness_updates"] = measured.staleness_updates;
  if (measured.health) fields.update(record_of(*measured.health));
  return fields;
}

Json record_of(const ExchangeSums& sums) {
  Json fields = Json::object();
  if (sums.all_ms > 0) fields["comm_ms"] = sums.all_ms;
  if (sums.push_ms) fields["push_ms"] = *sums.push_ms;
  if (sums.pull_ms) fields["pull_ms"] = *sums.pull_ms;
  return fields;
}

Json record_of(const Certificate& certificate) {
  const WeightDifference& found = certificate.difference;
  Json fields{{"reference", certificate.reference}};
  if (certificate.applies())
    fields.update(
        {{"detects_one_rank_in", certificate.census.pass ? Json(certificate.census.ranks) : Json()},
         {"inputs_compared", certificate.inputs_compared}});
  if (!found.tensor.empty()) fields["tensor"] = found.tensor;
  const bool compared = certificate.compares_weights();
  fields["max_abs_diff"] = compared ? Json(found.max_abs_diff) : Json();
  fields["tolerance"] = compared ? Json(found.tolerance) : Json();
  if (compared)
    fields.update({{"relative_diff", found.relative_diff},
                   {"relative_tolerance", found.relative_tolerance},
                   {"learning_rate", certificate.learning_rate}});
  const bool concluded = certificate.applies() && certificate.outcome != Outcome::inconclusive;
  fields["pass"] = concluded ? Json(certificate.passes()) : Json();
  if (!certificate.waived.empty()) fields["waived"] = certificate.waived;
  if (!certificate.cause.empty()) fields["cause"] = certificate.cause;
  return fields;
}

Json record_of(const Breakdown& b) {
  Json fields{{"traced_steps", b.traced_steps},
              {"step_ms", b.step_ms},
              {"compute_ms", b.compute_ms},
              {"exposed_comm_ms", b.exposed_comm_ms}};
  if (b.interference_ms)
    fields.update({{"interference_ms", *b.interference_ms}, {"interference_slowdown", b.slowdown}});
  fields.update({{"input_stall_ms", b.input_stall_ms},
                 {"optimizer_ms", b.optimizer_ms},
                 {"residual_ms", b.residual_ms()},
                 {"residual", b.residual_ms() / b.step_ms},
                 {"hidden_comm_ms", b.hidden_comm_ms},
                 {"comm_ms", b.comm_ms}});
  if (b.none_step_ms) fields["none_step_ms"] = *b.none_step_ms;
  if (b.comm_alone_ms) fields["comm_alone_ms"] = *b.comm_alone_ms;
  if (b.serial_step_ms) fields["serial_step_ms"] = *b.serial_step_ms;
  return fields;
}

Json record_of(const ExchangeTimes& e) {
  Json fields{{"index", e.index},       {"exchange", e.what},       {"bytes", e.bytes},
              {"ready_ms", e.ready_ms}, {"launch_ms", e.launch_ms}, {"start_ms", e.start_ms},
              {"end_ms", e.end_ms},     {"hidden_ms", e.hidden_ms}, {"exposed_ms", e.exposed_ms}};
  if (e.waiting)
    fields.update({{"wait_ms", e.waiting->ms},
                   {"straggler_rank", e.waiting->straggler},
                   {"straggler_share", e.waiting->share}});
  return fields;
}

Json record_of(const LayerTime& layer, const StepCalls& step) {
  Json fields{{"layer", layer.layer}};
  if (layer.is_of_network())
    fields.update({{"forward_ms", layer.forward_ms}, {"backward_ms", layer.backward_ms}});
  fields.update(record_of(layer.sum, step));
  return fields;
}

Json record_of(const KernelTime& kernel, const StepCalls& step) {
  return merged({{"kernel", kernel.kernel},
                 {"bytes_per_call", kernel.bytes_per_call},
                 {"flop_per_call", kernel.flop_per_call},
                 {"copy_share", kernel.sum.gbs() / step.roofs.copy_gbs}},
                record_of(kernel.sum, step));
}

namespace {

using Conditions = std::map<std::string, std::string>;

constexpr int kWarmUp = 4;  // passes: the device has work while the host makes the first readings

/// What no exchange changes.
constexpr const char* kOfCompute[] = {"model",     "image_size", "classes",
                                      "precision", "batch_size", "deterministic",
                                      "fusion",    "autotune",   "graph"};

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : json_text(value);
}

Conditions conditions_of(const Throughput& measured, const Identity& identity,
                         const Conditions& tuning) {
  Conditions conditions = tuning;
  const Json fields = record_of(identity);
  for (const auto& [key, value] : fields.items()) conditions[key] = text_of(value);
  conditions.erase("backend");  // a key of the line
  conditions["graph"] = measured.graph ? "true" : "false";
  conditions["grad_dtype"] = name_of(measured.grad_dtype);
  return conditions;
}

/// "onednn" on the cpu backend.
Conditions versions_of(BackendKind kind, std::initializer_list<const char*> libraries) {
  Conditions versions;
  for (const LibraryVersion& library : library_versions(kind))
    if (std::count(libraries.begin(), libraries.end(), library.name) > 0)
      versions[library.name] = library.running;
  return versions;
}

std::string shared_by(const std::vector<Unit>& units, const Unit& mine) {
  const auto ranks =
      mine.uuid.empty() ? 1 : std::count_if(units.begin(), units.end(), [&](const Unit& u) {
        return u.uuid == mine.uuid;
      });
  return ranks > 1 ? fmt::format("{} ranks on one GPU", ranks) : "";
}

/// On every rank.
std::vector<double> steps_of_slowest(const std::vector<double>& mine, const MpiSession& session) {
  const std::vector<double> medians = session.all_gather(median_of(mine));
  const auto slowest = std::max_element(medians.begin(), medians.end()) - medians.begin();
  const bool here = slowest == session.rank();
  const auto texts = session.all_gather(here ? json_text(Json(mine)) : std::string());
  return Json::parse(texts[static_cast<std::size_t>(slowest)]).get<std::vector<double>>();
}

}  // namespace

OwnCompute measure_own_compute(Engine& engine, int passes,
                               const std::function<void()>& before_each) {
  OwnCompute own;
  if (!engine.step.computes() || !engine.model.network().weights().computes_with_all()) return own;
  Device& device = engine.device();
  Stream& stream = engine.stream();
  const auto enqueue = [&] { engine.step.compute_gradients([](int) {}); };
  std::unique_ptr<Graph> graph;
  if (device.has_graphs() && engine.settings().no_graph.empty())
    graph = device.capture(stream, enqueue);
  const auto clock = make_sm_clock(device, 1);
  Laps laps(device, passes);
  const bool gpu = device.kind() == BackendKind::gpu;
  GpuSampler sampler(gpu ? Nvml::open() : nullptr, device.identity().uuid);
  for (int i = -kWarmUp; i < passes; ++i) {
    if (i == 0) {
      if (clock) clock->start(stream);
      laps.mark(stream);
    }
    before_each();
    graph ? graph->launch(stream) : enqueue();
    if (i >= 0) laps.mark(stream);
  }
  if (clock) clock->stop(stream);
  engine.finish();
  own.ms = laps.milliseconds();
  const GpuWindow window = sampler.finish();
  own.seen.temperature_c = window.temperature_c;
  own.seen.power_w = window.power_w;
  own.seen.reasons = window.throttle_reasons;
  if (clock) own.seen.clock_mhz = clock->readings(stream).back().clock_mhz;
  return own;
}

std::vector<judge::Observation> observations_of(const Throughput& measured, const OwnCompute& own,
                                                const Identity& identity, const Conditions& tuning,
                                                const Backend& backend, const MpiSession& session) {
  const std::vector<Unit> units = units_of(session, backend);
  const std::vector<double> step_ms = steps_of_slowest(measured.step_ms, session);
  const judge::Check check =
      std::isfinite(measured.loss_last) ? judge::Check::verified : judge::Check::wrong;
  const Conditions conditions = conditions_of(measured, identity, tuning);
  const Unit& mine = units[static_cast<std::size_t>(session.rank())];

  judge::Observation compute = observed("train/compute_ms", "ms", mine);
  for (const char* key : kOfCompute)
    if (const auto known = conditions.find(key); known != conditions.end())
      compute.conditions.insert(*known);
  compute.versions = versions_of(backend.kind, {"cudnn", "onednn"});
  compute.samples = own.ms;
  const double limit_w = std::exchange(compute.seen, own.seen).power_limit_w;
  compute.seen.power_limit_w = limit_w;
  compute.check = check;
  compute.disturbed_by = shared_by(units, mine);

  const NodeMap nodes = map_nodes(session.hosts());
  std::vector<int> ranks(units.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  judge::Observation step =
      observed("train/step_ms", "ms", nodes.names.size() == 1 ? Scope::node : Scope::group,
               fmt::format("{}", fmt::join(nodes.names, ",")), units, ranks);
  step.conditions = conditions;
  const std::vector<int> per_node = nodes.ranks_per_node();
  step.conditions["ranks_per_node"] =
      std::to_string(*std::max_element(per_node.begin(), per_node.end()));
  step.conditions["transport"] = backend.world->transport();
  step.versions = versions_of(backend.kind, {"cudnn", "nccl", "onednn"});
  step.samples = step_ms;
  step.check = check;
  for (const Unit& unit : units)
    if (step.disturbed_by.empty()) step.disturbed_by = shared_by(units, unit);

  std::vector<judge::Observation> all;
  const std::string text = own.ms.empty() ? "" : json_text(judge::record_of(compute));
  for (const std::string& of_rank : session.gather(text))
    if (!of_rank.empty()) all.push_back(judge::observation_of(Json::parse(of_rank)));
  all.push_back(std::move(step));
  return all;
}

}  // namespace shakedown::training

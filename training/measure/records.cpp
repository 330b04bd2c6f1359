#include "training/measure/records.hpp"

#include <fmt/format.h>

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

template <class Value>
void put(Json& fields, const char* key, const Value& value) {
  fields[key] = value;
}
/// Nothing where there is none.
template <class Value>
void put(Json& fields, const char* key, const std::optional<Value>& value) {
  if (value) fields[key] = *value;
}

/// `fields` get these members of `of`, under their names.
#define MEMBER(name) put(fields, #name, of.name);
#define MEMBERS(...) NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(MEMBER, __VA_ARGS__))

void put_members(Json& fields, const GpuHealth& of) {
  MEMBERS(sm_clock_mhz, power_w, temperature_c, memory_used_bytes, joules_per_image)
  for (const std::string& text : of.throttle_reasons)
    fields["throttle_reasons"].push_back(text == kUnknownText ? Json() : Json(text));
}

void put_members(Json& fields, const Roofs& of) {
  MEMBERS(copy_gbs, copy_bytes, matrix_tflops, matrix_size)
}

void put_members(Json& fields, const StepCalls& of) {
  MEMBERS(rest, logged_steps, step_ms, logged_step_ms, calls_ms)
  put_members(fields, of.roofs);
}

/// Keys of "layer" and "kernel" records of the step and of some of its calls.
Json record_of(const WorkSum& of, const StepCalls& step) {
  Json fields{{"time_ms", of.ms},
              {"step_share", of.ms / step.step_ms},
              {"tflops", of.tflops()},
              {"gbs", of.gbs()},
              {"roof", of.roof()},
              {"roof_ms", of.roof_ms()},
              {"roof_share", of.roof_share()}};
  MEMBERS(calls, flop, bytes)
  put_members(fields, step);
  return fields;
}

}  // namespace

Identity identity_of(const StepOptions& options, std::optional<int> batch_size, int classes,
                     int ranks, const Backend& backend, const std::string& data) {
  return {name_of(backend.kind),
          options.model.model,
          options.model.image_size,
          classes,
          name_of(parse_precision(options.model.precision, backend.kind)),
          batch_size,
          options.accumulate,
          ranks,
          options.strategy.strategy,
          options.optimizer.optimizer,
          data,
          options.strategy.bucket_cap_mb,
          backend.throttle_gbs,
          "",
          options.strategy.invariant};
}

Json record_of(const Identity& of) {
  Json fields;
  MEMBERS(backend, model, image_size, classes, precision, batch_size, accumulate, world_size,
          strategy, optimizer, data)
  if (find_strategy(of.strategy).bucketed()) fields["bucket_cap_mb"] = of.bucket_cap_mb;
  if (of.throttle_gbs > 0) fields["throttle_gbs"] = of.throttle_gbs;
  if (!of.setting.empty()) fields["setting"] = of.setting;
  if (of.invariant > 0) fields["invariant"] = of.invariant;
  return fields;
}

Json stages_of(const InputTimes& input) {
  if (input.images == 0) return Json::object();
  const auto per_image = [&](double seconds) { return 1e3 * seconds / input.images; };
  return {{"stage_open_ms", per_image(input.open_s)},
          {"stage_read_ms", per_image(input.read_s)},
          {"stage_decode_ms", per_image(input.decode_s)},
          {"stage_augment_ms", per_image(input.augment_s)},
          {"stage_copy_ms", per_image(input.copy_s)},
          {"stage_device_decode_ms", per_image(input.device_decode_s)},
          {"device_decoded", input.device_images / input.images}};
}

Json record_of(const InputSetup& of) {
  Json fields = Json::object();
  if (of.workers == 0) return fields;
  MEMBERS(workers, decoder, cores)
  fields["decoder_share"] = of.decoder == "cpu" ? 0 : 100;
  fields["loading_ranks"] = of.ranks;
  fields["source"] = of.packed ? "pack" : "folder";
  return fields;
}

Json record_of(const Throughput& of) {
  Json fields = stages_of(of.input);
  MEMBERS(ranks_computing, images_per_s, images_per_s_per_rank, iterations, warmup_steps, warmup_s,
          step_ms_p50, step_ms_p95, step_ms_cv, tflops_per_rank, peak_memory_bytes,
          process_memory_bytes, graph, loss_first, loss_last, skipped_steps, skipped_timed_steps,
          grad_norm)
  fields["images_per_s_interval"] = "block_bootstrap_mean";
  fields["images_per_s_high"] = of.interval ? Json(of.interval->high) : Json();
  fields["images_per_s_low"] = of.interval ? Json(of.interval->low) : Json();
  fields["input_stall_ms"] = 1e3 * of.input.stall_s;
  fields["grad_dtype"] = name_of(of.grad_dtype);
  if (of.fused)
    fields.update({{"fused_norms", of.fused->statistics},
                   {"fused_gradients", of.fused->gradients},
                   {"fused_gram", of.fused->gram}});
  fields.update({{"bytes_per_step_predicted", of.sent.predicted},
                 {"bytes_per_step_measured", of.sent.measured},
                 {"bytes_per_step_counted", of.sent.counted},
                 {"bytes_source", of.sent.over_nvlink ? "nvlink" : "communicator"}});
  if (!of.staleness_updates.empty()) fields["staleness_updates"] = of.staleness_updates;
  if (of.health) put_members(fields, *of.health);
  return fields;
}

Json sums_of_exchanges(const Trace& steps) {
  Json fields = Json::object();
  if (const double all_ms = break_down(steps, nullptr).comm_ms; all_ms > 0)
    fields["comm_ms"] = all_ms;
  put(fields, "push_ms", exchange_ms(steps, "push"));
  put(fields, "pull_ms", exchange_ms(steps, "pull"));
  return fields;
}

Json record_of(const Certificate& certificate) {
  const WeightDifference& of = certificate.difference;
  Json fields{{"reference", certificate.reference}};
  if (certificate.applies())
    fields.update(
        {{"detects_one_rank_in", certificate.census.pass ? Json(certificate.census.ranks) : Json()},
         {"inputs_compared", certificate.inputs_compared}});
  if (!of.tensor.empty()) fields["tensor"] = of.tensor;
  fields["max_abs_diff"] = Json();
  fields["tolerance"] = Json();
  if (certificate.compares_weights()) {
    MEMBERS(max_abs_diff, tolerance, relative_diff, relative_tolerance)
    fields["learning_rate"] = certificate.learning_rate;
  }
  const bool concluded = certificate.applies() && certificate.outcome != Outcome::inconclusive;
  fields["pass"] = concluded ? Json(certificate.passes()) : Json();
  if (!certificate.waived.empty()) fields["waived"] = certificate.waived;
  if (!certificate.cause.empty()) fields["cause"] = certificate.cause;
  return fields;
}

Json record_of(const Breakdown& of) {
  Json fields;
  MEMBERS(traced_steps, step_ms, compute_ms, exposed_comm_ms, interference_ms, input_stall_ms,
          optimizer_ms, hidden_comm_ms, comm_ms, none_step_ms, comm_alone_ms, serial_step_ms)
  if (of.interference_ms) fields["interference_slowdown"] = of.slowdown;
  fields["residual_ms"] = of.residual_ms();
  fields["residual"] = of.residual_ms() / of.step_ms;
  return fields;
}

Json record_of(const ExchangeTimes& of) {
  Json fields{{"exchange", of.what}};
  MEMBERS(index, bytes, ready_ms, launch_ms, start_ms, end_ms, hidden_ms, exposed_ms)
  if (of.waiting)
    fields.update({{"wait_ms", of.waiting->ms},
                   {"straggler_rank", of.waiting->straggler},
                   {"straggler_share", of.waiting->share}});
  return fields;
}

Json record_of(const LayerTime& of, const StepCalls& step) {
  Json fields = record_of(of.sum, step);
  MEMBERS(layer)
  if (of.is_of_network()) {
    MEMBERS(forward_ms, backward_ms)
  }
  return fields;
}

Json record_of(const KernelTime& of, const StepCalls& step) {
  Json fields = record_of(of.sum, step);
  MEMBERS(kernel, bytes_per_call, flop_per_call)
  fields["copy_share"] = of.sum.gbs() / step.roofs.copy_gbs;
  return fields;
}

#undef MEMBERS
#undef MEMBER

namespace {

using Conditions = std::map<std::string, std::string>;

constexpr int kWarmUp = 4;  // passes: the device has work while the host makes the first readings

/// What no exchange changes.
constexpr const char* kOfCompute[] = {"model",      "image_size",    "classes", "precision",
                                      "batch_size", "deterministic", "fusion",  "autotune",
                                      "graph",      "recompute"};

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
  return session.all_gather(here ? mine : std::vector<double>())[static_cast<std::size_t>(slowest)];
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
  judge::Observation step = observed("train/step_ms", "ms", *backend.world, nodes, units, ranks);
  step.conditions.insert(conditions.begin(), conditions.end());
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

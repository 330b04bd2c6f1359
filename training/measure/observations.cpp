#include "training/measure/observations.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "common/gpu_sampler.hpp"
#include "common/laps.hpp"
#include "common/nodes.hpp"
#include "common/sm_clock.hpp"
#include "common/statistics.hpp"
#include "common/units.hpp"

namespace shakedown::training {
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

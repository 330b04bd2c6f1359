#include "launch/node/soak/window.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <nlohmann/json.hpp>

#include "common/error.hpp"
#include "common/hash.hpp"
#include "common/nvml.hpp"
#include "common/record.hpp"
#include "launch/node/soak/memory_test.hpp"
#include "launch/node/soak/options.hpp"
#include "launch/node/soak/sm_probe.hpp"
#include "launch/node/soak/transfer_load.hpp"

namespace shakedown::node {
namespace {

double sum_of(const std::vector<RankWindow>& ranks,
              const std::array<double, kLoadKinds> RankWindow::*field, LoadKind kind) {
  double sum = 0;
  for (const RankWindow& rank : ranks) sum += (rank.*field)[static_cast<std::size_t>(kind)];
  return sum;
}

}  // namespace

double share_of_reasons(const std::vector<std::optional<std::uint64_t>>& samples,
                        std::uint64_t reasons) {
  double known = 0;
  double with = 0;
  for (const auto& sample : samples) {
    if (!sample) continue;
    ++known;
    if ((*sample & reasons) != 0) ++with;
  }
  return known > 0 ? with / known : kUnknown;
}

RankWindow rank_window(const PhaseResult& result, const GpuWindow& health,
                       const HealthDelta& errors) {
  RankWindow window;
  for (std::size_t kind = 0; kind < kLoadKinds; ++kind) {
    const LoadCount& count = result.counts[kind];
    window.checked[kind] = static_cast<double>(count.checked);
    window.wrong[kind] = static_cast<double>(count.wrong);
    window.bytes[kind] = count.bytes;
  }
  const LoadCount& products = result.counts[static_cast<std::size_t>(LoadKind::products)];
  window.flop = products.flop;
  window.product_seconds = products.seconds;
  window.self_compared = static_cast<double>(products.self_compared);
  window.checked_over_unchecked = result.checked_over_unchecked;
  window.seconds = result.seconds;
  window.sm_clock_mhz = health.sm_clock_mhz;
  window.power_w = health.power_w;
  window.temperature_c = health.temperature_c;
  window.energy_j = health.energy_j;
  window.hardware_slowdown_share = share_of_reasons(health.reasons, throttle::kHardware);
  window.thermal_share = share_of_reasons(health.reasons, throttle::kHeat);
  window.power_cap_share = share_of_reasons(health.reasons, throttle::kPowerCap);
  window.throttle_known = health.throttle_reasons.has_value();
  window.throttle_reasons = health.throttle_reasons.value_or(0);
  window.errors = errors;
  return window;
}

double Window::checked(LoadKind kind) const { return sum_of(ranks, &RankWindow::checked, kind); }
double Window::wrong(LoadKind kind) const { return sum_of(ranks, &RankWindow::wrong, kind); }
double Window::bytes(LoadKind kind) const { return sum_of(ranks, &RankWindow::bytes, kind); }

double Window::wrong() const {
  double sum = 0;
  for (const RankWindow& rank : ranks)
    for (const double wrong : rank.wrong) sum += wrong;
  return sum;
}

double Window::seconds() const {
  double longest = 0;
  for (const RankWindow& rank : ranks) longest = std::max(longest, rank.seconds);
  return longest;
}

Json record_of(const Window& window) {
  Json fields{{"window", window.index}, {"phase", window.phase}, {"seconds", window.seconds()}};
  for (const LoadKind kind : all_loads()) {
    const std::string name = name_of(kind);
    if (window.checked(kind) == 0 && window.wrong(kind) == 0) continue;
    fields["checked_" + name] = window.checked(kind);
    fields["wrong_" + name] = window.wrong(kind);
    if (window.bytes(kind) > 0) fields["bytes_" + name] = window.bytes(kind);
  }
  for (const RankWindow& rank : window.ranks) {
    if (rank.flop > 0) fields["tflops"].push_back(rank.flop / rank.product_seconds / 1e12);
    if (std::isfinite(rank.checked_over_unchecked))
      fields["checked_over_unchecked"].push_back(rank.checked_over_unchecked);
    fields["sm_clock_mhz"].push_back(rank.sm_clock_mhz);
    fields["power_w"].push_back(rank.power_w);
    fields["temperature_c"].push_back(rank.temperature_c);
    fields["energy_j"].push_back(rank.energy_j);
    fields["hardware_slowdown_share"].push_back(rank.hardware_slowdown_share);
    fields["thermal_share"].push_back(rank.thermal_share);
    fields["power_cap_share"].push_back(rank.power_cap_share);
    fields["ecc_corrected"].push_back(rank.errors.ecc_corrected);
    fields["ecc_uncorrected"].push_back(rank.errors.ecc_uncorrected);
    fields["pcie_replays"].push_back(rank.errors.pcie_replays);
    fields["nvlink_errors"].push_back(rank.errors.nvlink_errors);
  }
  for (const auto& events : window.kernel_events) {
    std::string codes;
    if (events)
      for (const KernelEvent& event : *events)
        codes += (codes.empty() ? "" : " ") +
                 (event.code == 0 ? std::string("message") : std::to_string(event.code));
    fields["xids"].push_back(events ? Json(codes) : Json());
  }
  return fields;
}

namespace {

bool any_has(const std::vector<Phase>& phases, LoadKind kind) {
  return std::any_of(phases.begin(), phases.end(),
                     [&](const Phase& phase) { return phase.has(kind); });
}

/// Of an element of C, and so of a product's matrices in all: each has as many bytes.
std::size_t bytes_of(const Phase& phase) {
  return phase.type ? size_of(result_type(*phase.type)) : 0;
}

}  // namespace

SoakWork::SoakWork(const WorkSettings& settings, Backend& backend, const MpiSession& jurors)
    : settings_(settings), backend_(backend), jurors_(jurors) {
  if (backend.kind == BackendKind::gpu) {
    const MemoryInfo memory = backend.device->memory();
    free_share_ = static_cast<double>(memory.free_bytes) / static_cast<double>(memory.total_bytes);
  }
  // Memory is last: it needs what the others leave.
  for (const LoadKind kind :
       {LoadKind::probes, LoadKind::copies, LoadKind::collectives, LoadKind::memory})
    if (any_has(settings.phases, kind)) loads_[kind] = make_load(kind);
}

std::unique_ptr<Load> SoakWork::make_load(LoadKind kind) {
  Device& device = *backend_.device;
  switch (kind) {
    case LoadKind::probes: return make_probe_load(device, settings_of(FaultKind::product), {});
    case LoadKind::copies: {
      CopySettings settings;
      if (device.kind() == BackendKind::cpu) settings.bytes = std::size_t{1} << 20;
      return make_copy_load(device, settings_of(FaultKind::copy), settings);
    }
    case LoadKind::collectives: {
      auto load = std::make_unique<CollectiveLoad>(settings_of(FaultKind::collective), backend_);
      // A transport allocates memory for its first operations; they count in the first window.
      first_collectives_ = load->run(0, first_found_);
      return load;
    }
    case LoadKind::memory: {
      auto load = make_memory();
      memory_ = load.get();
      return load;
    }
    case LoadKind::products: break;
  }
  throw InternalError("products are made phase by phase");
}

std::unique_ptr<MemoryTest> SoakWork::make_memory() {
  // The largest type's, whose memory is used again by each type.
  const auto largest =
      std::max_element(settings_.phases.begin(), settings_.phases.end(),
                       [](const Phase& a, const Phase& b) { return bytes_of(a) < bytes_of(b); });
  std::unique_ptr<ProductLoad> reserved;
  if (largest->type) reserved = make_products(*largest);
  MemoryTestSettings memory;
  memory.share = 0.99;
  memory.host_bytes = std::size_t{128} << 10;
  if (backend_.kind == BackendKind::cpu)
    memory.block_bytes = memory.host_bytes;
  else
    memory.least_share = 0.95;
  memory.retention_s = settings_.retention_s;
  memory.free_share = free_share_;
  return make_memory_test(*backend_.device, settings_of(FaultKind::memory), memory);
}

SoakWork::~SoakWork() = default;

LoadSettings SoakWork::settings_of(FaultKind kind) const {
  return {settings_.seed, settings_.fault == kind, settings_.stopped};
}

std::unique_ptr<ProductLoad> SoakWork::make_products(const Phase& phase) {
  ProductSettings settings;
  settings.spec = product_spec(*phase.type, settings_.size);
  settings.algorithm = algorithms_[*phase.type];
  settings.seed = derive_seed(settings_.seed, windows_);
  settings.fault = settings_.fault;
  settings.stopped = settings_.stopped;
  auto products = std::make_unique<ProductLoad>(settings, *backend_.device, jurors_);
  algorithms_[*phase.type] = products->algorithm();
  products->set_pulse(phase.pulse_hertz);
  return products;
}

Load& SoakWork::load_of(LoadKind kind) const {
  return kind == LoadKind::products ? static_cast<Load&>(*products_) : *loads_.at(kind);
}

PhaseResult SoakWork::run(const Phase& phase, double seconds, bool comparing) {
  ++windows_;
  products_.reset();
  if (phase.has(LoadKind::products)) {
    products_ = make_products(phase);
    products_->set_comparing(comparing && phase.shape == Shape::steady);
  }
  backend_.session->barrier();
  PhaseResult result;
  const auto start = std::chrono::steady_clock::now();
  std::array<std::vector<Mismatch>, kLoadKinds> found;
  const auto run_one = [&](LoadKind kind) {
    const auto at = static_cast<std::size_t>(kind);
    result.counts[at] = load_of(kind).run(seconds, found[at]);
    if (kind == LoadKind::collectives) {
      result.counts[at] += std::exchange(first_collectives_, {});
      std::move(first_found_.begin(), first_found_.end(), std::back_inserter(found[at]));
      first_found_.clear();
    }
  };
  // Collectives stay on this thread, which MPI requires; so does a load without others.
  std::vector<std::future<void>> others;
  for (const LoadKind kind : phase.loads)
    if (kind != LoadKind::collectives && phase.loads.size() > 1)
      others.push_back(std::async(std::launch::async, [&, kind] {
        backend_.device->use_on_this_thread();
        run_one(kind);
      }));
  for (const LoadKind kind : phase.loads)
    if (kind == LoadKind::collectives || phase.loads.size() == 1) run_one(kind);
  for (auto& other : others) other.get();
  if (products_ && phase.shape == Shape::steady) result.rates = products_->time_alone();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (const LoadKind kind : phase.loads) {
    const auto at = static_cast<std::size_t>(kind);
    result.counts[at] += load_of(kind).confer(jurors_, found[at]);
    std::move(found[at].begin(), found[at].end(), std::back_inserter(result.found));
  }
  if (products_) result.checked_over_unchecked = products_->checked_over_unchecked();
  return result;
}

MemoryCoverage SoakWork::memory_coverage() const {
  if (memory_ == nullptr) return {};
  return {backend_.kind == BackendKind::gpu ? memory_->tested_share() : kUnknown,
          static_cast<double>(memory_->passes()), static_cast<double>(memory_->patterns_done()),
          static_cast<double>(memory_->patterns()), memory_->of_pass()};
}

std::string SoakWork::summary() const {
  std::string text;
  for (const auto& [kind, load] : loads_)
    if (const std::string more = load->summary(); !more.empty())
      text += fmt::format("{}{} of rank {}: {}", text.empty() ? "" : "\n", load->name(),
                          backend_.session->rank(), more);
  return text;
}

namespace {

Json to_json(const Mismatch& mismatch) {
  Json json{{"load", mismatch.load},     {"operation", mismatch.operation},
            {"where", mismatch.where},   {"outcome", static_cast<int>(mismatch.outcome)},
            {"cause", mismatch.cause},   {"action", mismatch.action},
            {"of_all", mismatch.of_all}, {"replay", mismatch.replay}};
  const auto add = [&](const char* key, const auto& value) {
    if (value) json[key] = *value;
  };
  add("index", mismatch.index);
  add("expected", mismatch.expected);
  add("found", mismatch.found);
  add("sm", mismatch.sm);
  add("reproduced", mismatch.reproduced);
  add("repeats", mismatch.repeats);
  if (mismatch.class_) json["class"] = static_cast<int>(*mismatch.class_);
  return json;
}

template <class T>
std::optional<T> optional_of(const Json& json, const char* key) {
  return json.contains(key) ? std::optional(json[key].get<T>()) : std::nullopt;
}

Mismatch mismatch_of(const Json& json) {
  Mismatch mismatch;
  mismatch.load = json["load"];
  mismatch.operation = json["operation"];
  mismatch.where = json["where"];
  mismatch.outcome = static_cast<Outcome>(json["outcome"].get<int>());
  mismatch.cause = json["cause"];
  mismatch.action = json["action"];
  mismatch.of_all = json["of_all"];
  mismatch.replay = json["replay"];
  mismatch.index = optional_of<std::uint64_t>(json, "index");
  mismatch.expected = optional_of<std::uint64_t>(json, "expected");
  mismatch.found = optional_of<std::uint64_t>(json, "found");
  mismatch.sm = optional_of<int>(json, "sm");
  mismatch.reproduced = optional_of<int>(json, "reproduced");
  mismatch.repeats = optional_of<int>(json, "repeats");
  mismatch.class_ = std::nullopt;
  if (json.contains("class")) mismatch.class_ = static_cast<Class>(json["class"].get<int>());
  return mismatch;
}

}  // namespace

std::vector<std::vector<Mismatch>> gather(const MpiSession& session,
                                          const std::vector<Mismatch>& found) {
  Json mine = Json::array();
  for (const Mismatch& mismatch : found) mine.push_back(to_json(mismatch));
  std::vector<std::vector<Mismatch>> by_rank;
  for (const std::string& text : session.all_gather(json_text(mine))) {
    by_rank.emplace_back();
    for (const Json& json : Json::parse(text)) by_rank.back().push_back(mismatch_of(json));
  }
  return by_rank;
}

std::vector<std::optional<std::vector<KernelEvent>>> gather(
    const MpiSession& session, const std::optional<std::vector<KernelEvent>>& events) {
  Json mine;  // null: unknown
  if (events) {
    mine = Json::array();
    for (const KernelEvent& event : *events) mine.push_back(to_json(event));
  }
  std::vector<std::optional<std::vector<KernelEvent>>> by_rank;
  for (const std::string& text : session.all_gather(json_text(mine))) {
    const Json json = Json::parse(text);
    by_rank.emplace_back();
    if (json.is_null()) continue;
    by_rank.back().emplace();
    for (const Json& event : json) by_rank.back()->push_back(kernel_event_of(event));
  }
  return by_rank;
}

}  // namespace shakedown::node

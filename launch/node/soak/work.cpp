#include "launch/node/soak/work.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <future>

#include "common/random.hpp"
#include "launch/node/soak/collective_load.hpp"
#include "launch/node/soak/copies.hpp"
#include "launch/node/soak/memory_test.hpp"
#include "launch/node/soak/probe_load.hpp"
#include "launch/node/soak/soak_options.hpp"

namespace shakedown::node {
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

}  // namespace shakedown::node

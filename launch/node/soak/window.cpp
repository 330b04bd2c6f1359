#include "launch/node/soak/window.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <nlohmann/json.hpp>

#include "common/hash.hpp"
#include "common/nvml.hpp"
#include "common/record.hpp"
#include "launch/node/health/facts/json_fields.hpp"
#include "launch/node/soak/soak_run.hpp"

namespace shakedown::node {
namespace {

/// Share of the samples with one of the reasons; kUnknown where no sample knows them.
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

/// Of an element of C, and so of a product's matrices in all: each has as many bytes.
std::size_t bytes_of(const Phase& phase) {
  return phase.type ? size_of(result_type(*phase.type)) : 0;
}

}  // namespace

void RankWindow::add_health(const GpuWindow& health) {
  sm_clock_mhz = health.sm_clock_mhz;
  power_w = health.power_w;
  temperature_c = health.temperature_c;
  energy_j = health.energy_j;
  hardware_slowdown_share = share_of_reasons(health.reasons, throttle::kHardware);
  thermal_share = share_of_reasons(health.reasons, throttle::kHeat);
  power_cap_share = share_of_reasons(health.reasons, throttle::kPowerCap);
  throttle_reasons = health.throttle_reasons;
}

LoadCount Window::count(LoadKind kind) const {
  LoadCount sum;
  for (const RankWindow& rank : ranks) sum += rank.counts[static_cast<std::size_t>(kind)];
  return sum;
}

double Window::wrong() const {
  double sum = 0;
  for (const LoadKind kind : kLoads) sum += static_cast<double>(count(kind).wrong);
  return sum;
}

double Window::seconds() const {
  double longest = 0;
  for (const RankWindow& rank : ranks) longest = std::max(longest, rank.seconds);
  return longest;
}

std::map<ProductType, ProductCount> product_counts(const std::vector<Window>& windows,
                                                   std::size_t rank) {
  std::map<ProductType, ProductCount> counts;
  for (const Window& window : windows) {
    if (!window.products) continue;
    const LoadCount& of_window =
        window.ranks.at(rank).counts[static_cast<std::size_t>(LoadKind::products)];
    ProductCount& count = counts[window.products->type];
    count.products += static_cast<double>(of_window.checked);
    if (of_window.self_compared == 0) count.turns += static_cast<double>(of_window.turns);
    count.elements = static_cast<double>(window.products->m * window.products->n);
  }
  return counts;
}

Checked checked_by(std::size_t rank, const std::vector<Window>& windows, const Tested& tested,
                   const std::vector<ProductType>& types) {
  Checked checked;
  checked.products = product_counts(windows, rank);
  for (const ProductType type : types) checked.products.try_emplace(type);
  checked.processors = tested.device_processors;
  checked.lanes = tested.lanes;
  if (tested.device_processors < 2 && !windows.empty() && windows.front().ranks.size() < 2)
    for (auto& [type, count] : checked.products) count.turns = 0;  // no turn moves an element
  LoadCount probes, copies, collectives;
  for (const Window& window : windows) {
    const auto& counts = window.ranks.at(rank).counts;
    probes += counts[static_cast<std::size_t>(LoadKind::probes)];
    copies += counts[static_cast<std::size_t>(LoadKind::copies)];
    collectives += counts[static_cast<std::size_t>(LoadKind::collectives)];
  }
  checked.probes = static_cast<double>(probes.checked);
  checked.copied_words = copies.bytes / 8;
  checked.link_words = collectives.bytes / 8;
  const MemoryCoverage& memory = tested.memory;
  if (memory.passes + memory.patterns_done > 0) checked.memory_share = memory.share;
  checked.memory_passes = memory.passes + memory.of_pass;
  return checked;
}

Json record_of(const Window& window) {
  Json fields{{"window", window.index}, {"phase", window.phase}, {"seconds", window.seconds()}};
  if (window.products) fields["operands"] = name_of(window.operands);
  for (const LoadKind kind : kLoads) {
    const std::string name = name_of(kind);
    const LoadCount count = window.count(kind);
    if (count.checked == 0 && count.wrong == 0) continue;
    fields["checked_" + name] = count.checked;
    fields["wrong_" + name] = count.wrong;
    if (count.bytes > 0) fields["bytes_" + name] = count.bytes;
  }
  for (const RankWindow& rank : window.ranks) {
    const LoadCount& products = rank.counts[static_cast<std::size_t>(LoadKind::products)];
    if (products.flop > 0) fields["tflops"].push_back(products.flop / products.seconds / 1e12);
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

SoakWork::SoakWork(const WorkSettings& settings, Backend& backend, const MpiSession& jurors)
    : settings_(settings), backend_(backend), jurors_(jurors) {
  if (backend.kind == BackendKind::gpu) {
    const MemoryInfo memory = backend.device->memory();
    free_share_ = static_cast<double>(memory.free_bytes) / static_cast<double>(memory.total_bytes);
  }
  Device& device = *backend.device;
  if (any_has(settings.phases, LoadKind::probes))
    probes_ = std::make_unique<ProbeLoad>(device, settings_.load, ProbeSettings());
  if (any_has(settings.phases, LoadKind::copies)) {
    CopySettings copies;
    if (device.kind() == BackendKind::cpu) copies.bytes = std::size_t{1} << 20;
    copies_ = std::make_unique<CopyLoad>(device, settings_.load, copies);
  }
  if (any_has(settings.phases, LoadKind::collectives)) {
    collectives_ = std::make_unique<CollectiveLoad>(settings_.load, backend);
    // A transport allocates memory for its first operations; they count in the first window.
    first_collectives_ = collectives_->run(0, first_found_);
  }
  // It needs what the others leave.
  if (any_has(settings.phases, LoadKind::memory)) memory_ = make_memory();
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
  return make_memory_test(*backend_.device, settings_.load, memory);
}

/// In every other window of a type what excites other circuits than random bits do; in the rest
/// integers, whose product is known.
Operands SoakWork::next_operands(ProductType type) {
  constexpr Operands kExciting[] = {Operands::high_toggle, Operands::carries, Operands::low_toggle,
                                    Operands::ties, Operands::denormals};
  const std::size_t window = windows_of_[type]++;
  return window % 2 == 0 ? Operands::integers : kExciting[window / 2 % std::size(kExciting)];
}

std::unique_ptr<ProductLoad> SoakWork::make_products(const Phase& phase, Operands first) {
  ProductSettings settings;
  settings.spec = product_spec(*phase.type, settings_.size);
  if (const auto known = algorithms_.find(*phase.type); known != algorithms_.end())
    settings.algorithm = known->second;
  settings.load = settings_.load;
  settings.pulse_hertz = phase.pulse_hertz;
  settings.first_operands = first;
  settings.load.seed = derive_seed(settings_.load.seed, windows_);
  auto products = std::make_unique<ProductLoad>(settings, *backend_.device, jurors_);
  algorithms_.insert_or_assign(*phase.type, products->algorithm());
  return products;
}

Load& SoakWork::load_of(LoadKind kind) const {
  Load* const loads[] = {products_.get(), probes_.get(), memory_.get(), copies_.get(),
                         collectives_.get()};
  return *loads[static_cast<std::size_t>(kind)];
}

PhaseResult SoakWork::run(const Phase& phase, double seconds, Rates rates) {
  ++windows_;
  products_.reset();
  PhaseResult result;
  if (phase.has(LoadKind::products)) {
    result.operands = next_operands(*phase.type);
    products_ = make_products(phase, result.operands);
  }
  backend_.session->barrier();
  auto& counts = result.window.counts;
  const auto start = std::chrono::steady_clock::now();
  std::array<std::vector<Mismatch>, kLoadKinds> found;
  const auto run_one = [&](LoadKind kind) {
    const auto at = static_cast<std::size_t>(kind);
    counts[at] = load_of(kind).run(phase.share * seconds, found[at]);
    if (kind == LoadKind::collectives) {
      counts[at] += std::exchange(first_collectives_, {});
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
  if (products_ && phase.shape == Shape::steady) {
    if (rates.timed) result.rates = products_->time_alone();
    if (rates.compared && backend_.kind == BackendKind::gpu)  // a CPU's are those of its tenants
      result.window.checked_over_unchecked = products_->checked_over_unchecked();
  }
  result.window.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (const LoadKind kind : phase.loads) {
    const auto at = static_cast<std::size_t>(kind);
    counts[at].wrong += load_of(kind).confer(jurors_, found[at]);
    std::move(found[at].begin(), found[at].end(), std::back_inserter(result.found));
  }
  return result;
}

std::string SoakWork::unturned() const {
  std::vector<std::string> types;
  for (const auto& [type, algorithm] : algorithms_)
    if (!algorithm.turns) types.emplace_back(name_of(type));
  return types.empty() ? ""
                       : fmt::format(
                             "{} products in one turn alone: the library has no algorithm "
                             "that keeps their bits in another",
                             fmt::join(types, ", "));
}

Tested SoakWork::tested() const {
  Tested tested;
  if (memory_) tested.memory = memory_->coverage();
  if (probes_) tested.processors = probes_->times();
  if (copies_) tested.copied = copies_->bytes();
  tested.device_processors = backend_.device->identity().compute_threads;
  if (backend_.kind == BackendKind::gpu) tested.lanes = kLanes;
  return tested;
}

FIELDS_OF(Mismatch, load, operation, where, index, expected, found, sm, reproduced, repeats, of_all,
          replay, outcome, cause, class_, action)

std::vector<std::vector<Mismatch>> gather(const MpiSession& session,
                                          const std::vector<Mismatch>& found) {
  std::vector<std::vector<Mismatch>> by_rank;
  for (const std::string& text : session.all_gather(json_text(found)))
    by_rank.push_back(read_as<std::vector<Mismatch>>(Json::parse(text)));
  return by_rank;
}

std::vector<std::optional<std::vector<KernelEvent>>> gather(
    const MpiSession& session, const std::optional<std::vector<KernelEvent>>& events) {
  std::vector<std::optional<std::vector<KernelEvent>>> by_rank;
  for (const std::string& text : session.all_gather(events ? json_text(*events) : ""))
    by_rank.push_back(text.empty()
                          ? std::nullopt
                          : std::optional(read_as<std::vector<KernelEvent>>(Json::parse(text))));
  return by_rank;
}

}  // namespace shakedown::node

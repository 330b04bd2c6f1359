// What one window of a soak did and met, on every rank.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/mpi_session.hpp"
#include "common/nvml.hpp"
#include "common/program.hpp"
#include "common/record.hpp"
#include "launch/node/health/facts/gpu_reader.hpp"
#include "launch/node/health/facts/kernel_log.hpp"
#include "launch/node/soak/memory_test.hpp"
#include "launch/node/soak/power.hpp"
#include "launch/node/soak/product_load.hpp"
#include "launch/node/soak/schedule.hpp"
#include "launch/node/soak/sm_probe.hpp"
#include "launch/node/soak/transfer_load.hpp"

namespace shakedown::node {

// The loads of one rank, and a phase's work with them.

struct WorkSettings {
  std::vector<Phase> phases;  // of all cycles: which loads there are
  std::int64_t size = 0;      // m and n of the products
  LoadSettings load;          // of all loads
  double retention_s = 10;    // that memory is left alone before it is verified
};

/// What a rank's loads tested in all; exchanged between ranks.
struct Tested {
  MemoryCoverage memory;
  ProcessorTimes processors;       // by the probes
  std::array<double, 3> copied{};  // bytes, by CopyWay
  double device_processors = 0;    // SMs, or threads of the cpu backend
  double lanes = 0;                // of each; 0: not known
};

/// One rank's share of a window, exchanged between ranks. Health is kUnknown where there is no
/// NVML.
struct RankWindow {
  std::array<LoadCount, kLoadKinds> counts;  // by LoadKind
  double checked_over_unchecked = kUnknown;  // rates of products
  double seconds = 0;
  double sm_clock_mhz = kUnknown, power_w = kUnknown, temperature_c = kUnknown, energy_j = kUnknown;
  double hardware_slowdown_share = kUnknown;  // of the samples: HW slowdown or power brake
  double thermal_share = kUnknown;            // of the samples: HW or SW thermal slowdown
  double power_cap_share = kUnknown;
  std::optional<std::uint64_t> throttle_reasons = {};  // of any sample
  HealthDelta errors;
  bool stop = false;           // a signal has come
  bool over = false;           // the time is over, on rank 0
  bool memory_covered = true;  // by every pattern, if it is to be

  void add_health(const GpuWindow& health);
};

/// What a phase did on this rank.
struct PhaseResult {
  RankWindow window;  // without health
  std::vector<Mismatch> found;
  ProductRates rates;                      // of steady products; else empty
  Operands operands = Operands::integers;  // of the first seed of products
};

class SoakWork {
 public:
  /// Collective. `jurors`: the ranks with this rank's model of device.
  SoakWork(const WorkSettings& settings, Backend& backend, const MpiSession& jurors);

  /// Of steady products: what is measured of their rates afterwards.
  struct Rates {
    bool timed = false;     // those of products alone
    bool compared = false;  // of checked products with those of others
  };
  /// Collective. `seconds`: of a phase of share 1.
  PhaseResult run(const Phase& phase, double seconds, Rates rates);

  Tested tested() const;
  /// Of the type's products, once they were made.
  const std::string& algorithm_of(ProductType type) const { return algorithms_.at(type).name; }
  /// "fp32 products in one turn alone: ..."; empty: those of all types were turned.
  std::string unturned() const;

 private:
  std::unique_ptr<ProductLoad> make_products(const Phase& phase,
                                             Operands first = Operands::integers);
  Operands next_operands(ProductType type);
  /// Nearly all memory that is left, but for the products.
  std::unique_ptr<MemoryTest> make_memory();
  Load& load_of(LoadKind kind) const;

  WorkSettings settings_;
  Backend& backend_;
  const MpiSession& jurors_;
  std::map<ProductType, AlgorithmChoice> algorithms_;
  double free_share_ = 1;  // of the GPU's memory, before the loads allocated any
  std::uint64_t windows_ = 0;
  std::map<ProductType, std::size_t> windows_of_;
  LoadCount first_collectives_;  // made before the first window
  std::vector<Mismatch> first_found_;
  std::unique_ptr<ProductLoad> products_;  // of the phase
  std::unique_ptr<ProbeLoad> probes_;      // this and the others: null where no phase has them
  std::unique_ptr<CopyLoad> copies_;
  std::unique_ptr<CollectiveLoad> collectives_;
  std::unique_ptr<MemoryTest> memory_;
};

struct Window {
  int index = 0;
  std::string phase;
  std::optional<ProductType> steady_products;  // a rate that GPUs are compared by
  std::vector<RankWindow> ranks;
  // By rank, of its GPU; none: the kernel's messages cannot be read. Empty without GPUs.
  std::vector<std::optional<std::vector<KernelEvent>>> kernel_events = {};
  std::optional<ProductSpec> products = {};  // of its products, in any shape
  Operands operands = Operands::integers;    // of their first seed

  /// Of all ranks.
  LoadCount count(LoadKind kind) const;
  double wrong() const;
  /// Of the slowest rank.
  double seconds() const;
};

/// What one rank checked in all windows, by type: of those with products. Turns whose products were
/// compared only with themselves do not count.
std::map<ProductType, ProductCount> product_counts(const std::vector<Window>& windows,
                                                   std::size_t rank);
/// And of all loads: what the soak's power follows from. `types`: that were to be checked.
Checked checked_by(std::size_t rank, const std::vector<Window>& windows, const Tested& tested,
                   const std::vector<ProductType>& types);

/// The fields of a "soak" record.
Json record_of(const Window& window);

// What ranks exchange of a window next to its numbers. Collective.

/// By rank.
std::vector<std::vector<Mismatch>> gather(const MpiSession& session,
                                          const std::vector<Mismatch>& found);
std::vector<std::optional<std::vector<KernelEvent>>> gather(
    const MpiSession& session, const std::optional<std::vector<KernelEvent>>& events);

}  // namespace shakedown::node

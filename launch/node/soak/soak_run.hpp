// A soak from its first window to its verdicts.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/exit_code.hpp"
#include "common/judge/court.hpp"
#include "common/mpi_session.hpp"
#include "common/record.hpp"
#include "common/text_table.hpp"
#include "launch/node/compute/results.hpp"
#include "launch/node/soak/findings.hpp"
#include "launch/node/soak/options.hpp"

namespace shakedown::node {

/// Every call is collective; rank 0 prints and records.
class SoakRun {
 public:
  /// `before`: the processes on the GPUs before this job opened them.
  SoakRun(const SoakOptions& options, const std::vector<NodeReport>& before, Backend& backend,
          MpiSession& session, Record& record);

  ExitCode run();

 private:
  std::vector<Phase> phases(int cycle) const;
  void run_windows(SoakWork& work);
  void run_cycles(SoakWork& work);
  void check_loads_run(const std::vector<Phase>& cycle) const;
  Window run_window(SoakWork& work, const Phase& phase, bool comparing);
  void collect(const Window& window, std::vector<Mismatch> found);
  void keep_capsule(Incident& incident);
  judge::Evidence evidence_of_rates(const SoakWork& work);
  ExitCode conclude(const SoakWork& work);
  double elapsed_s() const;

  const SoakOptions& options_;
  const std::vector<NodeReport>& before_;
  Backend& backend_;
  MpiSession& session_;
  Record& record_;
  StopSignals signals_;
  std::optional<FaultKind> fault_;  // of this rank
  std::vector<ProductType> types_;
  std::vector<RankIdentity> ranks_;
  std::unique_ptr<MpiSession> jurors_;
  std::shared_ptr<Nvml> nvml_;
  std::unique_ptr<GpuHealth> health_;
  KernelWatch kernel_;
  Json identity_;  // of every record
  double window_s_ = 0;
  std::chrono::steady_clock::time_point start_;
  std::optional<judge::Court> court_;          // on rank 0
  std::map<ProductType, ProductRates> rates_;  // of this rank's steady products
  std::vector<Window> windows_;
  std::vector<Incident> incidents_;
};

}  // namespace shakedown::node

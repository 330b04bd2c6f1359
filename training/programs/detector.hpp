// Training that detects wrong GPUs: checks every K-th update, and injects the faults of tests.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "common/exit_code.hpp"
#include "common/program.hpp"
#include "training/measure/neighbour_check.hpp"
#include "training/programs/run.hpp"

namespace shakedown::training {

class Detector {
 public:
  /// By run.options.detector; `run` must outlive it. Collective. Throws UsageError where ranks
  /// cannot be compared, or --inject-fault names what nothing would find.
  explicit Detector(const Run& run);
  Detector(const Detector&) = delete;
  Detector& operator=(const Detector&) = delete;
  ~Detector();

  /// Of the engine's updates from here on, checks the first and every K-th after it, before it is
  /// computed. Where gradients differ, prints and records the verdicts, keeps the step as a
  /// capsule, and throws FailError on every rank (InconclusiveError where no two of three agree).
  void start(long updates_per_epoch = 0);
  /// The end of that: prints and records what was checked and what it cost.
  ExitCode finish();
  /// What --inject-fault slow adds to each step, on its rank.
  void delay() const;

 private:
  void before_update();
  void check();
  [[noreturn]] void conclude(const std::vector<Dispute>& disputes);
  /// Returns the capsule's path; empty where it cannot be written.
  std::string keep_step(const std::vector<Dispute>& disputes, const Names& names);
  Json described_step(const Names& names);
  void record_check(std::size_t disputes, const std::string& capsule);
  void conclude_with(const Verdict& verdict);

  const Run& run_;
  const DetectorOptions& options_;
  Engine& engine_;
  std::optional<Fault> fault_;
  std::optional<NeighbourCheck> check_;
  long updates_per_epoch_ = 0;  // 0: there are no epochs
  long updates_ = 0;
  long checked_ = 0;
  double check_s_ = 0;
  std::chrono::steady_clock::time_point started_;
};

}  // namespace shakedown::training

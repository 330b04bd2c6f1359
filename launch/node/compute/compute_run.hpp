// A run of compute_perf: builds the tests, measures, judges, measures what is slow again.
#pragma once

#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/exit_code.hpp"
#include "common/judge/court.hpp"
#include "common/units.hpp"
#include "launch/node/compute/product.hpp"
#include "launch/node/compute/results.hpp"

namespace shakedown::node {

// The options of compute_perf.

struct ComputeOptions {
  std::vector<std::string> tests = {"products", "memory", "host"};
  std::vector<std::string> types;  // none: all that every device has
  int size = 0;                    // 0: by backend
  std::string memory_bytes;        // empty: by backend
  double seconds = 1.5;
  int rounds = 5;
  std::string record;
  judge::JudgeOptions judge;
  BackendOptions backend;
  std::string fault;  // for tests

  bool has(const std::string& test) const;
};

void declare_options(OptionSet& options, ComputeOptions& values);

/// Sizes by the backend, where no option gives them. Throws UsageError.
ProductSpec product_spec(const ComputeOptions& options, ProductType type, const Unit& unit);
std::size_t buffer_bytes(const ComputeOptions& options, BackendKind kind);

/// Why the rates of memory are not those of memory: a GPU's caches may hold the buffers. Empty
/// where they cannot, or nothing of it is measured.
std::string cached_by(const ComputeOptions& options, BackendKind kind);

/// `before`: by read_processes, before the backend was opened. Collective. Throws UsageError for
/// what the options and the devices do not allow.
ExitCode run_compute(const ComputeOptions& options, Backend& backend, MpiSession& session,
                     const std::vector<NodeReport>& before, Record& record);

}  // namespace shakedown::node

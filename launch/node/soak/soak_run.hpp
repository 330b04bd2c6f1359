// A soak: its options, and its run from the first window to the verdicts.
#pragma once

#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/exit_code.hpp"
#include "common/judge/court.hpp"
#include "common/record.hpp"
#include "launch/node/compute/product.hpp"

namespace shakedown::node {

struct NodeReport;

struct SoakOptions {
  double minutes = 15;
  std::vector<std::string> types{"all"};
  std::vector<std::string> loads{"all"};
  std::vector<std::string> shapes{"all"};
  int size = 0;  // by backend
  int seed = 1;
  std::string output = ".";
  std::string record;
  std::string replay;
  int repeats = 100;
  BackendOptions backend;
  judge::JudgeOptions judge;
  std::string fault;  // for tests
};

void declare_options(OptionSet& options, SoakOptions& values);

/// The product of this m and n. A, B and C have as many bytes each: k is m where their elements are
/// of one size, twice as large in fp8 and four times in int8, so that C takes no larger share of a
/// product's time to hash.
ProductSpec product_spec(ProductType type, std::int64_t size);

/// `before`: the processes on the GPUs before this job opened them. Collective; rank 0 prints and
/// records.
ExitCode run_soak(const SoakOptions& options, const std::vector<NodeReport>& before,
                  Backend& backend, MpiSession& session, Record& record);

}  // namespace shakedown::node

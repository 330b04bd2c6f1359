// How ranks exchange gradients. The step drives: it tells the strategy what backward has finished
// and asks it, at the end, which averaged gradients this rank holds.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/communicator.hpp"
#include "common/device.hpp"
#include "resnet/architecture.hpp"

namespace shakedown {

class OptionSet;

struct StrategyOptions {
  std::string strategy = "ddp";
  double bucket_cap_mb = 25;   // MiB
  double first_bucket_mb = 1;  // MiB
  bool per_tensor = false;     // all-reduce: one operation a parameter
};
void declare_options(OptionSet& options, StrategyOptions& values);

class Strategy {
 public:
  virtual ~Strategy() = default;

  /// Backward has enqueued, on the compute stream, the work that finishes these gradients. Ranges
  /// come in the flat buffer's order. With accumulation, only the last micro-batch's count.
  virtual void gradients_ready(Range range) = 0;

  /// After backward: makes the compute stream wait for the exchange. Returns the ranges whose
  /// gradients, averaged over the ranks that compute, this rank now holds.
  virtual std::vector<Range> finish() = 0;

  /// The ranges that are exchanged as one, for reports; empty where there are none.
  virtual std::vector<Range> buckets() const { return {}; }
};

/// What a strategy works on. Everything outlives it.
struct StrategyContext {
  Device& device;
  Stream& compute;
  Communicator& world;
  const ParameterTable& table;
  View gradients;  // the flat buffer
  const StrategyOptions& options;
};

struct StrategyEntry {
  const char* name;
  const char* summary;
  /// The strategy whose weights it must match after the same steps, or "": then `waived` says why.
  const char* reference;
  const char* waived;
  /// Whether every rank holds the same weights after every step.
  bool ranks_agree;
  std::unique_ptr<Strategy> (*make)(const StrategyContext& context);
};

/// The one list of strategies.
const std::vector<StrategyEntry>& strategies();
/// Throws UsageError listing the known names.
const StrategyEntry& find_strategy(const std::string& name);

std::unique_ptr<Strategy> make_none(const StrategyContext& context);
std::unique_ptr<Strategy> make_all_reduce(const StrategyContext& context);
std::unique_ptr<Strategy> make_ddp(const StrategyContext& context);

}  // namespace shakedown

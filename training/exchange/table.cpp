#include <fmt/format.h>

#include "common/error.hpp"
#include "common/options.hpp"
#include "training/exchange/entries.hpp"

namespace shakedown::training {

const std::vector<StrategyEntry>& strategies() {
#define ENTRY(name) name##_strategy(),
  static const std::vector<StrategyEntry> table{SHAKEDOWN_STRATEGIES(ENTRY)};
#undef ENTRY
  return table;
}

const StrategyEntry& find_strategy(const std::string& name) {
  for (const StrategyEntry& entry : strategies())
    if (name == entry.name) return entry;
  std::string known;
  for (const StrategyEntry& entry : strategies())
    known += fmt::format("{}{}", known.empty() ? "" : ", ", entry.name);
  throw UsageError(fmt::format("--strategy {}: one of {}", name, known));
}

namespace {

std::vector<std::string> names_where(bool (*so)(const StrategyEntry&)) {
  std::vector<std::string> names;
  for (const StrategyEntry& entry : strategies())
    if (so(entry)) names.emplace_back(entry.name);
  return names;
}

}  // namespace

void declare_options(OptionSet& options, StrategyOptions& values) {
  std::vector<std::string> names;
  std::string help;
  for (const StrategyEntry& entry : strategies()) {
    names.emplace_back(entry.name);
    help += fmt::format("{}{}: {}", help.empty() ? "" : "; ", entry.name, entry.summary);
  }
  options.heading("Gradient exchange");
  options.add("--strategy", values.strategy, help).one_of(names);
  const auto add = [&](const char* name, auto& value, const char* meaning,
                       const std::vector<std::string>& used_by) -> Option& {
    return options.add(name, value, meaning).only_where("--strategy", used_by);
  };
  const auto bucketed = names_where([](const StrategyEntry& entry) { return entry.bucketed; });
  add("--bucket-cap-mb", values.bucket_cap_mb, "MiB of a bucket", bucketed).at_least(0);
  add("--first-bucket-mb", values.first_bucket_mb,
      "MiB of the first bucket; by --bucket-order small-last of the last", bucketed)
      .at_least(0);
  add("--bucket-order", values.bucket_order,
      "the small bucket is the first (PyTorch's ddp) or the last to become ready", bucketed)
      .one_of({"ddp", "small-last"});
  add("--grad-dtype", values.grad_dtype,
      "type of the gradients that are exchanged; auto: as computed; fp16 scales the loss as "
      "--precision fp16 does",
      names_where([](const StrategyEntry& entry) { return entry.any_type; }))
      .one_of({"auto", "fp32", "fp16", "bf16"});
  add("--bucket-copy", values.bucket_copy,
      "buckets are copies of the gradients, as PyTorch's without gradient_as_bucket_view, not "
      "views of them",
      {"ddp"});
  add("--broadcast-buffers", values.broadcast_buffers,
      "every update starts with rank 0's running statistics of the norms, PyTorch's default",
      {"ddp"});
  const auto overlapping = names_where([](const StrategyEntry& entry) { return entry.overlaps; });
  add("--no-overlap", values.no_overlap, "the stream that computes exchanges too", overlapping);
  add("--comm-priority", values.comm_priority,
      "of the stream that exchanges, over the one that computes", overlapping)
      .one_of({"high", "normal"});
  add("--per-tensor", values.per_tensor, "one operation a parameter", {"all-reduce"});
  add("--ps-exchange", values.ps_exchange,
      "a star of sends and receives, or collectives in its place", {"parameter-server"})
      .one_of({"send-receive", "reduce-broadcast"});
  add("--ps-partition-mb", values.ps_partition_mb,
      "MiB of a piece, pulled while the next is pushed; 0: all at once", {"parameter-server"})
      .at_least(0);
  add("--staleness", values.staleness, "steps that a worker may be ahead of the slowest",
      {"parameter-server-async"})
      .at_least(0);
}

}  // namespace shakedown::training

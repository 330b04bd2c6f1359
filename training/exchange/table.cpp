#include <fmt/format.h>

#include <functional>

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
  throw UsageError(fmt::format("--strategy {}: must be one of {}", name, known));
}

namespace {

std::vector<std::string> names_where(auto property) {
  std::vector<std::string> names;
  for (const StrategyEntry& entry : strategies())
    if (std::invoke(property, entry)) names.emplace_back(entry.name);
  return names;
}

}  // namespace

void declare_options(OptionSet& options, StrategyOptions& values) {
  std::string help = "exchange of gradients and weights";
  for (const StrategyEntry& entry : strategies())
    help += fmt::format("\n{}: {}", entry.name, entry.summary);
  options.heading("Gradient exchange");
  const auto all = names_where([](const StrategyEntry&) { return true; });
  options.add("--strategy", values.strategy, help).one_of(all);
  const auto add = [&](const char* name, auto& value, const char* meaning,
                       const std::vector<std::string>& used_by) -> Option& {
    return options.add(name, value, meaning).only_where("--strategy", used_by);
  };
  const auto bucketed = names_where(&StrategyEntry::bucketed);
  add("--bucket-cap-mb", values.bucket_cap_mb, "size of a gradient bucket", bucketed)
      .at_least(0)
      .metavar("MIB");
  add("--small-bucket-mb,--first-bucket-mb", values.small_bucket_mb,
      "size of the small bucket, see --bucket-order", bucketed)
      .at_least(0)
      .metavar("MIB");
  add("--bucket-order", values.bucket_order,
      "whether the small bucket is the first to become ready (as in PyTorch DDP) or the last",
      bucketed)
      .one_of({"small-first", "small-last"})
      .unlisted({"ddp"});
  add("--grad-dtype", values.grad_dtype,
      "type of the exchanged gradients; auto: as computed; fp16 enables loss scaling, as "
      "--precision fp16 does",
      names_where(&StrategyEntry::any_type))
      .one_of({"auto", "fp32", "fp16", "bf16"});
  add("--bucket-copy", values.bucket_copy,
      "copy gradients into buckets, as PyTorch DDP without gradient_as_bucket_view", {"ddp"});
  add("--broadcast-buffers", values.broadcast_buffers,
      "broadcast rank 0's running statistics before each update, as PyTorch DDP's default",
      {"ddp"});
  const auto overlapping = names_where(&StrategyEntry::overlaps);
  add("--no-overlap", values.no_overlap, "run communication on the compute stream, without overlap",
      overlapping);
  add("--comm-priority", values.comm_priority, "CUDA priority of the communication stream",
      overlapping)
      .one_of({"high", "normal"})
      .idle_with({"--no-overlap"});
  add("--per-tensor", values.per_tensor, "run one all-reduce per parameter tensor", {"all-reduce"});
  add("--ps-exchange", values.ps_exchange,
      "parameter server by point-to-point messages (a star) or by collectives",
      {"parameter-server"})
      .one_of({"send-receive", "reduce-broadcast"});
  add("--ps-partition-mb", values.ps_partition_mb,
      "size of the pieces that are pulled while the next is pushed; 0: everything at once",
      {"parameter-server"})
      .at_least(0)
      .only_where("--ps-exchange", {"send-receive"})
      .metavar("MIB");
  add("--staleness", values.staleness, "steps by which a worker may be ahead of the slowest",
      {"parameter-server-async"})
      .at_least(0);
}

}  // namespace shakedown::training

#include <fmt/format.h>

#include "common/error.hpp"
#include "common/options.hpp"
#include "training/strategies/entries.hpp"

namespace shakedown {

const std::vector<StrategyEntry>& strategies() {
  static const std::vector<StrategyEntry> table{none_strategy(),
                                                all_reduce_strategy(),
                                                ddp_strategy(),
                                                parameter_server_strategy(),
                                                parameter_server_sharded_strategy(),
                                                parameter_server_async_strategy(),
                                                data_parallel_strategy(),
                                                zero1_strategy(),
                                                zero2_strategy(),
                                                fsdp_strategy()};
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

void declare_options(OptionSet& options, StrategyOptions& values) {
  std::vector<std::string> names;
  std::string help;
  for (const StrategyEntry& entry : strategies()) {
    names.emplace_back(entry.name);
    help += fmt::format("{}{}: {}", help.empty() ? "" : "; ", entry.name, entry.summary);
  }
  options.heading("Gradient exchange");
  options.add("--strategy", values.strategy, help).one_of(names);
  options.add("--bucket-cap-mb", values.bucket_cap_mb, "ddp, zero1: MiB of a bucket").at_least(0);
  options
      .add("--first-bucket-mb", values.first_bucket_mb,
           "ddp, zero1: MiB of the first bucket; by --bucket-order small-last of the last")
      .at_least(0);
  options
      .add("--bucket-order", values.bucket_order,
           "ddp, zero1: the small bucket is the first (PyTorch's ddp) or the last to become ready")
      .one_of({"ddp", "small-last"});
  options
      .add("--grad-dtype", values.grad_dtype,
           "ddp, all-reduce: type of the gradients that are exchanged; auto: as computed; fp16 "
           "scales the loss as --precision fp16 does")
      .one_of({"auto", "fp32", "fp16", "bf16"});
  options.add("--bucket-copy", values.bucket_copy,
              "ddp: buckets are copies of the gradients, as PyTorch's without "
              "gradient_as_bucket_view, not views of them");
  options.add("--broadcast-buffers", values.broadcast_buffers,
              "ddp: every update starts with rank 0's running statistics of the norms, PyTorch's "
              "default");
  options.add("--no-overlap", values.no_overlap,
              "ddp, zero1, zero2, fsdp: the stream that computes exchanges too");
  options
      .add("--comm-priority", values.comm_priority,
           "ddp, zero1, zero2, fsdp: of the stream that exchanges, over the one that computes")
      .one_of({"high", "normal"});
  options.add("--per-tensor", values.per_tensor, "all-reduce: one operation a parameter");
  options
      .add("--ps-exchange", values.ps_exchange,
           "parameter-server: a star of sends and receives, or collectives in its place")
      .one_of({"send-receive", "reduce-broadcast"});
  options
      .add("--ps-partition-mb", values.ps_partition_mb,
           "parameter-server: MiB of a piece, pulled while the next is pushed; 0: all at once")
      .at_least(0);
  options
      .add("--staleness", values.staleness,
           "parameter-server-async: steps that a worker may be ahead of the slowest")
      .at_least(0);
  options.heading("");
  options.add("--inject-lost-share", values.lose_share,
              "the exchange loses the last rank's gradients of the stem");
}

}  // namespace shakedown

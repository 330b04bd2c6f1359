#include <fmt/format.h>

#include "common/error.hpp"
#include "common/options.hpp"
#include "training/strategy.hpp"

namespace shakedown {

const std::vector<StrategyEntry>& strategies() {
  static const std::vector<StrategyEntry> table{
      {"none", "no exchange: the upper bound", "", "ranks train apart", false, make_none},
      {"all-reduce", "one all-reduce after backward", "",
       "the reference; the tests hold it against a serial emulation of the ranks", true,
       make_all_reduce},
      {"ddp", "buckets all-reduced while backward runs", "all-reduce", "", true, make_ddp},
  };
  return table;
}

const StrategyEntry& find_strategy(const std::string& name) {
  std::string known;
  for (const StrategyEntry& entry : strategies()) {
    if (name == entry.name) return entry;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", entry.name);
  }
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
  options.add("--bucket-cap-mb", values.bucket_cap_mb, "ddp: MiB of a bucket").at_least(0);
  options.add("--first-bucket-mb", values.first_bucket_mb, "ddp: MiB of the first bucket")
      .at_least(0);
  options.add("--per-tensor", values.per_tensor, "all-reduce: one operation a parameter");
}

}  // namespace shakedown

#include "training/programs/configurations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "common/communicator.hpp"
#include "common/error.hpp"
#include "common/mpi_session.hpp"
#include "resnet/precision.hpp"
#include "training/exchange/strategy.hpp"
#include "training/programs/settings.hpp"

namespace shakedown::training {
namespace {

template <class T>
std::vector<T> each_once(const std::vector<T>& values) {
  std::vector<T> once;
  for (const T& value : values)
    if (std::find(once.begin(), once.end(), value) == once.end()) once.push_back(value);
  return once;
}

bool has(const std::vector<int>& values, int value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

/// The precisions that are computed, each once: auto is not measured in addition to its value.
std::vector<std::string> precisions_of(const CompareOptions& options, BackendKind backend) {
  std::vector<std::string> names;
  for (const std::string& name : options.precisions)
    names.push_back(name_of(parse_precision(name, backend)));
  return each_once(names);
}

void add(Bench& bench, const StepOptions& base, const std::string& strategy, double bucket_cap_mb,
         int ranks) {
  const auto same = [&](const Configuration& known) {
    return known.setting.empty() && known.strategy() == strategy && known.ranks == ranks &&
           known.options.strategy.bucket_cap_mb == bucket_cap_mb;
  };
  if (std::any_of(bench.begin(), bench.end(), same)) return;
  Configuration& added = bench.emplace_back(Configuration{base, ranks, ""});
  added.options.strategy.strategy = strategy;
  added.options.strategy.bucket_cap_mb = bucket_cap_mb;
}

std::vector<int> numbers_of_ranks(const CompareOptions& options, int world_size) {
  return options.ranks.empty() ? std::vector<int>{world_size} : options.ranks;
}

/// Why the job's first `ranks` ranks cannot run the strategy; "" if they can.
std::string obstacle(const std::string& strategy, int ranks, const JobRanks& job) {
  const StrategyEntry& entry = find_strategy(strategy);
  if (ranks < entry.ranks.least) return fmt::format("needs {}", entry.ranks.least);
  return entry.peers && ranks > job.peers ? job.no_peers : "";
}

bool names_strategies(const CompareOptions& options) {
  return each_once(options.strategies).size() < strategies().size();
}

/// Of the numbers of ranks to compare, those that can run the strategy. One that is named and that
/// none of them can run is tried nevertheless: what was requested is not silently left out.
std::vector<int> ranks_for(const std::string& strategy, const CompareOptions& options,
                           const JobRanks& job) {
  const std::vector<int> all = numbers_of_ranks(options, job.count);
  std::vector<int> able = all;
  std::erase_if(able, [&](int ranks) { return !obstacle(strategy, ranks, job).empty(); });
  return able.empty() && names_strategies(options) ? all : able;
}

/// The largest of `ranks` that the job has.
int most_ranks(const std::vector<int>& ranks, int world_size) {
  int most = 0;
  for (int n : ranks)
    if (n <= world_size) most = std::max(most, n);
  return most;
}

/// "NCCL_P2P_DISABLE=1" where the user keeps NCCL, and so this program, from peer access; or "".
std::string peer_access_off() {
  for (const auto& [name, off] :
       {std::pair("NCCL_P2P_DISABLE", "1"), {"NCCL_P2P_LEVEL", "LOC"}, {"NCCL_P2P_LEVEL", "0"}})
    if (const char* value = std::getenv(name); value != nullptr && std::string(value) == off)
      return fmt::format("{}={}", name, off);
  return "";
}

/// Plain ddp, and what differs from it in one switch.
void add_settings(Bench& bench, const CompareOptions& options, const StepOptions& base, int ranks,
                  BackendKind backend) {
  const auto& requested = options.settings;
  if (requested.empty()) return;
  StepOptions plain = base;
  plain.strategy.strategy = "ddp";
  plain.strategy.bucket_cap_mb = options.bucket_caps_mb.front();
  add(bench, plain, "ddp", plain.strategy.bucket_cap_mb, ranks);
  for (const Setting& setting : settings()) {
    if (std::find(requested.begin(), requested.end(), setting.name) == requested.end()) continue;
    Configuration changed{plain, ranks, setting.name};
    if (setting.apply(changed.options, backend).empty()) bench.push_back(std::move(changed));
  }
}

Bench bench_of(const CompareOptions& options, const StepOptions& base, const JobRanks& job) {
  const std::vector<double>& caps = options.bucket_caps_mb;
  const std::vector<int> numbers = numbers_of_ranks(options, job.count);
  Bench bench;
  add(bench, base, "none", caps.front(), 1);
  for (int ranks : numbers) {
    add(bench, base, "none", caps.front(), ranks);
    for (const std::string& strategy : options.strategies)
      if (has(ranks_for(strategy, options, job), ranks))
        for (double cap : caps)
          add(bench, base, strategy, find_strategy(strategy).bucketed() ? cap : caps.front(),
              ranks);
  }
  add_settings(bench, options, base, most_ranks(numbers, job.count), job.backend);
  return bench;
}

/// Those requested that no bench has, with the reason.
std::vector<std::string> idle_settings(const CompareOptions& options, BackendKind backend,
                                       const std::vector<Bench>& benches) {
  std::vector<std::string> idle;
  for (const std::string& name : options.settings) {
    const auto measured = [&](const Bench& bench) {
      return std::any_of(bench.begin(), bench.end(),
                         [&](const Configuration& c) { return c.setting == name; });
    };
    if (std::any_of(benches.begin(), benches.end(), measured)) continue;
    StepOptions plain = benches.front().front().options;
    idle.push_back(
        fmt::format("--settings {}: {}", name, find_setting(name).apply(plain, backend)));
  }
  return idle;
}

}  // namespace

std::string strategy_label(const Configuration& c) {
  const std::string& strategy = c.strategy();
  if (strategy == "none" && c.ranks == 1) return "none (single)";
  if (!c.setting.empty()) return fmt::format("{}, {}", strategy, c.setting);
  if (!find_strategy(strategy).bucketed()) return strategy;
  return fmt::format("{}, {:g} MiB", strategy, c.options.strategy.bucket_cap_mb);
}

std::string label_of(const Configuration& c) {
  return fmt::format("{} on {} rank{}", strategy_label(c), c.ranks, c.ranks == 1 ? "" : "s");
}

JobRanks ranks_of(const CompareOptions& options, Backend& backend, const MpiSession& session) {
  const int count = session.world_size();
  const auto with_peers = [&](int peers, const std::string& why_no_more) {
    return JobRanks{backend.kind, count, peers, why_no_more};
  };
  if (names_strategies(options)) return with_peers(count, "");  // a named one is tried
  if (backend.kind != BackendKind::gpu) return with_peers(0, "needs GPUs");
  for (const std::string& off : session.all_gather(peer_access_off()))
    if (!off.empty()) return with_peers(0, off);
  const std::vector<std::string>& hosts = session.hosts();
  const auto elsewhere = std::find_if(
      hosts.begin(), hosts.end(), [&](const std::string& host) { return host != hosts.front(); });
  if (elsewhere != hosts.end())
    return with_peers(static_cast<int>(elsewhere - hosts.begin()), "needs GPUs of one node");
  try {
    backend.world->peers();
    return with_peers(count, "");
  } catch (const UsageError& error) {  // the same on all ranks
    return with_peers(0, error.what());
  }
}

std::vector<Bench> benches_of(const CompareOptions& options, const JobRanks& job) {
  const std::vector<int>& ranks = options.ranks;
  if (!ranks.empty() && *std::min_element(ranks.begin(), ranks.end()) > job.count)
    throw UsageError(fmt::format("--ranks {}: the job has {} rank{}", fmt::join(ranks, ","),
                                 job.count, job.count == 1 ? "" : "s"));
  std::vector<Bench> benches;
  for (const std::string& model : each_once(options.models))
    for (const std::string& precision : precisions_of(options, job.backend))
      for (int batch_size : each_once(options.batch_sizes)) {
        StepOptions base = options.train;
        base.model.model = model;
        base.model.precision = precision;
        base.batch_size = batch_size;
        benches.push_back(bench_of(options, base, job));
      }
  const auto idle = idle_settings(options, job.backend, benches);
  if (!idle.empty() && options.settings.size() < settings().size()) throw UsageError(idle.front());
  return benches;
}

std::string left_out(const CompareOptions& options, const JobRanks& job,
                     const std::vector<Bench>& benches) {
  auto reasons = idle_settings(options, job.backend, benches);
  for (const std::string& strategy : each_once(options.strategies))
    for (int ranks : each_once(numbers_of_ranks(options, job.count)))
      if (!has(ranks_for(strategy, options, job), ranks))
        reasons.push_back(fmt::format("{} on {} rank{}: {}", strategy, ranks, ranks == 1 ? "" : "s",
                                      obstacle(strategy, ranks, job)));
  std::string text = precision_remark("--precisions", options.precisions, job.backend);
  if (!reasons.empty())
    text += fmt::format("{}left out: {}", text.empty() ? "" : "; ", fmt::join(reasons, "; "));
  return text;
}

std::vector<std::size_t> turns(std::size_t count, int round, int rounds) {
  std::vector<std::size_t> order;
  const std::size_t first =
      count * static_cast<std::size_t>(round) / static_cast<std::size_t>(rounds);
  for (std::size_t i = 0; i < count; ++i) order.push_back((first + i) % count);
  return order;
}

}  // namespace shakedown::training

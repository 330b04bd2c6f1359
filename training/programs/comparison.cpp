#include "training/programs/comparison.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "common/communicator.hpp"
#include "common/error.hpp"
#include "common/mpi_session.hpp"
#include "common/program.hpp"
#include "common/text_table.hpp"
#include "resnet/architecture.hpp"
#include "training/exchange/strategy.hpp"
#include "training/measure/breakdown.hpp"
#include "training/measure/throughput.hpp"
#include "training/programs/compare_options.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {
namespace {

/// One configuration, ready to run; all its memory is freed with it.
struct Trial {
  Trial(const EngineSettings& settings, Backend& backend) : engine(settings, backend) {}
  Engine engine;
  std::optional<TrainingData> data;
};

/// The result of a configuration that may not be possible; its batch may be unknown.
Result unmeasured(const Configuration& configuration, const Job& job) {
  const StepOptions& o = configuration.options;
  Result result;
  result.configuration = configuration;
  result.identity =
      identity_of(o, o.global_batch == 0 ? std::optional(o.batch_size) : std::nullopt,
                  job.data.classes(), configuration.ranks, job.backend, job.data.name());
  result.identity.setting = configuration.setting;
  return result;
}

/// Null if one of the ranks cannot: then result.skipped has the reasons of all.
std::unique_ptr<Trial> set_up(Result& result, Backend& backend, const MpiSession& ranks,
                              const Job& job) {
  std::unique_ptr<Trial> trial;
  const auto possible = [&](const std::function<void()>& attempt) {
    std::string problem;
    try {
      attempt();
    } catch (const UsageError& error) {
      problem = error.what();
    }
    for (const std::string& text : ranks.all_gather(problem))
      if (!text.empty() && result.skipped.empty()) result.skipped = text;
    return result.skipped.empty();
  };
  const bool fits =
      possible([&] {
        EngineSettings settings =
            engine_settings(result.configuration.options, backend, job.data.classes());
        settings.input_bytes = input_bytes(job.options.train.data, settings, backend);
        result.identity.batch_size = settings.network.batch_size;
        trial = std::make_unique<Trial>(settings, backend);
      }) &&
      possible([&] {  // together: ranks ask one another
        trial->engine.allocate(ranks_on_device(backend, ranks));
        trial->data.emplace(job.options.train.data, job.data, trial->engine.settings(), backend,
                            trial->engine.stream());
      });
  return fits ? std::move(trial) : nullptr;
}

/// One turn, on the ranks that the configuration has.
void measure(Result& result, Backend& backend, const MpiSession& ranks, const Job& job) {
  auto trial = set_up(result, backend, ranks, job);
  if (!trial) return;
  Engine& engine = trial->engine;
  const TimingOptions& timing = job.options.train.timing;
  const double learning_rate = engine.learning_rate();
  BatchSource& batches = trial->data->training();
  Round round;
  round.throughput = measure_throughput(engine, batches, timing, ranks);
  try {
    check_trained(round.throughput);
    check_weights(engine, ranks, "after the timed steps");
    if (engine.step.strategy_entry().ranks_agree)
      check_ranks_agree(engine, ranks, "after the timed steps");
  } catch (const FailError& error) {  // the same on all ranks
    result.failure = error.what();
  }
  round.profile =
      profile_steps(engine, batches, steps_to_trace(timing.iterations), learning_rate, ranks);
  round.exchange = sums_of_exchanges(round.profile.steps);
  if (result.configuration.strategy() == "none" && !result.ready)
    result.ready = ready_record(engine, round.profile.steps);
  result.rounds.push_back(std::move(round));
  // After the timing, whose memory it would change.
  if (job.options.train.certificate && !result.certificate) {
    result.certificate = certify(engine, batches, learning_rate, ranks);
    job.record.write("certificate",
                     merged(record_of(result.identity), record_of(*result.certificate)));
  }
  engine.finish();
  const DataType type = engine.model.network().weights().type();
  const std::size_t bytes = engine.model.network().table().stored_count() * size_of(type);
  const std::size_t step_bytes = engine.device().peak_allocated_bytes();
  trial.reset();  // the links want memory of their own
  if (result.ready && result.links.empty())
    result.links = measure_links(backend, type, bytes, step_bytes, ranks);
}

void take_turn(Result& result, const Job& job) {
  const int all = job.session.world_size();
  const int wanted = result.configuration.ranks;
  if (wanted > all) {
    result.skipped = fmt::format("--ranks {}: the job has {}", wanted, all);
    return;
  }
  const bool takes_part = job.session.rank() < wanted;
  const auto ranks = job.session.split(takes_part ? 0 : -1);
  if (takes_part) {
    std::optional<Backend> own;
    if (wanted < all) own = open_backend(job.backend, *ranks);
    measure(result, own ? *own : job.backend, *ranks, job);
    job.session.barrier();
  } else {
    job.session.wait_idle();
  }
  result.skipped = job.session.all_gather(result.skipped).front();  // rank 0 always takes part
}

/// The first that is so, if it was measured in this round; or null.
template <class Predicate>
const Result* measured_in(const std::vector<Result>& results, std::size_t round, Predicate&& so) {
  const auto found = std::find_if(results.begin(), results.end(),
                                  [&](const Result& r) { return so(r.configuration); });
  return found != results.end() && found->rounds.size() > round ? &*found : nullptr;
}

/// `none` on this many ranks; of a setting that changes how a rank computes there is none.
const Result* baseline(const std::vector<Result>& results, const Configuration& of, int ranks,
                       std::size_t round) {
  const ModelOptions& model = of.options.model;
  return measured_in(results, round, [&](const Configuration& c) {
    return c.strategy() == "none" && c.ranks == ranks &&
           c.options.model.precision == model.precision &&
           c.options.model.autotune == model.autotune && c.options.graph == of.options.graph;
  });
}

/// The result that a setting is compared with; null for others.
const Result* plain(const std::vector<Result>& results, const Configuration& of,
                    std::size_t round) {
  if (of.setting.empty()) return nullptr;
  return measured_in(results, round, [&](const Configuration& c) {
    return c.setting.empty() && c.strategy() == of.strategy() && c.ranks == of.ranks &&
           c.options.strategy.bucket_cap_mb == of.options.strategy.bucket_cap_mb;
  });
}

double rate_of(const Result& result, std::size_t round) {
  return result.rounds[round].throughput.images_per_s;
}

/// Whether a rank that computes has the share of its host that it has in `none`: on the cpu backend
/// a server leaves cores and memory to the workers, so that their steps cannot be compared.
bool comparable_with_none(const Result& result, BackendKind backend) {
  return backend == BackendKind::gpu ||
         !find_strategy(result.configuration.strategy()).ranks.first_serves;
}

/// Adds to a round what follows from the others measured in it.
void complete(Result& result, const std::vector<Result>& all, std::size_t index, const Job& job) {
  const Configuration& c = result.configuration;
  const double rate = rate_of(result, index);
  Round& round = result.rounds[index];
  round.epoch_s = static_cast<double>(epoch_images(job.options, job.data)) / rate;
  const Result* none = baseline(all, c, c.ranks, index);
  if (none != nullptr) round.efficiency_vs_none = rate / rate_of(*none, index);
  if (const Result* single = baseline(all, c, 1, index))
    round.efficiency_vs_single = rate / (c.ranks * rate_of(*single, index));
  if (const Result* without = plain(all, c, index))
    round.speedup_vs_plain = rate / rate_of(*without, index);
  // A server's share of --global-batch makes the others' batches larger than those of `none`.
  const bool alike = none != nullptr && none->identity.batch_size == result.identity.batch_size &&
                     comparable_with_none(result, job.backend.kind);
  round.breakdown = break_down(round.profile, alike ? &none->rounds[index].profile.steps : nullptr);
}

/// The strategy's transfers; null but where the model of results/report knows what they cost: ranks
/// have a common step, and no kernels of their own exchange.
Json transfers_of(const StrategyOptions& options) {
  const StrategyEntry& entry = find_strategy(options.strategy);
  if (!entry.synchronous() || entry.peers || options.norm_stats == "broadcast") return {};
  Json names = Json::array();
  for (const Transfer& transfer : entry.transfers) names.push_back(text_of(transfer));
  return names;
}

/// Of a finished round's traces, which every rank has of all ranks, only the steps are looked at
/// again, and of them the newest.
void drop_traces(Result& result, std::size_t index) {
  Profile& profile = result.rounds[index].profile;
  profile.alone = {};
  profile.serial.reset();
  if (index > 0) result.rounds[index - 1].profile.steps = {};
}

/// Whether all that it is compared with was measured in this round.
bool has_baselines(const Result& result, const std::vector<Result>& all, std::size_t round) {
  const Configuration& c = result.configuration;
  return baseline(all, c, c.ranks, round) != nullptr && baseline(all, c, 1, round) != nullptr &&
         (c.setting.empty() || plain(all, c, round) != nullptr);
}

/// Completes what was measured in a round, and writes its records: within the first round at once,
/// as `none` comes first, so that a job that is stopped keeps them.
void record_round(std::vector<Result>& results, std::size_t index, bool is_over, const Job& job) {
  for (Result& result : results) {
    if (result.rounds.size() <= index || result.rounds_recorded > index) continue;
    // The verdict on what failed comes last: without it the steps would look right.
    if (!is_over && (!result.failure.empty() || !has_baselines(result, results, index))) continue;
    result.rounds_recorded = index + 1;
    complete(result, results, index, job);
    const Round& round = result.rounds[index];
    const Json identity = record_of(result.identity);
    const auto write = [&](const char* kind, const Json& fields) {
      job.record.write(kind, merged(identity, fields));
    };
    const Json repeat{{"repeat", index + 1}};
    Json step = merged(record_of(round.throughput), round.exchange);
    step.update({{"repeat", index + 1}, {"epoch_s", round.epoch_s}});
    for (const auto& [key, ratio] : {std::pair("efficiency_vs_none", round.efficiency_vs_none),
                                     {"efficiency_vs_single", round.efficiency_vs_single},
                                     {"speedup_vs_plain", round.speedup_vs_plain}})
      if (ratio) step[key] = *ratio;
    if (const Json transfers = transfers_of(result.configuration.options.strategy);
        !transfers.is_null())
      step["transfers"] = transfers;
    write("step", step);
    if (index == 0 && !result.links.empty()) {
      write("ready", *result.ready);
      for (const Json& link : result.links) write("link_cost", link);
    }
    write("breakdown", merged(repeat, record_of(round.breakdown)));
    if (!find_strategy(result.configuration.strategy()).ranks_agree) continue;  // nobody waits
    for (const ExchangeTimes& bucket : bucket_times(round.profile.steps))
      write("bucket", merged(repeat, record_of(bucket)));
  }
  for (Result& result : results)
    if (is_over && result.rounds.size() > index) drop_traces(result, index);
}

void print_turn(const Result& result, int round, const Job& job) {
  if (!result.skipped.empty()) return;  // named below the table
  say(job.session,
      fmt::format("repeat {} of {}: {:<42} {:10.1f} images/s", round + 1, job.options.repeats,
                  label_of(result.configuration), result.rounds.back().throughput.images_per_s));
}

}  // namespace

void build_discarded_network(const Bench& bench, const Job& job) {
  if (job.backend.kind != BackendKind::gpu) return;
  Result none = unmeasured(bench.front(), job);  // why it cannot be built is reported later
  if (const auto trial = set_up(none, job.backend, job.session, job)) trial->engine.finish();
}

std::vector<Result> compare(const Bench& bench, const Job& job) {
  std::vector<Result> results;
  for (const Configuration& c : bench) results.push_back(unmeasured(c, job));
  for (int round = 0; round < job.options.repeats; ++round) {
    const auto index = static_cast<std::size_t>(round);
    for (std::size_t i : turns(results.size(), round, job.options.repeats)) {
      if (!results[i].skipped.empty()) continue;
      take_turn(results[i], job);
      if (job.session.is_root()) print_turn(results[i], round, job);
      record_round(results, index, false, job);
    }
    record_round(results, index, true, job);
  }
  for (const Result& result : results)
    job.record.write("verdict", merged(record_of(result.identity), record_of(verdict_of(result))));
  return results;
}

Verdict verdict_of(const Result& result) {
  const auto verdict = [&](Outcome outcome, const std::string& cause) {
    return Verdict{Scope::strategy, result.configuration.strategy(), outcome, cause};
  };
  if (!result.skipped.empty()) return verdict(Outcome::inconclusive, result.skipped);
  if (!result.failure.empty()) return verdict(Outcome::fail, result.failure);
  if (!result.certificate) {
    Verdict unproved = verdict(Outcome::inconclusive, "no certificate was requested");
    unproved.class_ = Class::config;
    unproved.action = "leave out --certificate off";
    return unproved;
  }
  const Certificate& certificate = *result.certificate;
  if (!certificate.applies())
    return verdict(Outcome::pass, "certificate waived: " + certificate.waived);
  if (!certificate.cause.empty()) return verdict(certificate.outcome, certificate.cause);
  if (!certificate.passes())
    return verdict(certificate.outcome,
                   fmt::format("other weights than by {}: {}", certificate.reference,
                               certificate.difference.tensor));
  return verdict(
      Outcome::pass,
      fmt::format("each rank's gradients ({}) in every average once{}", certificate.census.ranks,
                  certificate.reference.empty()
                      ? ""
                      : ", and the same weights as by " + certificate.reference));
}

void write_traces(const std::string& path, const std::vector<Result>& results,
                  const MpiSession& session) {
  if (path.empty()) return;
  std::vector<TracedRun> runs;
  for (const Result& r : results) {
    if (!r.measured()) continue;
    const ModelOptions& model = r.configuration.options.model;
    runs.push_back({fmt::format("{}, {}, batch {}, {}", model.model, model.precision,
                                r.identity.batch_size.value(), label_of(r.configuration)),
                    model.model, r.rounds.back().profile.steps});
  }
  write_trace(path, runs, session.hosts());
}

ExitCode exit_code_of(const std::vector<Result>& results,
                      const std::vector<std::string>& requested) {
  std::vector<Verdict> verdicts;
  for (const Result& result : results) verdicts.push_back(verdict_of(result));
  if (worst(verdicts) == ExitCode::fail) return ExitCode::fail;
  const auto measured = [&](const Result& r) {  // `none` is always there
    return r.measured() &&
           (r.configuration.strategy() != "none" ||
            std::find(requested.begin(), requested.end(), "none") != requested.end());
  };
  if (std::none_of(results.begin(), results.end(), measured)) return ExitCode::usage;
  const auto unknown = [](const Result& r) {  // --certificate off leaves none unknown
    return !r.skipped.empty() || (r.certificate && verdict_of(r).outcome == Outcome::inconclusive);
  };
  return std::any_of(results.begin(), results.end(), unknown) ? ExitCode::inconclusive
                                                              : ExitCode::pass;
}

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

bool requests(const CompareOptions& options, const Setting& setting) {
  return std::find(options.settings.begin(), options.settings.end(), setting.name) !=
         options.settings.end();
}

/// Plain ddp, and what differs from it in one switch.
void add_settings(Bench& bench, const CompareOptions& options, const StepOptions& base, int ranks,
                  BackendKind backend) {
  if (options.settings.empty()) return;
  StepOptions plain = base;
  plain.strategy.strategy = "ddp";
  plain.strategy.bucket_cap_mb = options.bucket_caps_mb.front();
  add(bench, plain, "ddp", plain.strategy.bucket_cap_mb, ranks);
  for (const Setting& setting : settings()) {
    Configuration changed{plain, ranks, setting.name};
    if (requests(options, setting) && setting.apply(changed.options, backend).empty())
      bench.push_back(std::move(changed));
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
  for (const Setting& setting : settings()) {
    const auto measured = [&](const Bench& bench) {
      return std::any_of(bench.begin(), bench.end(),
                         [&](const Configuration& c) { return c.setting == setting.name; });
    };
    if (!requests(options, setting) || std::any_of(benches.begin(), benches.end(), measured))
      continue;
    StepOptions plain = benches.front().front().options;
    idle.push_back(fmt::format("--settings {}: {}", setting.name, setting.apply(plain, backend)));
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
  return fmt::format("{} on {}", strategy_label(c), counted(c.ranks, "rank"));
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
    throw UsageError(fmt::format("--ranks {}: the job has {}", fmt::join(ranks, ","),
                                 counted(job.count, "rank")));
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

std::string record_left_out(const CompareOptions& options, const JobRanks& ranks,
                            const std::vector<Bench>& benches, Record& record) {
  auto reasons = idle_settings(options, ranks.backend, benches);
  for (const std::string& strategy : each_once(options.strategies))
    for (int count : each_once(numbers_of_ranks(options, ranks.count))) {
      if (has(ranks_for(strategy, options, ranks), count)) continue;
      const std::string cause = obstacle(strategy, count, ranks);
      record.write("skipped", {{"backend", name_of(ranks.backend)},
                               {"strategy", strategy},
                               {"world_size", count},
                               {"cause", cause}});
      reasons.push_back(fmt::format("{} on {}: {}", strategy, counted(count, "rank"), cause));
    }
  std::string text = precision_remark("--precisions", options.precisions, ranks.backend);
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

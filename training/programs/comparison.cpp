#include "training/programs/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

#include "common/program.hpp"
#include "training/measure/certificate.hpp"
#include "training/measure/trace_file.hpp"
#include "training/measure/weights_check.hpp"
#include "training/programs/comparison_table.hpp"
#include "training/programs/throughput_run.hpp"
#include "training/programs/training_data.hpp"
#include "training/step/memory_budget.hpp"

namespace shakedown::training {
namespace {

/// One configuration, ready to run; all its memory is freed with it.
struct Trial {
  Trial(const EngineSettings& settings, const TrainOptions& options, Backend& backend,
        const Dataset& dataset)
      : engine(settings, backend), data(options, dataset) {}
  Engine engine;
  TrainingData data;
};

/// What names a configuration that cannot be set up; its batch may not be known.
Json outline_of(const Configuration& configuration, const Job& job) {
  const TrainOptions& o = configuration.options;
  std::optional<int> batch_size;
  if (o.global_batch == 0) batch_size = o.batch_size;
  return fields_of({name_of(job.backend.kind), o.model.model, o.model.image_size,
                    job.data.classes(), o.model.precision, batch_size, o.accumulate,
                    configuration.ranks, o.strategy, o.optimizer.optimizer, job.data.name(),
                    job.backend.throttle_gbs});
}

Json with_setting(Json identity, const Configuration& configuration) {
  if (!configuration.setting.empty()) identity["setting"] = configuration.setting;
  return identity;
}

/// Null where one of the ranks cannot: then all of them say why in result.skipped.
std::unique_ptr<Trial> set_up(Result& result, Backend& backend, const MpiSession& ranks,
                              const Job& job) {
  const TrainOptions& options = result.configuration.options;
  std::unique_ptr<Trial> trial;
  const auto possible = [&](const std::function<void()>& part) {
    std::string problem;
    try {
      part();
    } catch (const UsageError& error) {
      problem = error.what();
    }
    for (const std::string& text : ranks.all_gather(problem))
      if (!text.empty() && result.skipped.empty()) result.skipped = text;
    return result.skipped.empty();
  };
  const bool fits =
      possible([&] {
        const EngineSettings settings = engine_settings(options, backend, job.data.classes());
        result.identity =
            with_setting(identity_of(settings, backend, job.data.name()), result.configuration);
        trial = std::make_unique<Trial>(settings, options, backend, job.data);
      }) &&
      possible([&] {  // together: ranks ask one another
        trial->engine.allocate(ranks_on_device(backend, ranks));
        trial->data.open(trial->engine.settings().network, backend, trial->engine.stream());
      });
  return fits ? std::move(trial) : nullptr;
}

/// One turn, on the ranks that the configuration has.
void measure(Result& result, Backend& backend, const MpiSession& ranks, const Job& job) {
  const TrainOptions& options = result.configuration.options;
  const double learning_rate = options.optimizer.learning_rate;
  auto trial = set_up(result, backend, ranks, job);
  if (!trial) return;
  Engine& engine = trial->engine;
  const Json step = measure_throughput(engine, trial->data.training(),
                                       throughput_settings(options, backend.kind), ranks);
  try {
    check_trained(step);
    check_weights(engine, ranks, "after the timed steps");
    if (engine.step.strategy_entry().ranks_agree)
      check_ranks_agree(engine, ranks, "after the timed steps");
  } catch (const FailError& error) {  // the same on all ranks
    result.failure = error.what();
  }
  result.profiles.push_back(profile_steps(
      engine, trial->data.training(), steps_to_trace(options.iterations), learning_rate, ranks));
  result.steps.push_back(
      merged(merged(result.identity, step), exchange_fields(result.profiles.back().steps)));
  if (result.configuration.strategy() == "none" && !result.inputs)
    result.inputs = model_inputs(engine, result.profiles.back().steps);
  // Behind the timing, whose memory it would change.
  if (options.certificate && result.certificate.is_null()) {
    result.certificate = certify(engine, trial->data.training(), learning_rate, ranks);
    job.record.write("certificate", merged(result.identity, result.certificate));
  }
  engine.finish();
  const DataType type = engine.model.network().weights().type();
  const std::size_t bytes = engine.model.network().table().stored_count() * size_of(type);
  const std::size_t step_bytes = engine.device().peak_allocated_bytes();
  trial.reset();  // the links want memory of their own
  if (result.inputs && result.inputs->links.ring.empty())
    result.inputs->links = measure_links(backend, type, bytes, step_bytes, ranks);
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
    std::optional<Backend> part;
    if (wanted < all) part = open_backend(job.backend, *ranks);
    measure(result, part ? *part : job.backend, *ranks, job);
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
  return found != results.end() && found->steps.size() > round ? &*found : nullptr;
}

/// `none` on so many ranks; of a setting that changes how a rank computes there is none.
const Result* baseline(const std::vector<Result>& results, const Configuration& of, int ranks,
                       std::size_t round) {
  const ModelOptions& model = of.options.model;
  return measured_in(results, round, [&](const Configuration& c) {
    return c.strategy() == "none" && c.ranks == ranks &&
           c.options.model.precision == model.precision &&
           c.options.model.autotune == model.autotune && c.options.graph == of.options.graph;
  });
}

/// What a setting is held against; null for others.
const Result* plain(const std::vector<Result>& results, const Configuration& of,
                    std::size_t round) {
  if (of.setting.empty()) return nullptr;
  return measured_in(results, round, [&](const Configuration& c) {
    return c.setting.empty() && c.strategy() == of.strategy() && c.ranks == of.ranks &&
           c.options.strategy.bucket_cap_mb == of.options.strategy.bucket_cap_mb;
  });
}

void record_profile(Result& result, const Result* none, std::size_t round, const Job& job) {
  // A server's share of --global-batch makes the others' batches larger than those of `none`.
  const bool alike =
      none != nullptr && none->identity["batch_size"] == result.identity["batch_size"];
  const Trace* without = alike ? &none->profiles[round].steps : nullptr;
  const Profile& profile = result.profiles[round];
  const Json identity = merged(result.identity, {{"repeat", round + 1}});
  result.breakdowns.push_back(merged(identity, breakdown_fields(profile, without)));
  job.record.write("breakdown", result.breakdowns.back());
  if (!find_strategy(result.configuration.strategy()).ranks_agree) return;  // nobody waits for all
  for (const Json& bucket : bucket_fields(profile.steps))
    job.record.write("bucket", merged(identity, bucket));
}

/// Adds to a round's records what follows from all of them, and writes them.
void finish_round(std::vector<Result>& results, std::size_t round, const Job& job) {
  const auto rate = [](const Json& step) { return step.at("images_per_s").get<double>(); };
  for (Result& result : results) {
    if (result.steps.size() <= round) continue;
    Json& step = result.steps[round];
    const Configuration& c = result.configuration;
    step["repeat"] = round + 1;
    step["epoch_s"] = static_cast<double>(job.epoch_images) / rate(step);
    const Result* none = baseline(results, c, c.ranks, round);
    if (none != nullptr) step["efficiency_vs_none"] = rate(step) / rate(none->steps[round]);
    if (const Result* single = baseline(results, c, 1, round))
      step["efficiency_vs_single"] = rate(step) / (c.ranks * rate(single->steps[round]));
    if (const Result* without = plain(results, c, round))
      step["speedup_vs_plain"] = rate(step) / rate(without->steps[round]);
    job.record.write("step", step);
    record_profile(result, none, round, job);
  }
}

void tell_turn(const Result& result, int round, const Job& job) {
  if (!result.skipped.empty()) return;  // the table tells it
  say(job.session, fmt::format("repeat {} of {}: {:<28} {:10.1f} images/s", round + 1,
                               job.options.repeats, label_of(result.configuration),
                               result.steps.back().at("images_per_s").get<double>()));
}

Result unmeasured(const Configuration& c, const Job& job) {
  return {c, with_setting(outline_of(c, job), c), {}, {}, {}, {}, {}, {}, {}};
}

}  // namespace

void build_discarded_network(const Bench& bench, const Job& job) {
  if (job.backend.kind != BackendKind::gpu) return;
  Result none = unmeasured(bench.front(), job);  // what keeps it from being built is told later
  if (const auto trial = set_up(none, job.backend, job.session, job)) trial->engine.finish();
}

std::vector<Result> compare(const Bench& bench, const Job& job) {
  std::vector<Result> results;
  for (const Configuration& c : bench) results.push_back(unmeasured(c, job));
  for (int round = 0; round < job.options.repeats; ++round) {
    for (std::size_t i : turns(results.size(), round, job.options.repeats)) {
      if (!results[i].skipped.empty()) continue;
      take_turn(results[i], job);
      if (job.session.is_root()) tell_turn(results[i], round, job);
    }
    finish_round(results, static_cast<std::size_t>(round), job);
  }
  for (const Result& result : results)
    job.record.write("verdict", merged(result.identity, record_of(verdict_of(result))));
  return results;
}

Verdict verdict_of(const Result& result) {
  const auto verdict = [&](Outcome outcome, const std::string& cause) {
    return Verdict{Scope::strategy, result.configuration.strategy(), outcome, cause};
  };
  if (!result.skipped.empty()) return verdict(Outcome::inconclusive, result.skipped);
  if (!result.failure.empty()) return verdict(Outcome::fail, result.failure);
  if (result.certificate.is_null()) {
    Verdict unproved = verdict(Outcome::inconclusive, "no certificate was requested");
    unproved.class_ = Class::config;
    unproved.action = "leave out --certificate off";
    return unproved;
  }
  const std::string reference = result.certificate.at("reference");
  const Json& pass = result.certificate.at("pass");
  if (pass.is_null()) {
    const bool expected = reference.empty() || result.configuration.ranks == 1;
    return verdict(expected ? Outcome::pass : Outcome::inconclusive,
                   "certificate waived: " + result.certificate.at("waived").get<std::string>());
  }
  if (pass == true) return verdict(Outcome::pass, "the same weights as by " + reference);
  if (result.certificate.contains("cause"))
    return verdict(Outcome::fail, result.certificate["cause"]);
  return verdict(Outcome::fail, fmt::format("other weights than by {}: {}", reference,
                                            result.certificate.at("tensor").get<std::string>()));
}

void write_traces(const std::string& path, const std::vector<Result>& results,
                  const MpiSession& session) {
  if (path.empty()) return;
  std::vector<TracedRun> runs;
  for (const Result& r : results) {
    if (!r.measured()) continue;
    const std::string batch = std::to_string(r.identity.at("batch_size").get<int>());
    const ModelOptions& model = r.configuration.options.model;
    runs.push_back({fmt::format("{}, {}, batch {}, {}", model.model, model.precision, batch,
                                label_of(r.configuration)),
                    model.model, r.profiles.back().steps});
  }
  write_trace(path, runs, session.hosts());
}

ExitCode exit_code_of(const std::vector<Result>& results, const std::vector<std::string>& asked) {
  std::vector<Verdict> verdicts;
  for (const Result& result : results) verdicts.push_back(verdict_of(result));
  if (worst(verdicts) == ExitCode::fail) return ExitCode::fail;
  const auto measured = [&](const Result& r) {  // `none` is always there
    return r.measured() && (r.configuration.strategy() != "none" ||
                            std::find(asked.begin(), asked.end(), "none") != asked.end());
  };
  return std::any_of(results.begin(), results.end(), measured) ? ExitCode::pass : ExitCode::usage;
}

}  // namespace shakedown::training

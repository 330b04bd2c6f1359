#include "launch/node/soak/sm_probe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/error.hpp"
#include "common/hash.hpp"
#include "common/statistics.hpp"
#include "launch/node/health/rules/rules.hpp"

namespace shakedown::node {
namespace {

template <ProbeKind kind>
std::uint64_t chain(const ProbeTask& task, int lane) {
  std::uint64_t hash = probe::start(task.seed, lane);
  for (int i = 0; i < task.steps; ++i) hash = probe::step<kind>(hash);
  return hash;
}

std::optional<std::uint64_t> expected_hash(const ProbeTask& task,
                                           std::span<const ProbeAnswer> answers, std::size_t lane) {
  if (answers.size() < 3)
    return on_host(task.kind) ? std::optional(host_hash(task, static_cast<int>(lane)))
                              : std::nullopt;
  std::vector<std::uint64_t> values;
  for (const ProbeAnswer& answer : answers)
    for (std::size_t i = lane; i < answer.hashes.size(); i += kProbeLanes)
      values.push_back(answer.hashes[i]);
  return majority_of(values);
}

WrongProcessor compare(const ProbeAnswer& answer, const std::vector<std::uint64_t>& expected) {
  WrongProcessor wrong{answer.processor, 0, answer.wrong, 0, 0, 0, 0};
  for (std::size_t i = 0; i < answer.hashes.size(); ++i) {
    const std::size_t lane = i % kProbeLanes;
    if (answer.hashes[i] == expected[lane] || wrong.wrong_hashes++ > 0) continue;
    wrong.expected = expected[lane];
    wrong.found = answer.hashes[i];
    wrong.warp = static_cast<int>(i / kProbeLanes);
    wrong.lane = static_cast<int>(lane);
  }
  return wrong;
}

}  // namespace

const char* name_of(ProbeKind kind) {
  constexpr const char* kNames[] = {"integer", "fma fp32", "fma fp64", "mma fp16", "mma bf16"};
  return kNames[static_cast<int>(kind)];
}

bool on_host(ProbeKind kind) { return kind != ProbeKind::mma_fp16 && kind != ProbeKind::mma_bf16; }

std::uint64_t host_hash(const ProbeTask& task, int lane) {
  switch (task.kind) {
    case ProbeKind::integer: return chain<ProbeKind::integer>(task, lane);
    case ProbeKind::fma_fp32: return chain<ProbeKind::fma_fp32>(task, lane);
    case ProbeKind::fma_fp64: return chain<ProbeKind::fma_fp64>(task, lane);
    default: throw InternalError(std::string("the host has no ") + name_of(task.kind));
  }
}

ProbeRuling judge(const ProbeTask& task, std::span<const ProbeAnswer> answers) {
  ProbeRuling ruling;
  if (answers.empty()) {
    ruling.undecided = "no processor answered";
    return ruling;
  }
  for (std::size_t lane = 0; lane < kProbeLanes; ++lane) {
    const auto expected = expected_hash(task, answers, lane);
    if (!expected) {
      ruling.undecided = fmt::format("{}: {} processors have no majority in lane {}",
                                     name_of(task.kind), answers.size(), lane);
      return ruling;
    }
    ruling.expected.push_back(*expected);
  }
  ruling.wrong = wrong_processors(answers, ruling.expected);
  return ruling;
}

std::vector<WrongProcessor> wrong_processors(std::span<const ProbeAnswer> answers,
                                             const std::vector<std::uint64_t>& expected) {
  std::vector<WrongProcessor> all;
  for (const ProbeAnswer& answer : answers) {
    const WrongProcessor wrong = compare(answer, expected);
    if (wrong.wrong_hashes > 0 || wrong.wrong_exact > 0) all.push_back(wrong);
  }
  return all;
}

std::unique_ptr<Probe> make_probe(Device& device) {
  return device.kind() == BackendKind::gpu ? gpu::make_probe(device) : cpu::make_probe(device);
}

namespace {

constexpr int kMostSteps = 1 << 22;
constexpr std::size_t kReportedProbes = 2;  // mismatches of a call: each is tried again

}  // namespace

ProbeLoad::ProbeLoad(Device& device, const LoadSettings& load, const ProbeSettings& settings)
    : device_(device),
      load_(load),
      settings_(settings),
      probe_(make_probe(device)),
      elsewhere_(make_probe(device)),
      stream_(device.make_stream()),
      kinds_(probe_->kinds()),
      unit_(device.kind() == BackendKind::gpu ? "SM" : "core"),
      placed_(unit_) {
  for (const ProbeKind kind : kinds_) steps_[kind] = 100;
  for (const int processor : probe_->processors()) work_[processor] = {};
}

LoadCount ProbeLoad::run(double seconds, std::vector<Mismatch>& found) {
  device_.use_on_this_thread();
  const auto begin = std::chrono::steady_clock::now();
  LoadCount count;
  std::vector<int> unreached = probe_->processors();
  do {
    probe_once(count, found, unreached);
    count.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  } while (count.seconds < seconds && !load_.stopped());
  if (!unreached.empty())
    found.push_back(
        inconclusive(fmt::format("no probe got to {} of {} {}s, {} {} first", unreached.size(),
                                 work_.size(), unit_, unit_, unreached.front())));
  return count;
}

std::vector<ProbeAnswer> ProbeLoad::answers_of(Probe& probe, const ProbeTask& task,
                                               std::span<const int> processors) const {
  auto answers = probe.run(task, processors, *stream_);
  if (load_.fault == FaultKind::product)
    for (ProbeAnswer& answer : answers)
      if (answer.processor == probe.processors().back()) answer.hashes[7] ^= 1;
  return answers;
}

void ProbeLoad::probe_once(LoadCount& count, std::vector<Mismatch>& found,
                           std::vector<int>& unreached) {
  const ProbeKind kind = kinds_[operations_ % kinds_.size()];
  const ProbeTask task{kind, derive_seed(load_.seed, operations_), steps_[kind]};
  ++operations_;
  const std::vector<ProbeAnswer> answers = answers_of(*probe_, task, probe_->processors());
  const ProbeRuling ruling = judge(task, answers);
  if (!ruling.undecided.empty()) {
    if (std::none_of(found.begin(), found.end(), [](const Mismatch& mismatch) {
          return mismatch.outcome == Outcome::inconclusive;
        }))
      found.push_back(inconclusive(ruling.undecided));  // once per call
    return;
  }
  for (const ProbeAnswer& answer : answers) std::erase(unreached, answer.processor);
  count.checked += answers.size();
  note_times(kind, answers);
  for (const WrongProcessor& wrong : ruling.wrong)
    if (count.wrong++ < kReportedProbes) describe(task, wrong, ruling, found);
}

void ProbeLoad::note_times(ProbeKind kind, std::span<const ProbeAnswer> answers) {
  std::vector<double> times;
  for (const ProbeAnswer& answer : answers) times.push_back(answer.ms);
  const double typical = std::max(median_of(times), 1e-3);
  for (const ProbeAnswer& answer : answers) {
    Work& work = work_[answer.processor];
    ++work.probes;
    work.relative_ms += answer.ms / typical;
  }
  const double factor = std::clamp(settings_.probe_ms / typical, 0.5, 4.);
  steps_[kind] = std::clamp(static_cast<int>(steps_[kind] * factor), 1, kMostSteps);
}

Retrial ProbeLoad::again(const ProbeTask& task, const std::vector<std::uint64_t>& expected) const {
  return [this, &task, &expected](int processor, int address) -> std::optional<bool> {
    const auto answers =
        answers_of(*(address == 0 ? probe_ : elsewhere_), task, std::span(&processor, 1));
    if (answers.empty()) return std::nullopt;
    return !wrong_processors(answers, expected).empty();
  };
}

void ProbeLoad::describe(const ProbeTask& task, const WrongProcessor& wrong,
                         const ProbeRuling& ruling, std::vector<Mismatch>& found) {
  Mismatch mismatch;
  mismatch.load = "probe";
  mismatch.operation = operations_ - 1;
  mismatch.where =
      fmt::format("{} {}, warp {}, lane {}", unit_, wrong.processor, wrong.warp, wrong.lane);
  mismatch.index = static_cast<std::uint64_t>(wrong.processor);
  if (wrong.wrong_hashes > 0) {
    mismatch.expected = wrong.expected;
    mismatch.found = wrong.found;
  }
  mismatch.cause = fmt::format("{}: {} lanes differ from the other {}s', {} exact products wrong",
                               name_of(task.kind), wrong.wrong_hashes, unit_, wrong.wrong_exact);
  found.push_back(std::move(mismatch));
  placed_.place(found, found.size() - 1,
                collect_evidence(again(task, ruling.expected), wrong.processor,
                                 probe_->processors(), 1, settings_.retrials),
                wrong.processor,
                {{"kind", static_cast<int>(task.kind)},
                 {"seed", task.seed},
                 {"steps", task.steps},
                 {"expected", ruling.expected},
                 {"processor", wrong.processor}});
}

/// By the processor of the same number, which another GPU of the model has too.
std::uint64_t ProbeLoad::confer(const MpiSession& jurors, std::vector<Mismatch>& found) {
  const auto attempt = [this](const Json& given) {
    const ProbeTask task{static_cast<ProbeKind>(given["kind"].get<int>()),
                         given["seed"].get<std::uint64_t>(), given["steps"].get<int>()};
    const auto expected = given["expected"].get<std::vector<std::uint64_t>>();
    return collect_evidence(again(task, expected), given["processor"].get<int>(), {}, 0,
                            settings_.retrials)
        .same;
  };
  placed_.confer(jurors, attempt, found);
  return 0;
}

Mismatch ProbeLoad::inconclusive(const std::string& cause) const {
  Mismatch mismatch;
  mismatch.load = "probe";
  mismatch.operation = operations_;
  mismatch.conclude(
      {Outcome::inconclusive, cause, std::nullopt, "run again with nothing else on it"});
  return mismatch;
}

ProcessorTimes ProbeLoad::times() const {
  ProcessorTimes times;
  for (const auto& [processor, work] : work_) {
    ++times.processors;
    if (work.probes == 0) continue;
    ++times.reached;
    const double ratio = work.relative_ms / static_cast<double>(work.probes);
    if (ratio <= times.slowest_ratio) continue;  // never of an unknown one
    times.slowest = processor;
    times.slowest_ratio = ratio;
  }
  return times;
}

}  // namespace shakedown::node

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
#include "launch/node/soak/injected_faults.hpp"
#include "launch/node/soak/jury.hpp"

namespace shakedown::node {
namespace {

template <ProbeKind kind>
std::uint64_t chain(const ProbeTask& task, int lane) {
  std::uint64_t hash = probe::start(task.seed, lane);
  for (int i = 0; i < task.steps; ++i) hash = probe::step<kind>(hash);
  return hash;
}

/// The value that more than half have; none where there is no such value.
std::optional<std::uint64_t> majority(const std::vector<std::uint64_t>& values) {
  std::map<std::uint64_t, std::size_t> votes;
  for (const std::uint64_t value : values) ++votes[value];
  for (const auto& [value, count] : votes)
    if (2 * count > values.size()) return value;
  return std::nullopt;
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
  return majority(values);
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
  switch (kind) {
    case ProbeKind::integer: return "integer";
    case ProbeKind::fma_fp32: return "fma fp32";
    case ProbeKind::fma_fp64: return "fma fp64";
    case ProbeKind::mma_fp16: return "mma fp16";
    case ProbeKind::mma_bf16: return "mma bf16";
  }
  return "";
}

double operations_per_step(ProbeKind kind) {
  switch (kind) {
    case ProbeKind::integer: return 2 * probe::kMixesPerStep;
    case ProbeKind::fma_fp32:
    case ProbeKind::fma_fp64: return 2 * probe::kFmaPerStep;
    case ProbeKind::mma_fp16:
    case ProbeKind::mma_bf16: return probe::kMmaPerStep * 2. * 16 * 8 * 16 / kProbeLanes;
  }
  return 0;
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

/// The probe again: address 0 is the probe's own results, any other those of the second one.
class ProbeAgain final : public Retrial {
 public:
  ProbeAgain(Probe& probe, Probe& elsewhere, const ProbeTask& task,
             const std::vector<std::uint64_t>& expected, Stream& stream)
      : probe_(probe), elsewhere_(elsewhere), task_(task), expected_(expected), stream_(stream) {}

  std::optional<bool> wrong(int processor, int address) override {
    const auto answers =
        (address == 0 ? probe_ : elsewhere_).run(task_, std::span(&processor, 1), stream_);
    if (answers.empty()) return std::nullopt;
    return !wrong_processors(answers, expected_).empty();
  }

 private:
  Probe& probe_;
  Probe& elsewhere_;
  const ProbeTask& task_;
  const std::vector<std::uint64_t>& expected_;
  Stream& stream_;
};

Json to_json(const ProbeTask& task, const std::vector<std::uint64_t>& expected, int processor) {
  return {{"kind", static_cast<int>(task.kind)},
          {"seed", task.seed},
          {"steps", task.steps},
          {"expected", expected},
          {"processor", processor}};
}

bool is_integer(ProbeKind kind) { return kind == ProbeKind::integer; }

}  // namespace

ProbeLoad::ProbeLoad(Device& device, const LoadSettings& load, const ProbeSettings& settings,
                     std::unique_ptr<Probe> probe, std::unique_ptr<Probe> elsewhere)
    : device_(device),
      load_(load),
      settings_(settings),
      probe_(std::move(probe)),
      elsewhere_(std::move(elsewhere)),
      stream_(device.make_stream()),
      kinds_(probe_->kinds()),
      unit_(device.kind() == BackendKind::gpu ? "SM" : "core") {
  for (const ProbeKind kind : kinds_) steps_[kind] = 100;
  for (const int processor : probe_->processors()) work_[processor] = {};
}

LoadCount ProbeLoad::run(double seconds, std::vector<Mismatch>& found) {
  device_.use_on_this_thread();
  const auto begin = std::chrono::steady_clock::now();
  LoadCount count;
  placed_.reset();
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

void ProbeLoad::probe_once(LoadCount& count, std::vector<Mismatch>& found,
                           std::vector<int>& unreached) {
  const ProbeKind kind = kinds_[operations_ % kinds_.size()];
  const ProbeTask task{kind, derive_seed(load_.seed, operations_), steps_[kind]};
  ++operations_;
  const std::vector<ProbeAnswer> answers = probe_->run(task, probe_->processors(), *stream_);
  const ProbeRuling ruling = judge(task, answers);
  if (!ruling.undecided.empty()) {
    if (std::none_of(found.begin(), found.end(), [](const Mismatch& mismatch) {
          return mismatch.outcome == Outcome::inconclusive;
        }))
      found.push_back(inconclusive(ruling.undecided));  // once per call
    return;
  }
  for (const ProbeAnswer& answer : answers) {
    std::erase(unreached, answer.processor);
    if (!is_integer(kind))
      count.flop +=
          operations_per_step(kind) * task.steps * static_cast<double>(answer.hashes.size());
  }
  count.checked += answers.size();
  note_times(kind, answers);
  for (const WrongProcessor& wrong : ruling.wrong)
    if (count.wrong++ < kReportedProbes)
      found.push_back(describe(task, wrong, ruling, found.size()));
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

Mismatch ProbeLoad::describe(const ProbeTask& task, const WrongProcessor& wrong,
                             const ProbeRuling& ruling, std::size_t index) {
  ProbeAgain again(*probe_, *elsewhere_, task, ruling.expected, *stream_);
  const Evidence evidence =
      collect_evidence(again, wrong.processor, probe_->processors(), 1, settings_.retrials);
  Mismatch mismatch;
  mismatch.load = name_;
  mismatch.operation = operations_ - 1;
  mismatch.where =
      fmt::format("{} {}, warp {}, lane {}", unit_, wrong.processor, wrong.warp, wrong.lane);
  mismatch.index = static_cast<std::uint64_t>(wrong.processor);
  if (wrong.wrong_hashes > 0) {
    mismatch.expected = wrong.expected;
    mismatch.found = wrong.found;
  }
  mismatch.sm = wrong.processor;
  mismatch.reproduced = evidence.same.wrong;
  mismatch.repeats = evidence.same.tried;
  const std::string before =
      fmt::format("{}: {} lanes differ from the other {}s', {} exact products wrong; ",
                  name_of(task.kind), wrong.wrong_hashes, unit_, wrong.wrong_exact);
  mismatch.place(place_error(evidence, unit_, wrong.processor), before);
  if (!placed_)
    placed_ = {index, json_text(to_json(task, ruling.expected, wrong.processor)), before, evidence,
               wrong.processor};
  return mismatch;
}

/// By the processor of the same number, which another GPU of the model has too.
Attempts ProbeLoad::attempt(const std::string& text) {
  const Json json = Json::parse(text);
  const ProbeTask task{static_cast<ProbeKind>(json["kind"].get<int>()),
                       json["seed"].get<std::uint64_t>(), json["steps"].get<int>()};
  const auto expected = json["expected"].get<std::vector<std::uint64_t>>();
  ProbeAgain again(*probe_, *elsewhere_, task, expected, *stream_);
  return collect_evidence(again, json["processor"].get<int>(), {}, 0, settings_.retrials).same;
}

LoadCount ProbeLoad::confer(const MpiSession& jurors, std::vector<Mismatch>& found) {
  place_by_others(
      jurors, placed_, unit_, [this](const auto& task) { return attempt(task); }, found);
  return {};
}

Mismatch ProbeLoad::inconclusive(const std::string& cause) const {
  Mismatch mismatch;
  mismatch.load = name_;
  mismatch.operation = operations_;
  mismatch.outcome = Outcome::inconclusive;
  mismatch.class_ = std::nullopt;
  mismatch.cause = cause;
  mismatch.action = "run again with nothing else on it";
  return mismatch;
}

std::string ProbeLoad::summary() const {
  std::size_t reached = 0;
  int slowest = -1;
  double longest = 0;
  for (const auto& [processor, work] : work_) {
    if (work.probes == 0) continue;
    ++reached;
    const double relative = work.relative_ms / static_cast<double>(work.probes);
    if (relative > longest) {
      longest = relative;
      slowest = processor;
    }
  }
  std::string text =
      fmt::format("{} of {} {}s, {} kinds", reached, work_.size(), unit_, kinds_.size());
  if (slowest >= 0)
    text += fmt::format("; slowest {} {} at {:.3f} of the median's time", unit_, slowest, longest);
  return text;
}

std::unique_ptr<ProbeLoad> make_probe_load(Device& device, const LoadSettings& load,
                                           const ProbeSettings& settings) {
  std::unique_ptr<Probe> probe = make_probe(device);
  std::unique_ptr<Probe> elsewhere = make_probe(device);
  if (load.fault) {
    const ProbeFault fault{probe->processors().back()};
    probe = inject(fault, std::move(probe));
    elsewhere = inject(fault, std::move(elsewhere));
  }
  return std::make_unique<ProbeLoad>(device, load, settings, std::move(probe),
                                     std::move(elsewhere));
}

}  // namespace shakedown::node

#include "launch/node/soak/sm_probe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "common/error.hpp"

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

}  // namespace shakedown::node

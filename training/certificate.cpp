#include "training/certificate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace shakedown {
namespace {

std::vector<float> master_weights(Engine& engine) {
  return download<float>(engine.device(), engine.stream(), engine.network().weights().master().data,
                         engine.network().table().stored_count());
}

constexpr int kSteps = 3;

using Weights3 = std::array<std::vector<float>, kSteps>;  // after each step

/// From the engine's start; where `forced` is given, each step after the first starts from the
/// weights it holds. A step's roundings turn some ReLUs round in the next one, which moves float16
/// gradients by tens of percent whatever the learning rate (measured on 4 GPUs): of unforced
/// trajectories nothing could be told.
Weights3 three_steps(Engine& engine, BatchSource& batches, double learning_rate,
                     const Weights3* forced) {
  engine.restart();
  batches.start_epoch(0);
  Weights3 weights;
  for (std::size_t step = 0; step < kSteps; ++step) {
    if (forced != nullptr && step > 0) engine.network().set_weights((*forced)[step - 1]);
    engine.step(
        [&](int) {
          if (!batches.load_next(engine.network())) {
            batches.start_epoch(0);
            batches.load_next(engine.network());
          }
        },
        learning_rate);
    engine.finish();
    weights[step] = master_weights(engine);
  }
  return weights;
}

/// Shares of what a step moves a tensor by.
struct Tolerances {
  double max_abs;   // of the weight that moved furthest
  double relative;  // Euclidean
};

/// Sums of the ranks' gradients taken in another order differ by a few roundings of their type,
/// and algorithms that do not repeat bitwise by about one percent; an exchange that loses one of N
/// ranks is off by 1/N. Adam's first step is a sign, which a rounding turns round where the
/// gradient is nearly zero: single weights may differ by a whole step, and roundings of eps turn
/// about eps of them.
Tolerances tolerances_of(DataType gradient, bool adam) {
  const double eps = gradient == DataType::float32   ? 0x1p-24
                     : gradient == DataType::float16 ? 0x1p-11
                                                     : 0x1p-8;
  const double rounding = std::max(0.02, 32 * eps);
  return adam ? Tolerances{INFINITY, std::max(0.02, 8 * std::sqrt(eps))}
              : Tolerances{rounding, rounding};
}

/// What a tensor differs by, for its tolerances: above 1 it fails.
double excess(const Comparison& c) {
  const double single = c.max_abs_diff == 0 ? 0 : c.max_abs_diff / c.tolerance;
  return std::max(single, c.relative_diff / c.relative_tolerance);
}

/// Of the tensor that fits worst after one step from `start`.
Comparison compare(const ParameterTable& table, const Tolerances& allowed,
                   const std::vector<float>& wanted, const std::vector<float>& got,
                   const std::vector<float>& start) {
  Comparison worst;
  double worst_excess = -1;
  for (const Parameter& p : table.parameters()) {
    Comparison c;
    c.tensor = p.name;
    double furthest = 0;
    double squared = 0;
    double movement = 0;
    for (std::size_t i = p.offset; i < p.offset + p.stored; ++i) {
      double apart = std::abs(static_cast<double>(wanted[i]) - got[i]);
      if (std::isnan(apart)) apart = INFINITY;
      const double moved = static_cast<double>(wanted[i]) - start[i];
      c.max_abs_diff = std::max(c.max_abs_diff, apart);
      furthest = std::max(furthest, std::abs(moved));
      squared += apart * apart;
      movement += moved * moved;
    }
    c.tolerance = allowed.max_abs * furthest;
    c.relative_diff = squared == 0 ? 0 : std::sqrt(squared / movement);
    c.relative_tolerance = allowed.relative;
    if (excess(c) <= worst_excess) continue;
    worst_excess = excess(c);
    worst = c;
  }
  return worst;
}

}  // namespace

Comparison compare_strategies(Engine& engine, BatchSource& batches, double learning_rate,
                              const MpiSession& session, const StrategyOptions& expected,
                              const StrategyOptions& found) {
  engine.use_strategy(expected);
  const Weights3 wanted = three_steps(engine, batches, learning_rate, nullptr);
  engine.use_strategy(found);
  const Weights3 got = three_steps(engine, batches, learning_rate, &wanted);
  engine.restart();
  const std::vector<float> start = master_weights(engine);

  const Tolerances allowed = tolerances_of(engine.network().weights().type(),
                                           engine.settings().optimizer.optimizer != "sgd");
  Comparison mine;
  double worst_excess = -1;
  for (std::size_t step = 0; step < kSteps; ++step) {
    const Comparison here = compare(engine.network().table(), allowed, wanted[step], got[step],
                                    step == 0 ? start : wanted[step - 1]);
    if (excess(here) <= worst_excess) continue;
    worst_excess = excess(here);
    mine = here;
  }
  const auto excesses = session.all_gather(worst_excess);
  const auto worst = static_cast<std::size_t>(std::max_element(excesses.begin(), excesses.end()) -
                                              excesses.begin());
  return {session.all_gather(mine.tensor)[worst],
          session.all_gather(mine.max_abs_diff)[worst],
          session.all_gather(mine.tolerance)[worst],
          session.all_gather(mine.relative_diff)[worst],
          session.all_gather(mine.relative_tolerance)[worst],
          excesses[worst] <= 1};
}

Json certify(Engine& engine, BatchSource& batches, double learning_rate,
             const MpiSession& session) {
  const StrategyEntry& entry = engine.strategy_entry();
  const bool compared = entry.reference[0] != '\0' && session.world_size() > 1;
  if (!compared)
    return {{"reference", entry.reference},
            {"max_abs_diff", nullptr},
            {"tolerance", nullptr},
            {"pass", nullptr},
            {"waived", session.world_size() > 1 ? entry.waived : "one rank exchanges nothing"}};
  const StrategyOptions own = engine.settings().strategy;
  StrategyOptions reference = own;
  reference.strategy = entry.reference;
  const Comparison comparison =
      compare_strategies(engine, batches, learning_rate, session, reference, own);
  return {{"reference", entry.reference},
          {"tensor", comparison.tensor},
          {"max_abs_diff", comparison.max_abs_diff},
          {"tolerance", comparison.tolerance},
          {"relative_diff", comparison.relative_diff},
          {"relative_tolerance", comparison.relative_tolerance},
          {"pass", comparison.pass}};
}

void check_ranks_agree(Engine& engine, const MpiSession& session) {
  const std::vector<float> weights = master_weights(engine);
  std::uint64_t hash = 0xCBF29CE484222325U;  // FNV-1a over 32-bit words
  for (float w : weights) hash = (hash ^ std::bit_cast<std::uint32_t>(w)) * 0x100000001B3U;
  const auto hashes = session.all_gather(fmt::format("{:016x}", hash));
  for (std::size_t r = 1; r < hashes.size(); ++r)
    if (hashes[r] != hashes[0])
      throw FailError(fmt::format(
          "the ranks' weights have diverged: rank {} differs from rank 0 (checksums {} and {})", r,
          hashes[r], hashes[0]));
}

std::string summary_of_certificate(const Json& certificate) {
  if (certificate.at("pass").is_null())
    return fmt::format("certificate  waived: {}\n", certificate.at("waived").get<std::string>());
  return fmt::format(
      "certificate  {}: weights after 3 steps as by {}; {} differs most, by {:.2g} of what it "
      "moved "
      "(tolerance {:.2g}), its furthest weight by {:.2g}\n",
      certificate.at("pass").get<bool>() ? "PASS" : "FAIL",
      certificate.at("reference").get<std::string>(), certificate.at("tensor").get<std::string>(),
      certificate.at("relative_diff").get<double>(),
      certificate.at("relative_tolerance").get<double>(),
      certificate.at("max_abs_diff").get<double>());
}

}  // namespace shakedown

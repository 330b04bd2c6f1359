#include "training/certificate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace shakedown {
namespace {

std::vector<float> master_weights(Engine& engine) {
  return download<float>(engine.device(), engine.stream(), engine.network().weights().master().data,
                         engine.network().table().stored_count());
}

std::vector<float> weights_after_three_steps(Engine& engine, BatchSource& batches,
                                             double learning_rate) {
  engine.restart();
  batches.start_epoch(0);
  for (int i = 0; i < 3; ++i)
    engine.step(
        [&](int) {
          if (!batches.load_next(engine.network())) {
            batches.start_epoch(0);
            batches.load_next(engine.network());
          }
        },
        learning_rate);
  engine.finish();
  return master_weights(engine);
}

/// Where two sets of weights are furthest apart for how far they moved.
Comparison compare(const ParameterTable& table, const std::vector<float>& wanted,
                   const std::vector<float>& got, const std::vector<float>& start) {
  Comparison worst;
  worst.share = -1;
  for (const Parameter& p : table.parameters()) {
    double difference = 0;
    double movement = 0;
    for (std::size_t i = p.offset; i < p.offset + p.stored; ++i) {
      const double apart = std::abs(static_cast<double>(wanted[i]) - got[i]);
      difference = std::isnan(apart) ? INFINITY : std::max(difference, apart);
      movement = std::max(movement, std::abs(static_cast<double>(wanted[i]) - start[i]));
    }
    const double share = difference == 0 ? 0 : difference / movement;
    if (share > worst.share) worst = {p.name, difference, movement, share};
  }
  return worst;
}

// An exchange that loses one of N ranks' gradients is off by 1/N of the movement at the least, a
// wrong or stale one by all of it. Roundings are off by far less, until they turn a ReLU round: at
// a high learning rate that grows in three steps to most of the movement (measured).
constexpr double kTolerance = 0.1;
constexpr double kNoise = 0.02;  // that the learning rate is lowered for
constexpr int kLowerings = 4;    // by 10

struct Calibration {
  double learning_rate = 0;
  double noise = INFINITY;  // the reference's share of difference from itself
};

/// The highest learning rate at which the reference repeats itself when it sums in another order.
Calibration calibrate(Engine& engine, BatchSource& batches, double learning_rate,
                      const MpiSession& session, const StrategyOptions& reference) {
  StrategyOptions reordered = reference;
  reordered.per_tensor = !reference.per_tensor;
  Calibration best;
  for (int i = 0; i <= kLowerings && best.noise > kNoise; ++i, learning_rate /= 10) {
    const double noise =
        compare_strategies(engine, batches, learning_rate, session, reference, reordered).share;
    if (noise < best.noise) best = {learning_rate, noise};
  }
  return best;
}

}  // namespace

Comparison compare_strategies(Engine& engine, BatchSource& batches, double learning_rate,
                              const MpiSession& session, const StrategyOptions& expected,
                              const StrategyOptions& found) {
  engine.use_strategy(expected);
  const auto wanted = weights_after_three_steps(engine, batches, learning_rate);
  engine.use_strategy(found);
  const auto got = weights_after_three_steps(engine, batches, learning_rate);
  engine.restart();
  const std::vector<float> start = master_weights(engine);

  const Comparison mine = compare(engine.network().table(), wanted, got, start);
  const auto shares = session.all_gather(mine.share);
  const auto worst =
      static_cast<std::size_t>(std::max_element(shares.begin(), shares.end()) - shares.begin());
  return {session.all_gather(mine.tensor)[worst], session.all_gather(mine.max_abs_diff)[worst],
          session.all_gather(mine.movement)[worst], shares[worst]};
}

Json certify(Engine& engine, BatchSource& batches, double learning_rate,
             const MpiSession& session) {
  const StrategyEntry& entry = engine.strategy_entry();
  const bool compared = entry.reference[0] != '\0' && session.world_size() > 1;
  const auto waived = [&](const std::string& why) -> Json {
    return {{"reference", entry.reference},
            {"max_abs_diff", nullptr},
            {"tolerance", nullptr},
            {"pass", nullptr},
            {"waived", why}};
  };
  if (!compared)
    return waived(session.world_size() > 1 ? entry.waived : "one rank exchanges nothing");

  const StrategyOptions own = engine.settings().strategy;
  StrategyOptions reference = own;
  reference.strategy = entry.reference;
  const Calibration calibration = calibrate(engine, batches, learning_rate, session, reference);
  const Comparison found =
      compare_strategies(engine, batches, calibration.learning_rate, session, reference, own);
  if (calibration.noise > kTolerance / 2)
    return waived(
        fmt::format("{} summed in another order differs from itself by {:.2g} of the "
                    "movement: nothing can be told",
                    entry.reference, calibration.noise));
  return {{"reference", entry.reference},       {"learning_rate", calibration.learning_rate},
          {"noise_share", calibration.noise},   {"tensor", found.tensor},
          {"max_abs_diff", found.max_abs_diff}, {"tolerance", kTolerance * found.movement},
          {"pass", found.share <= kTolerance}};
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
      "certificate  {}: weights after 3 steps as by {}, {} differs most, by {:.2g} "
      "(tolerance {:.2g})\n",
      certificate.at("pass").get<bool>() ? "PASS" : "FAIL",
      certificate.at("reference").get<std::string>(), certificate.at("tensor").get<std::string>(),
      certificate.at("max_abs_diff").get<double>(), certificate.at("tolerance").get<double>());
}

}  // namespace shakedown

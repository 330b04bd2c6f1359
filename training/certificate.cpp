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

/// The share of its own movement by which a tensor may differ. Sums taken in another order differ
/// by roundings; in three steps a rounding can turn a ReLU round, which moves gradients by a step
/// of their own (a few percent, measured). An exchange that goes wrong moves a tensor by all of it.
double allowed_share(DataType type) { return type == DataType::float32 ? 0.1 : 0.25; }

/// How far apart two sets of weights are, tensor by tensor.
Comparison compare(const ParameterTable& table, double share, const std::vector<float>& wanted,
                   const std::vector<float>& got, const std::vector<float>& start) {
  Comparison worst;
  double worst_ratio = -1;
  for (const Parameter& p : table.parameters()) {
    double difference = 0;
    double movement = 0;  // of the weight that moved furthest
    for (std::size_t i = p.offset; i < p.offset + p.stored; ++i) {
      const double apart = std::abs(static_cast<double>(wanted[i]) - got[i]);
      difference = std::isnan(apart) ? INFINITY : std::max(difference, apart);
      movement = std::max(movement, std::abs(static_cast<double>(wanted[i]) - start[i]));
    }
    const double ratio = difference == 0 ? 0 : difference / movement;
    if (ratio <= worst_ratio) continue;
    worst_ratio = ratio;
    worst = {p.name, difference, share * movement, difference <= share * movement};
  }
  return worst;
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

  Comparison worst = compare(engine.network().table(),
                             allowed_share(engine.network().weights().type()), wanted, got, start);
  const auto differences = session.all_gather(worst.max_abs_diff);
  const auto passes = session.all_gather(worst.pass ? 1.0 : 0.0);
  worst.max_abs_diff = *std::max_element(differences.begin(), differences.end());
  worst.pass = *std::min_element(passes.begin(), passes.end()) == 1;
  return worst;
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
      "certificate  {}: weights after 3 steps as by {}, {} differs most, by {:.2g} "
      "(tolerance {:.2g})\n",
      certificate.at("pass").get<bool>() ? "PASS" : "FAIL",
      certificate.at("reference").get<std::string>(), certificate.at("tensor").get<std::string>(),
      certificate.at("max_abs_diff").get<double>(), certificate.at("tolerance").get<double>());
}

}  // namespace shakedown

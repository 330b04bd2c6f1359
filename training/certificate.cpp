#include "training/certificate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace shakedown {
namespace {

std::vector<float> master_weights(Engine& engine) {
  return download<float>(engine.device(), engine.stream(),
                         engine.network().weights().master().data,
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

/// Spacing of the gradient type's numbers near 1.
double epsilon_of(DataType type) {
  switch (type) {
    case DataType::float16: return 0x1p-10;
    case DataType::bfloat16: return 0x1p-7;
    default: return 0x1p-23;
  }
}

}  // namespace

Json certify(Engine& engine, BatchSource& batches, double learning_rate,
             const MpiSession& session) {
  const StrategyEntry& entry = engine.strategy_entry();
  Json certificate = {{"reference", entry.reference}};
  if (entry.reference[0] == '\0' || session.world_size() == 1) {
    certificate["max_abs_diff"] = nullptr;
    certificate["tolerance"] = nullptr;
    certificate["pass"] = nullptr;
    certificate["waived"] =
        entry.reference[0] == '\0' ? entry.waived : "one rank exchanges nothing";
    return certificate;
  }
  const StrategyOptions own = engine.settings().strategy;
  StrategyOptions reference = own;
  reference.strategy = entry.reference;
  engine.use_strategy(reference);
  const auto expected = weights_after_three_steps(engine, batches, learning_rate);
  engine.use_strategy(own);
  const auto found = weights_after_three_steps(engine, batches, learning_rate);
  engine.restart();
  const std::vector<float> start = master_weights(engine);

  double difference = 0;
  double movement = 0;  // of the weight that moved furthest
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double apart = std::abs(static_cast<double>(expected[i]) - found[i]);
    difference = std::isnan(apart) ? INFINITY : std::max(difference, apart);
    movement = std::max(movement, std::abs(static_cast<double>(expected[i]) - start[i]));
  }
  const auto worst = [&](double value) {
    const auto all = session.all_gather(value);
    return *std::max_element(all.begin(), all.end());
  };
  difference = worst(difference);
  // Sums taken in another order differ by roundings of the gradient's type; three steps through a
  // deep network amplify them. A gradient lost or doubled moves weights by their whole movement.
  const double amplification = 32;
  const double tolerance =
      worst(movement) *
      std::min(0.1, amplification * epsilon_of(engine.network().weights().type()));
  certificate["max_abs_diff"] = difference;
  certificate["tolerance"] = tolerance;
  certificate["pass"] = difference <= tolerance;
  return certificate;
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
  return fmt::format("certificate  {}: weights after 3 steps as by {}, largest difference {:.2g} "
                     "(tolerance {:.2g})\n",
                     certificate.at("pass").get<bool>() ? "PASS" : "FAIL",
                     certificate.at("reference").get<std::string>(),
                     certificate.at("max_abs_diff").get<double>(),
                     certificate.at("tolerance").get<double>());
}

}  // namespace shakedown

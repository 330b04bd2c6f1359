#include "training/measure/certificate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "common/verdict.hpp"
#include "training/step/soundness.hpp"

namespace shakedown::training {
namespace {

constexpr int kSteps = 3;

void step(Engine& engine, BatchSource& batches, double learning_rate) {
  engine.step.run(
      [&](int) {
        if (batches.load_next(engine.model.network())) return;
        batches.start_epoch(0);
        batches.load_next(engine.model.network());
      },
      learning_rate);
}

/// Whether the weights that this rank computes with are these, rounded. Where it gathers them block
/// by block, the next step shows it.
bool computes_with(Engine& engine, const std::vector<float>& master) {
  const Weights& weights = engine.model.network().weights();
  if (!weights.computes_with_all()) return true;
  const View copy = weights.compute();
  const Buffer wide(engine.device(), master.size() * sizeof(float));
  upload<float>(engine.device(), engine.stream(), wide.data(), master);
  const Buffer rounded(engine.device(), copy.bytes());
  engine.device().kernels().convert(wide.view(DataType::float32), rounded.view(copy.type),
                                    engine.stream());
  return download<std::byte>(engine.device(), engine.stream(), rounded.data(), copy.bytes()) ==
         download<std::byte>(engine.device(), engine.stream(), copy.data, copy.bytes());
}

/// While it lives, two runs of the same weights have the same forward pass, and so the same ReLUs:
/// what then differs in their gradients is rounding, or the strategy's.
class Repeatable {
 public:
  explicit Repeatable(Engine& engine) : engine_(engine) { engine_.step.set_repeatable(true); }
  ~Repeatable() { engine_.step.set_repeatable(false); }
  Repeatable(const Repeatable&) = delete;
  Repeatable& operator=(const Repeatable&) = delete;

 private:
  Engine& engine_;
};

using Weights3 = std::array<std::vector<float>, kSteps + 1>;  // at the start and after each step

/// The weights that `options` give among the ranks that compute in `found`; the same on every rank.
Weights3 reference_weights(Engine& engine, BatchSource& batches, double learning_rate,
                           const StrategyOptions& options, const StrategyEntry& found) {
  Communicator& world = engine.world();
  const bool computes = found.computes(world.rank());
  std::unique_ptr<Communicator> group;  // where not all of them compute
  if (found.ranks.first_serves) group = world.split(computes ? 1 : 0, world.rank());
  engine.step.use_strategy(options, group ? *group : world);
  engine.model.restart();
  batches.start_epoch(0);
  Weights3 wanted;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (i > 0 && computes) step(engine, batches, learning_rate);
    wanted[i] = engine.model.master_weights();
    const View all{std::span<float>(wanted[i])};
    if (group) engine.host().broadcast(all, all, 1, engine.stream());
  }
  return wanted;
}

/// Shares of what a step moves a tensor by.
struct Tolerances {
  double max_abs;   // of the weight that moved furthest
  double relative;  // Euclidean
};

double eps_of(DataType gradient) {
  return gradient == DataType::float32 ? 0x1p-24 : gradient == DataType::float16 ? 0x1p-11 : 0x1p-8;
}
DataType coarser(DataType a, DataType b) { return eps_of(a) > eps_of(b) ? a : b; }

/// Sums of the ranks' gradients taken in another order differ by a few roundings of their type,
/// and algorithms that do not repeat bitwise by about one percent; an exchange that loses one of N
/// ranks is off by 1/N. Adam's first step is a sign, which a rounding turns round where the
/// gradient is nearly zero: single weights may differ by a whole step, and roundings of eps turn
/// about eps of them. To these comes the rounding of the stored weights, which is no share of what
/// they moved by: see kStored.
Tolerances tolerances_of(DataType gradient, bool adam) {
  const double eps = eps_of(gradient);
  const double rounding = std::max(0.02, 32 * eps);
  return adam ? Tolerances{INFINITY, std::max(0.02, 8 * std::sqrt(eps))}
              : Tolerances{rounding, rounding};
}

/// Two weights that should be equal are each rounded by up to half a unit in the last place:
/// float32's unit is at most this share of a weight. (Measured at batch 256 on 4 GPUs: a
/// normalisation's weights, near 1, move by 5e-6 and differ by the one unit, 1.2e-7.)
constexpr double kStored = 0x1p-23;

/// A tensor's difference over its tolerances: above 1 it fails.
double excess(const WeightDifference& c) {
  const bool bounded = std::isfinite(c.tolerance) && c.max_abs_diff > 0;
  const double single = bounded ? c.max_abs_diff / c.tolerance : 0;
  const double all = c.relative_diff / c.relative_tolerance;
  return std::isnan(all) ? INFINITY : std::max(single, all);
}

/// The same on every rank: of the rank where it fits worst.
WeightDifference worst_of(const WeightDifference& mine, const MpiSession& session) {
  const auto excesses = session.all_gather(excess(mine));
  const auto worst = static_cast<std::size_t>(std::max_element(excesses.begin(), excesses.end()) -
                                              excesses.begin());
  WeightDifference all = mine;
  all.tensor = session.all_gather(mine.tensor)[worst];
  all.max_abs_diff = session.all_gather(mine.max_abs_diff)[worst];
  all.tolerance = session.all_gather(mine.tolerance)[worst];
  all.relative_diff = session.all_gather(mine.relative_diff)[worst];
  all.relative_tolerance = session.all_gather(mine.relative_tolerance)[worst];
  all.pass = excesses[worst] <= 1;
  return all;
}

}  // namespace

WeightDifference compare_weights(const ParameterTable& table, DataType gradient, bool adam,
                                 const std::vector<float>& wanted, const std::vector<float>& got,
                                 const std::vector<float>& start) {
  const Tolerances allowed = tolerances_of(gradient, adam);
  WeightDifference worst;
  double worst_excess = -1;
  for (const Parameter& p : table.parameters()) {
    WeightDifference c;
    c.tensor = p.name;
    double furthest = 0;
    double squared = 0;
    double movement = 0;
    double largest = 0;
    double size = 0;
    for (std::size_t i = p.offset; i < p.offset + p.stored; ++i) {
      double difference = std::abs(static_cast<double>(wanted[i]) - got[i]);
      if (std::isnan(difference)) difference = INFINITY;
      const double moved = static_cast<double>(wanted[i]) - start[i];
      c.max_abs_diff = std::max(c.max_abs_diff, difference);
      furthest = std::max(furthest, std::abs(moved));
      squared += difference * difference;
      movement += moved * moved;
      largest = std::max(largest, std::abs(static_cast<double>(wanted[i])));
      size += static_cast<double>(wanted[i]) * wanted[i];
    }
    c.tolerance = furthest == 0 ? 0 : allowed.max_abs * furthest + kStored * largest;
    c.relative_diff = squared == 0 ? 0 : std::sqrt(squared / movement);
    c.relative_tolerance =
        movement == 0 ? allowed.relative : allowed.relative + kStored * std::sqrt(size / movement);
    if (excess(c) <= worst_excess) continue;
    worst_excess = excess(c);
    worst = c;
  }
  worst.pass = worst_excess <= 1;
  return worst;
}

// A step's roundings turn some ReLUs round in the next one, which moves float16 gradients by tens
// of percent whatever the learning rate (measured on 4 GPUs): of trajectories that are not brought
// together again before each step nothing could be concluded.
WeightDifference compare_strategies(Engine& engine, BatchSource& batches, double learning_rate,
                                    const MpiSession& session, StrategyOptions expected,
                                    StrategyOptions found) {
  const Repeatable repeatable(engine);
  const StrategyEntry& entry = find_strategy(found.strategy);
  const Weights3 wanted = reference_weights(engine, batches, learning_rate, expected, entry);

  const bool adam = engine.settings().optimizer.is_adam();
  WeightDifference mine;
  mine.diverged = unsound_tensor(engine.model.network().table(), wanted.back(), {});
  if (wanted.front() == wanted.back()) mine.inconclusive = "did not move";

  engine.step.use_strategy(found);
  if (!mine.diverged.empty()) {
    engine.model.restart();
    return mine;
  }
  const DataType gradient =
      coarser(engine.model.network().weights().type(), engine.step.exchanged_type());
  engine.model.restart();
  batches.start_epoch(0);
  for (std::size_t i = 1; i <= kSteps; ++i) {
    engine.model.set_weights(wanted[i - 1]);
    step(engine, batches, learning_rate);
    const std::vector<float> got = engine.model.master_weights();
    WeightDifference here = compare_weights(engine.model.network().table(), gradient, adam,
                                            wanted[i], got, wanted[i - 1]);
    if (engine.step.computes() && !computes_with(engine, got)) {
      here.tensor = "the copy that computes";
      here.relative_diff = INFINITY;
    }
    if (i == 1 || excess(here) > excess(mine)) {
      here.inconclusive = mine.inconclusive;
      mine = here;
    }
  }
  engine.model.restart();
  return worst_of(mine, session);
}

Certificate certify(Engine& engine, BatchSource& batches, double learning_rate,
                    const MpiSession& session) {
  const StrategyEntry& entry = engine.step.strategy_entry();
  // The reference itself, where it exchanges another type or by a tree, is compared with what it is
  // without.
  const bool converts = engine.step.exchanged_type() != engine.model.network().weights().type();
  Certificate certificate;
  const StrategyOptions own = engine.settings().strategy;
  const bool is_reference = entry.reference[0] == '\0';
  certificate.reference =
      is_reference && (converts || own.invariant > 0) ? entry.name : entry.reference;
  if (session.world_size() == 1)
    certificate.waived = "one rank exchanges nothing";
  else if (certificate.reference.empty())
    certificate.waived = entry.waived;
  if (!certificate.waived.empty()) return certificate;

  StrategyOptions reference = own;
  reference.invariant = 0;
  reference.strategy = certificate.reference;
  reference.grad_dtype = "auto";  // so that the difference shows what another type does
  const WeightDifference found =
      compare_strategies(engine, batches, learning_rate, session, reference, own);
  if (!found.diverged.empty()) {
    certificate.difference.tensor = found.diverged;
    certificate.cause = fmt::format(
        "{}, the reference, diverged: {} is not finite after {} steps. A lower --learning-rate, "
        "another --precision, or the device computes wrongly",
        certificate.reference, found.diverged, kSteps);
  } else if (!found.inconclusive.empty()) {
    certificate.waived =
        fmt::format("{}, the reference, {}", certificate.reference, found.inconclusive);
  } else {
    certificate.difference = found;
    certificate.pass = found.pass;
  }
  return certificate;
}

}  // namespace shakedown::training

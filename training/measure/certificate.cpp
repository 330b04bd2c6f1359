#include "training/measure/certificate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "training/measure/rank_census.hpp"
#include "training/step/model_state.hpp"

namespace shakedown::training {
namespace {

constexpr int kSteps = 3;

/// The least learning rates of the steps compared, the usual ones: weights near 1, as those of
/// norms, do not show a movement below 1e-7 (see kStored).
constexpr double kLeastRate = 0.1;
constexpr double kLeastRateOfAdam = 0.001;  // by which it moves every weight

void step(Engine& engine, BatchSource& batches, double learning_rate) {
  engine.step.run(
      [&](int) {
        if (batches.load_next(engine.model.network())) return;
        batches.start_epoch(0);
        batches.load_next(engine.model.network());
      },
      learning_rate);
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
  if (found.first_computing() > 0) group = world.split(computes ? 1 : 0, world.rank());
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
/// and algorithms that do not repeat bitwise by about one percent. Adam's first step is a sign,
/// which a rounding turns round where the gradient is nearly zero: single weights may differ by a
/// whole step, and roundings of eps turn about eps of them. To these comes the rounding of the
/// stored weights, which is no share of what they moved by: see kStored. An exchange that loses one
/// of many ranks stays within them; the census finds it.
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

/// An update that is lost or doubled differs by 1: within a larger tolerance it would not show.
constexpr double kMostTolerance = 0.75;

/// A tensor's difference over its tolerances: above 1 it fails.
double excess(const WeightDifference& c) {
  const bool bounded = std::isfinite(c.tolerance) && c.max_abs_diff > 0;
  const double single = bounded ? c.max_abs_diff / c.tolerance : 0;
  const double all = c.relative_diff / c.relative_tolerance;
  return std::isnan(all) ? INFINITY : std::max(single, all);
}

/// Why weights that fit show nothing; or "".
std::string why_invisible(const ParameterTable& table, const std::vector<bool>& visible,
                          bool stays) {
  if (stays) return "its weights did not move";
  const auto hidden = std::find(visible.begin(), visible.end(), false);
  if (hidden == visible.end()) return "";
  return fmt::format(
      "{} moves by so little that the rounding of its stored weights hides the update; a larger "
      "--learning-rate shows it",
      table.parameters()[static_cast<std::size_t>(hidden - visible.begin())].name);
}

/// The engine is as at the start, and no gradient is a stamp.
void begin_again(Engine& engine, const StrategyOptions& strategy) {
  engine.step.use_strategy(strategy);
  engine.model.restart();
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
  all.pass = excesses[worst] <= 1 && all.unpublished.empty();
  return all;
}

}  // namespace

WeightDifference compare_weights(const ParameterTable& table, DataType gradient, bool adam,
                                 const std::vector<float>& wanted, const std::vector<float>& got,
                                 const std::vector<float>& start) {
  const Tolerances allowed = tolerances_of(gradient, adam);
  WeightDifference worst;
  std::vector<bool> visible;
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
    visible.push_back(movement > 0 && c.relative_tolerance <= kMostTolerance);
    if (excess(c) <= worst_excess) continue;
    worst_excess = excess(c);
    worst = c;
  }
  worst.pass = worst_excess <= 1;
  worst.visible = std::move(visible);
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
  WeightDifference worst;
  const ParameterTable& table = engine.model.network().table();
  worst.diverged = unsound_tensor(table, wanted.back(), {});

  engine.step.use_strategy(found);
  if (!worst.diverged.empty()) {
    engine.model.restart();
    return worst;
  }
  const DataType gradient =
      coarser(engine.model.network().weights().type(), engine.step.exchanged_type());
  std::vector<bool> visible(table.parameters().size(), false);
  std::string unpublished;
  engine.model.restart();
  batches.start_epoch(0);
  for (std::size_t i = 1; i <= kSteps; ++i) {
    engine.model.set_weights(wanted[i - 1]);
    step(engine, batches, learning_rate);
    const std::vector<float> got = engine.model.master_weights();
    const WeightDifference here =
        compare_weights(table, gradient, adam, wanted[i], got, wanted[i - 1]);
    for (std::size_t p = 0; p < visible.size(); ++p) visible[p] = visible[p] || here.visible[p];
    if (unpublished.empty()) unpublished = check_published(engine, got, session);
    if (i == 1 || excess(here) > excess(worst)) worst = here;
  }
  engine.model.restart();
  worst.visible = visible;
  worst.unpublished = unpublished;
  worst.inconclusive = why_invisible(table, visible, wanted.front() == wanted.back());
  return worst_of(worst, session);
}

Certificate certify(Engine& engine, BatchSource& batches, double learning_rate,
                    const MpiSession& session) {
  const StrategyEntry& entry = engine.step.strategy_entry();
  const StrategyOptions own = engine.settings().strategy;
  Certificate certificate;
  if (session.world_size() == 1)
    certificate.waived = "one rank exchanges nothing";
  else if (!engine.step.plan().ranks_agree)
    certificate.waived = entry.waived;
  if (!certificate.applies()) return certificate;

  certificate.census = take_census(engine, session);
  const ReceivedInputs inputs = check_inputs(engine, batches, session);
  certificate.inputs_compared = inputs.compared;
  for (const std::string& cause : {certificate.census.cause, inputs.cause})
    if (certificate.cause.empty()) certificate.cause = cause;
  if (!certificate.cause.empty()) {
    certificate.outcome =
        certificate.census.unknown && inputs.cause.empty() ? Outcome::inconclusive : Outcome::fail;
    begin_again(engine, own);
    return certificate;
  }
  const auto reference = reference_of(own, engine.model.network().weights().type());
  if (!reference) {
    certificate.outcome = Outcome::pass;
    begin_again(engine, own);
    return certificate;
  }
  certificate.reference = reference->strategy;
  const bool adam = engine.settings().optimizer.is_adam();
  certificate.learning_rate = std::max(learning_rate, adam ? kLeastRateOfAdam : kLeastRate);
  const WeightDifference found =
      compare_strategies(engine, batches, certificate.learning_rate, session, *reference, own);
  certificate.difference = found;
  certificate.outcome = Outcome::fail;
  if (!found.diverged.empty()) {
    if (certificate.learning_rate > learning_rate) certificate.outcome = Outcome::inconclusive;
    certificate.difference.tensor = found.diverged;
    certificate.cause = fmt::format(
        "{}, the reference, diverged: {} is not finite after {} steps at learning rate {:g}. A "
        "lower --learning-rate, another --precision, or the device computes wrongly",
        certificate.reference, found.diverged, kSteps, certificate.learning_rate);
  } else if (!found.unpublished.empty()) {
    certificate.cause = found.unpublished;
  } else if (found.pass && !found.inconclusive.empty()) {
    certificate.outcome = Outcome::inconclusive;
    certificate.cause =
        fmt::format("{}, the reference: {}", certificate.reference, found.inconclusive);
  } else if (found.pass) {
    certificate.outcome = Outcome::pass;
  }
  return certificate;
}

}  // namespace shakedown::training

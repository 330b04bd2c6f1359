#include "training/measure/certificate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "common/error.hpp"
#include "common/kernels.hpp"
#include "training/step/model_state.hpp"

namespace shakedown::training {

namespace {

constexpr double kMostContributors = 1 << 24;  // see stamp_of()

std::string parameter_at(const ParameterTable& table, std::uint64_t element) {
  for (const Parameter& p : table.parameters())
    if (element >= p.offset && element < p.offset + p.stored) return p.name;
  throw InternalError("a stamp that is no gradient's");
}

/// What happened to the rank whose element it is.
std::string text_of(const RankStamps::Found& found, const StrategyEntry& strategy) {
  const int rank = found.rank + strategy.first_computing();
  if (found.times == 0) return fmt::format("rank {} is lost", rank);
  if (std::abs(found.times - 2) < 0.1) return fmt::format("rank {} is doubled", rank);
  return fmt::format("rank {} is there {:.3g} times, or something else is in its place", rank,
                     found.times);
}

/// The fewest gradients between two multiples of kFlatAlignment: no shard, bucket or tensor that
/// is exchanged has less.
std::size_t smallest_piece(const std::vector<Range>& gradients) {
  std::size_t smallest = kFlatAlignment;
  for (const Range& range : gradients)
    if (const std::size_t rest = range.count() % kFlatAlignment; rest > 0)
      smallest = std::min(smallest, rest);
  return smallest;
}

}  // namespace

RankStamps::RankStamps(Device& device, Stream& stream, std::vector<Range> gradients, int ranks,
                       int micro_batches)
    : device_(device),
      stream_(stream),
      gradients_(std::move(gradients)),
      smallest_(smallest_piece(gradients_)),
      ranks_(ranks),
      contributors_(static_cast<std::uint32_t>(ranks) * static_cast<std::uint32_t>(micro_batches)),
      errors_(device, static_cast<std::size_t>(rounds()) * sizeof(StampErrors)) {
  for (const Range& range : gradients_)
    ENSURE(range.end < std::size_t{1} << 31, "elements are numbered in 32 bits");
  const std::vector<StampErrors> none(static_cast<std::size_t>(rounds()));
  upload<StampErrors>(device, stream, errors_.data(), none);
}

int RankStamps::rounds() const {
  const auto piece = static_cast<int>(smallest_);
  return (ranks_ + piece - 1) / piece;
}

std::size_t RankStamps::elements() const {
  std::size_t count = 0;
  for (const Range& range : gradients_) count += range.count();
  return count;
}

/// The next round's stamps are one piece further on, so that all ranks come to every piece.
template <class Body>
void RankStamps::for_gradients(View view, Range range, int round, Body&& body) const {
  for (const Range& gradients : gradients_) {
    const std::size_t begin = std::max(range.begin, gradients.begin);
    const std::size_t end = std::min(range.end, gradients.end);
    if (begin < end)
      body(view.slice(begin - range.begin, end - begin),
           Stamps{contributors_, begin + static_cast<std::size_t>(round) * smallest_});
  }
}

void RankStamps::stamp(View gradients, Range range, int round, int rank, int micro_batch) const {
  const auto contributor = static_cast<std::uint32_t>(micro_batch * ranks_ + rank);
  for_gradients(gradients, range, round, [&](View part, const Stamps& stamps) {
    device_.kernels().stamp(part, stamps, contributor, stream_);
  });
}

void RankStamps::check(const Share& share, int round) {
  auto* errors = static_cast<StampErrors*>(errors_.data()) + round;
  for_gradients(share.gradient, share.range, round, [&](View part, const Stamps& stamps) {
    checked_ += static_cast<double>(part.count);
    device_.kernels().check_stamps(part, stamps, errors, stream_);
  });
}

RankStamps::Found RankStamps::found() const {
  const auto errors =
      download<StampErrors>(device_, stream_, errors_.data(), static_cast<std::size_t>(rounds()));
  Found found{.checked = checked_};
  for (int round = 0; round < rounds(); ++round) {
    const StampErrors& e = errors[static_cast<std::size_t>(round)];
    found.wrong += static_cast<double>(e.wrong);
    if (e.wrong == 0 || found.round >= 0) continue;
    const std::uint64_t stamped = e.first >> 32;
    found.round = round;
    found.element = stamped - static_cast<std::uint64_t>(round) * smallest_;
    found.rank = static_cast<int>(stamped % contributors_) % ranks_;
    found.times = static_cast<double>(
                      std::bit_cast<float>(static_cast<std::uint32_t>(e.first & 0xFFFFFFFFU))) *
                  contributors_ / static_cast<double>(stamp_of(stamped));
  }
  return found;
}

Census take_census(Engine& engine, const MpiSession& session) {
  const StrategyEntry& entry = engine.step.strategy_entry();
  const ParameterTable& table = engine.model.network().table();
  Census census{.ranks = engine.step.ranks_computing()};
  const int micro_batches = engine.settings().accumulate;
  if (static_cast<double>(census.ranks) * micro_batches > kMostContributors) {
    census.unknown = true;
    census.cause = fmt::format("{} ranks of {} micro-batches are too many to distinguish",
                               census.ranks, micro_batches);
    return census;
  }
  std::vector<Range> gradients;
  for (const Parameter& p : table.parameters())
    gradients.push_back({p.offset, p.offset + p.stored});
  RankStamps stamps(engine.device(), engine.stream(), gradients, census.ranks, micro_batches);
  const int rank = entry.computing_rank(engine.world().rank());
  for (int round = 0; round < stamps.rounds(); ++round)
    engine.step.exchange_gradients(
        [&](View gradients, Range range, int micro_batch) {
          stamps.stamp(gradients, range, round, rank, micro_batch);
        },
        [&](const Share& share) { stamps.check(share, round); });
  engine.finish();

  const auto found = session.all_gather(stamps.found());
  double checked = 0;
  for (const RankStamps::Found& f : found) checked += f.checked;
  for (std::size_t r = 0; r < found.size() && census.cause.empty(); ++r)
    if (found[r].wrong > 0)
      census.cause = fmt::format(
          "the gradients that {} averaged on rank {} on {} are not those of {} ranks, once each: "
          "in {}, {} ({:.0f} of {:.0f} elements are wrong)",
          entry.name, r, session.hosts()[r], census.ranks, parameter_at(table, found[r].element),
          text_of(found[r], entry), found[r].wrong, found[r].checked);
  const double expected = static_cast<double>(stamps.elements()) * stamps.rounds() *
                          (engine.step.plan().updates_all ? census.ranks : 1);
  if (census.cause.empty() && checked != expected)
    census.cause = fmt::format("{} averaged {:.0f} gradients, not {:.0f}", entry.name,
                               checked / stamps.rounds(), expected / stamps.rounds());
  census.pass = census.cause.empty();
  return census;
}

namespace {

/// Of images and labels, as the network reads them.
std::string hash_of_batch(Engine& engine) {
  const Buffer hashes(engine.device(), 2 * sizeof(std::uint64_t));
  engine.device().zero(hashes.data(), hashes.bytes(), engine.stream());
  auto* hash = static_cast<std::uint64_t*>(hashes.data());
  for (const View& view : engine.model.network().batch())
    engine.device().kernels().add_bit_hash(view, hash++, engine.stream());
  engine.finish();
  const auto found = download<std::uint64_t>(engine.device(), engine.stream(), hashes.data(), 2);
  return fmt::format("{:016x}{:016x}", found[0], found[1]);
}

std::vector<std::byte> bytes_of(Engine& engine, ConstView view) {
  return download<std::byte>(engine.device(), engine.stream(), view.data, view.bytes());
}

/// Whether the network reads these weights in a block.
bool reads(Engine& engine, int block, const std::vector<float>& master) {
  const Weights& weights = engine.model.network().weights();
  const ParameterTable& table = engine.model.network().table();
  const Range range = table.block_range(block);
  const std::vector<float> wanted(master.begin() + static_cast<std::ptrdiff_t>(range.begin),
                                  master.begin() + static_cast<std::ptrdiff_t>(range.end));
  const View copy = weights.compute(range);
  const Buffer wide(engine.device(), wanted.size() * sizeof(float));
  upload<float>(engine.device(), engine.stream(), wide.data(), wanted);
  const Buffer rounded(engine.device(), copy.bytes());
  engine.device().kernels().convert(wide.view(DataType::float32), rounded.view(copy.type),
                                    engine.stream());
  if (bytes_of(engine, copy) != bytes_of(engine, rounded.view(copy.type))) return false;
  if (weights.vectors().count == 0) return true;
  for (std::size_t i = 0; i < table.parameters().size(); ++i) {
    const Parameter& p = table.parameters()[i];
    if (p.block != block || p.shape.size() != 1) continue;
    const auto vector = download<float>(engine.device(), engine.stream(),
                                        weights.vector(static_cast<int>(i)), p.stored);
    if (std::memcmp(vector.data(), &master[p.offset], p.stored * sizeof(float)) != 0) return false;
  }
  return true;
}

}  // namespace

ReceivedInputs check_inputs(Engine& engine, BatchSource& batches, const MpiSession& session) {
  constexpr std::size_t kDigits = 32;  // of a batch's hash
  ReceivedInputs inputs;
  Network& network = engine.model.network();
  if (!engine.step.plan().first_has_inputs) return inputs;
  batches.start_epoch(0);
  batches.load_next(network);
  const auto received = session.all_gather(hash_of_batch(engine));
  const std::vector<DeviceBatch> made = batches.of_all_ranks();
  std::string hashes;
  for (auto batch = made.rbegin(); batch != made.rend(); ++batch) {  // this rank's last
    network.set_batch(batch->images, batch->labels);
    hashes.insert(0, hash_of_batch(engine));
  }
  const std::string sent = session.all_gather(hashes).front();
  inputs.compared = !sent.empty();
  for (std::size_t r = 0; r < received.size() && inputs.compared && inputs.cause.empty(); ++r)
    if (sent.substr(r * kDigits, kDigits) != received[r])
      inputs.cause = fmt::format("rank {} on {} has another batch than rank 0 made for it", r,
                                 session.hosts()[r]);
  return inputs;
}

std::string check_published(Engine& engine, const std::vector<float>& master,
                            const MpiSession& session) {
  std::string cause;
  if (engine.step.computes())
    engine.model.gather_weights([&](int block) {
      if (cause.empty() && !reads(engine, block, master))
        cause = fmt::format(
            "computes {} with other weights than the update made",
            block_names(engine.settings().network.architecture)[static_cast<std::size_t>(block)]);
    });
  const auto causes = session.all_gather(cause);
  for (std::size_t r = 0; r < causes.size(); ++r)
    if (!causes[r].empty())
      return fmt::format("rank {} on {} {}", r, session.hosts()[r], causes[r]);
  return "";
}

namespace {

constexpr int kSteps = 3;

/// The least learning rates of the steps compared, the usual ones: weights near 1, as those of
/// norms, do not show a movement below 1e-7 (see kStored).
constexpr double kLeastRate = 0.1;
constexpr double kLeastRateOfAdam = 0.001;  // by which it moves every weight

void step(Engine& engine, EndlessBatches& batches, double learning_rate) {
  engine.step.run([&](int) { batches.load_next(engine.model.network()); }, learning_rate);
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
  EndlessBatches endless(batches);
  Weights3 wanted;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (i > 0 && computes) step(engine, endless, learning_rate);
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
  EndlessBatches endless(batches);
  for (std::size_t i = 1; i <= kSteps; ++i) {
    engine.model.set_weights(wanted[i - 1]);
    step(engine, endless, learning_rate);
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

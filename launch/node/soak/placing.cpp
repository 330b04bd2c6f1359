#include "launch/node/soak/placing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <nlohmann/json.hpp>

#include "launch/node/soak/evidence.hpp"
#include "launch/node/soak/sm_probe.hpp"

namespace shakedown::node {
namespace {

constexpr const char* kElsewhere = "run it on another one: where that is right, replace this one";

}  // namespace

void add(Attempts& attempts, std::optional<bool> wrong) {
  if (!wrong) return;
  ++attempts.tried;
  if (*wrong) ++attempts.wrong;
}

double rate_of(const Attempts& attempts) {
  return attempts.tried > 0 ? static_cast<double>(attempts.wrong) / attempts.tried : 0;
}

std::string text_of(const Attempts& attempts) {
  return attempts.tried == 0 ? "not tried"
                             : fmt::format("{} of {}", attempts.wrong, attempts.tried);
}

Evidence collect_evidence(const Retrial& wrong, int processor, std::span<const int> processors,
                          int addresses, int repeats) {
  std::vector<int> others(processors.begin(), processors.end());
  std::erase(others, processor);
  Evidence evidence;
  for (int i = 0; i < repeats; ++i) {
    add(evidence.same, wrong(processor, 0));
    if (!others.empty())
      add(evidence.other_processors, wrong(others[static_cast<std::size_t>(i) % others.size()], 0));
    if (addresses > 0) add(evidence.other_addresses, wrong(processor, 1 + i % addresses));
  }
  return evidence;
}

Judgement place_error(const Evidence& e, const std::string& unit, int processor) {
  const std::string counts = fmt::format(
      ": wrong in {} on {} {}, {} on other {}s, {} at other addresses{}", text_of(e.same), unit,
      processor, text_of(e.other_processors), unit, text_of(e.other_addresses),
      e.other_gpus.tried > 0 ? fmt::format(", {} on other GPUs", text_of(e.other_gpus)) : "");
  const auto fail = [&](const std::string& what, const char* action) {
    return failure(Class::hardware, what + counts, action);
  };
  // One sick helper of two makes half of the attempts wrong.
  if (rate_of(e.other_gpus) > rate_of(e.same) / 2)
    return undecided(Class::software, "other GPUs have it too, so it is not this one's" + counts,
                     "report it as an error of this program");
  const double highest =
      std::max({rate_of(e.same), rate_of(e.other_processors), rate_of(e.other_addresses)});
  if (e.same.tried > 0 && highest == 0)
    return fail("transient, not seen again", "run again for longer; RMA if it comes back");
  const auto seen = [&](const Attempts& attempts) { return rate_of(attempts) >= highest / 10; };
  const bool elsewhere = seen(e.other_addresses);
  const bool by_others = e.other_processors.tried == 0 || seen(e.other_processors);
  if (e.same.tried == 0 || e.other_addresses.tried == 0 ||
      (elsewhere && e.other_processors.tried == 0))
    return fail("could not be placed", "run again with nothing else on it");
  if (elsewhere && by_others)
    return fail(fmt::format("every {} and address", unit),
                e.other_gpus.tried > 0 ? "RMA" : kElsewhere);
  if (elsewhere) return fail(fmt::format("sticks to {} {}", unit, processor), "RMA");
  if (by_others) return fail("sticks to the address", kRemapRows);
  return fail(fmt::format("only {} {} at this address", unit, processor), "RMA");
}

std::vector<int> helpers_of(int juror, int jurors) {
  constexpr int kHelpers = 2;
  std::vector<int> helpers;
  for (int next = 1; next <= std::min(kHelpers, jurors - 1); ++next)
    helpers.push_back((juror + next) % jurors);
  return helpers;
}

namespace {

/// `task` repeats this rank's error; empty: it has none. What the helpers of this rank found.
Attempts attempts_elsewhere(const MpiSession& jurors, const std::string& task,
                            const std::function<Attempts(const Json& task)>& attempt) {
  const std::vector<std::string> tasks = jurors.all_gather(task);
  Attempts sum;
  for (int juror = 0; juror < jurors.world_size(); ++juror) {
    const std::string& given = tasks[static_cast<std::size_t>(juror)];
    if (given.empty()) continue;
    const std::vector<int> helpers = helpers_of(juror, jurors.world_size());
    const bool helps = std::count(helpers.begin(), helpers.end(), jurors.rank()) > 0;
    for (const Attempts& of_one :
         jurors.all_gather(helps ? attempt(Json::parse(given)) : Attempts{})) {
      if (juror != jurors.rank()) continue;
      sum.tried += of_one.tried;
      sum.wrong += of_one.wrong;
    }
  }
  return sum;
}

/// Concludes this of a mismatch; what other GPUs have too is of all.
void conclude(Mismatch& mismatch, Judgement placing, const std::string& before) {
  placing.cause = before + placing.cause;
  mismatch.of_all = placing.outcome == Outcome::inconclusive;
  mismatch.conclude(std::move(placing));
}

}  // namespace

void PlacedError::place(std::vector<Mismatch>& found, std::size_t at, const Evidence& evidence,
                        int processor, const Json& task) {
  Mismatch& mismatch = found[at];
  mismatch.sm = processor;
  mismatch.reproduced = evidence.same.wrong;
  mismatch.repeats = evidence.same.tried;
  const std::string before = mismatch.cause + "; ";
  conclude(mismatch, place_error(evidence, unit_, processor), before);
  if (!task_.empty()) return;
  task_ = json_text(task);
  at_ = at;
  before_ = before;
  evidence_ = evidence;
  processor_ = processor;
}

void PlacedError::confer(const MpiSession& jurors,
                         const std::function<Attempts(const Json& task)>& attempt,
                         std::vector<Mismatch>& found) {
  evidence_.other_gpus = attempts_elsewhere(jurors, task_, attempt);
  if (!task_.empty() && evidence_.other_gpus.tried > 0)
    conclude(found.at(at_), place_error(evidence_, unit_, processor_), before_);
  task_.clear();
}

namespace {

/// The highest rate at which the tile, or what is at its place, was wrong.
double highest_rate(const ProductAttempts& a) {
  return std::max({rate_of(a.same), rate_of(a.place), rate_of(a.element), rate_of(a.elsewhere)});
}

/// Nearly each product is wrong, in one tile or another.
bool is_steady(const ProductAttempts& a) { return rate_of(a.any) >= 0.9; }

/// The tile is seldom one of those: blocks come to other SMs from launch to launch.
bool moves(const ProductAttempts& a) {
  return is_steady(a) && 2 * highest_rate(a) < rate_of(a.any);
}

/// Wrong in other turns too: wherever the tile is computed, a third as often at least.
bool follows_data(const ProductAttempts& a) {
  // By chance a tile comes to the same SM in some turns.
  return a.element.wrong > 0 && 3 * rate_of(a.element) >= highest_rate(a);
}

}  // namespace

Judgement place_product(const ProductAttempts& a, const std::string& unit) {
  constexpr int kFew = 10;  // fewer wrong ones may be so by chance
  const double highest = highest_rate(a);
  const std::string counts = fmt::format(
      ": wrong as it was {} (any tile {}), at this place of the launch with other data {}, at "
      "other places {}, with C elsewhere in memory {}",
      text_of(a.same), text_of(a.any), text_of(a.place), text_of(a.element), text_of(a.elsewhere));
  const auto fail = [&](const std::string& what, const char* action) {
    return failure(Class::hardware, what + counts, action);
  };
  const auto seen = [&](const Attempts& attempts) { return rate_of(attempts) >= highest / 10; };
  if (a.cured_by.size() == 1)
    return fail(fmt::format("{} {}: right without it, wrong without each of {} others", unit,
                            a.cured_by.front(), a.without - 1),
                "RMA");
  if (moves(a))
    return fail(fmt::format("moves from tile to tile{}",
                            a.without > 0 ? fmt::format(", and by no {} alone", unit) : ""),
                kElsewhere);
  if (highest == 0) return fail("not seen again", "run again for longer; RMA if it comes back");
  if (a.element.tried == 0 || a.elsewhere.tried == 0)
    return fail("could not be placed", "run again for longer");
  if (std::max({a.same.wrong, a.place.wrong, a.element.wrong, a.elsewhere.wrong}) < kFew)
    return fail("seen again too seldom to be placed", "run again for longer; RMA if it comes back");
  if (follows_data(a))
    return fail(seen(a.place) ? "wherever it is computed" : "follows the data to other places",
                kElsewhere);
  if (!seen(a.elsewhere)) return fail("sticks to the memory of C", kRemapRows);
  return fail(fmt::format("stays at its place of the launch, so at one {}", unit), "RMA");
}

namespace {

/// The product of the rig, again and again, tile by tile.
class Trials {
 public:
  Trials(ProductRig& rig, std::span<const std::optional<std::uint64_t>> right,
         const Stopped& stopped)
      : rig_(rig), right_(right), stopped_(stopped) {}

  /// Whether it ran: not once a signal has come.
  bool run() {
    if (stopped_()) return false;
    rig_.run_checked(0, 0);
    records_ = rig_.records(0);
    return true;
  }
  /// Of the product that ran; a tile of which nothing is known is not tried.
  void add_to(Attempts& attempts, std::int64_t tile) const {
    const auto at = static_cast<std::size_t>(tile);
    if (right_[at]) add(attempts, records_[at].first != *right_[at]);
  }
  bool any_wrong() const {
    for (std::size_t tile = 0; tile < records_.size(); ++tile)
      if (right_[tile] && records_[tile].first != *right_[tile]) return true;
    return false;
  }

 private:
  ProductRig& rig_;
  std::span<const std::optional<std::uint64_t>> right_;
  const Stopped& stopped_;
  std::vector<TileRecord> records_;
};

/// The SMs without which no product is wrong, of those that nearly always are. One that could not
/// be held was not tried.
void try_without_each(ProductRig& rig, Trials& trials, ProductAttempts& attempts) {
  constexpr int kProducts = 20;
  for (const int processor : make_probe(rig.device())->processors()) {
    const HeldProcessor held(rig.device(), processor);
    if (!held.holds()) continue;
    bool wrong = false;
    for (int i = 0; i < kProducts && !wrong; ++i) {
      if (!trials.run()) return;
      wrong = trials.any_wrong();
    }
    ++attempts.without;
    if (!wrong) attempts.cured_by.push_back(processor);
  }
}

}  // namespace

ProductAttempts try_product(ProductRig& rig, std::int64_t tile,
                            std::span<const std::optional<std::uint64_t>> right, Attempts same,
                            const Stopped& stopped) {
  constexpr int kTurns = 10;
  constexpr std::uint32_t kUnused = 1 << 20;  // turns that no batch has
  const Reruns reruns;
  const int repeats = same.wrong == same.tried ? reruns.enough : reruns.most;
  const Draw draw = rig.draw();
  const std::int64_t across = rig.grid().across();
  const std::int64_t row = rig.turn().rows.place_of_tile(tile / across);
  const std::int64_t column = rig.turn().columns.place_of_tile(tile % across);
  ProductAttempts attempts;
  attempts.same = same;
  Trials trials(rig, right, stopped);
  for (std::uint32_t turn = 0; turn < kTurns; ++turn) {
    rig.fill({draw.operands, draw.seed, kUnused + turn});
    const std::int64_t there = rig.turn().rows.tile(row) * across + rig.turn().columns.tile(column);
    if (there == tile) continue;
    for (int i = 0; i < repeats / kTurns && trials.run(); ++i) {
      trials.add_to(attempts.place, there);
      trials.add_to(attempts.element, tile);
    }
  }
  rig.fill(draw);
  rig.product().move_result(kTileEdge);
  for (int i = 0; i < repeats && trials.run(); ++i) trials.add_to(attempts.elsewhere, tile);
  rig.product().move_result(0);
  for (int i = 0; i < reruns.enough && trials.run(); ++i) add(attempts.any, trials.any_wrong());
  if (rig.device().kind() == BackendKind::gpu && is_steady(attempts) &&
      (moves(attempts) || !follows_data(attempts)))
    try_without_each(rig, trials, attempts);
  return attempts;
}

HeldProcessor::HeldProcessor(Device& device, int processor)
    : stream_(device.make_stream()), words_(device, sizeof(HoldWords), Place::host) {
  auto* const words = new (words_.data()) HoldWords;
  gpu::launch_hold_processor(words, processor, *stream_);
  constexpr auto kPatience = std::chrono::seconds(1);
  const auto start = std::chrono::steady_clock::now();
  while (!holds_ && std::chrono::steady_clock::now() - start < kPatience)
    holds_ = std::atomic_ref(words->resident).load() > 0;
}

HeldProcessor::~HeldProcessor() {
  std::atomic_ref(static_cast<HoldWords*>(words_.data())->stop).store(1);
  try {
    stream_->synchronize();  // the block reads the words
  } catch (...) {            // past the timeout, which has its own report
  }
}

}  // namespace shakedown::node

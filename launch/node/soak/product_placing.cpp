#include "launch/node/soak/product_placing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>

#include "launch/node/soak/sm_probe.hpp"

namespace shakedown::node {

Placing place_product(const ProductAttempts& a, const std::string& unit) {
  constexpr const char* kElsewhere = "run it on another one: where that is right, replace this one";
  const double highest =
      std::max({rate_of(a.same), rate_of(a.place), rate_of(a.element), rate_of(a.elsewhere)});
  const std::string counts = fmt::format(
      "wrong as it was {} (any tile {}), at this place of the launch with other data {}, at other "
      "places {}, with C elsewhere in memory {}",
      text_of(a.same), text_of(a.any), text_of(a.place), text_of(a.element), text_of(a.elsewhere));
  const auto fail = [&](Culprit culprit, const std::string& what, const char* action) {
    return Placing{failure(Class::hardware, fmt::format("{}: {}", what, counts), action), culprit};
  };
  if (a.cured_by.size() == 1)
    return fail(Culprit::processor,
                fmt::format("{} {}: right without it, wrong without each of {} others", unit,
                            a.cured_by.front(), a.without - 1),
                "RMA");
  if (highest == 0)
    return fail(Culprit::transient, "not seen again", "run again for longer; RMA if it comes back");
  if (a.element.tried == 0 || a.elsewhere.tried == 0)
    return fail(Culprit::unknown, "could not be placed", "run again for longer");
  const auto seen = [&](const Attempts& attempts) { return rate_of(attempts) >= highest / 10; };
  if (follows_data(a))
    return fail(Culprit::gpu,
                seen(a.place) ? "wherever it is computed" : "follows the data to other places",
                kElsewhere);
  if (!seen(a.elsewhere))
    return fail(Culprit::address, "sticks to the memory of C",
                "reset the GPU, which remaps rows; RMA if it comes back");
  return fail(Culprit::processor,
              fmt::format("stays at its place of the launch, so at one {}", unit), "RMA");
}

bool follows_data(const ProductAttempts& a) {
  // By chance a tile comes to the same SM in some turns.
  return 2 * rate_of(a.element) >=
         std::max({rate_of(a.same), rate_of(a.place), rate_of(a.element), rate_of(a.elsewhere)});
}

namespace {

/// The product of the rig, again and again, tile by tile.
class Trials {
 public:
  Trials(ProductRig& rig, std::span<const std::optional<std::uint64_t>> right)
      : rig_(rig), right_(right) {}

  void run() {
    rig_.run_checked(0, 0);
    records_ = rig_.records(0);
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
  std::vector<TileRecord> records_;
};

/// The SMs without which no product is wrong, of those that nearly always are. One that could not
/// be held was not tried.
void try_without_each(ProductRig& rig, Trials& trials, ProductAttempts& attempts) {
  constexpr int kProducts = 20;
  for (const int processor : make_probe(rig.device())->processors()) {
    const HeldProcessor held(rig.device(), processor);
    if (!held.holds()) continue;
    ++attempts.without;
    bool right = true;
    for (int i = 0; i < kProducts && right; ++i) {
      trials.run();
      right = !trials.any_wrong();
    }
    if (right) attempts.cured_by.push_back(processor);
  }
}

}  // namespace

ProductAttempts try_product(ProductRig& rig, std::int64_t tile,
                            std::span<const std::optional<std::uint64_t>> right, Attempts same,
                            int repeats) {
  constexpr int kTurns = 10;
  constexpr std::uint32_t kUnused = 1 << 20;  // turns that no batch has
  const Draw draw = rig.draw();
  const std::int64_t across = rig.grid().across();
  const std::int64_t row = rig.turn().rows.place_of_tile(tile / across);
  const std::int64_t column = rig.turn().columns.place_of_tile(tile % across);
  ProductAttempts attempts;
  attempts.same = same;
  Trials trials(rig, right);
  for (std::uint32_t turn = 0; turn < kTurns; ++turn) {
    rig.fill({draw.operands, draw.seed, kUnused + turn});
    const std::int64_t there = rig.turn().rows.tile(row) * across + rig.turn().columns.tile(column);
    if (there == tile) continue;
    for (int i = 0; i < repeats / kTurns; ++i) {
      trials.run();
      trials.add_to(attempts.place, there);
      trials.add_to(attempts.element, tile);
    }
  }
  rig.fill(draw);
  rig.product().move_result(kTileEdge);
  for (int i = 0; i < repeats; ++i) {
    trials.run();
    trials.add_to(attempts.elsewhere, tile);
  }
  rig.product().move_result(0);
  for (int i = 0; i < repeats / 5; ++i) {
    trials.run();
    add(attempts.any, trials.any_wrong());
  }
  if (rig.device().kind() == BackendKind::gpu && rate_of(attempts.any) >= 0.9 &&
      (attempts.element.wrong == 0 || !follows_data(attempts)))
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

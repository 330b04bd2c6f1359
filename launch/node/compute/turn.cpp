#include "launch/node/compute/turn.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>

#include "common/ensure.hpp"
#include "common/hash.hpp"

namespace shakedown::node {
namespace {

/// Fisher & Yates.
void shuffle(std::span<std::uint8_t> order, Random& random) {
  std::iota(order.begin(), order.end(), std::uint8_t{0});
  for (std::size_t left = order.size(); left > 1; --left)
    std::swap(order[left - 1], order[random.below(left)]);
}

LineOrder draw(std::int64_t lines, std::size_t group, Random& random) {
  ENSURE(lines % kTileEdge == 0 && lines <= kMostTiles * kTileEdge, "whole tiles, not too many");
  LineOrder order;
  order.moved = true;
  shuffle(std::span(order.tiles).first(static_cast<std::size_t>(lines / kTileEdge)), random);
  std::array<std::uint8_t, kTileEdge> groups{};
  shuffle(std::span(groups).first(kTileEdge / group), random);
  for (std::size_t place = 0; place < kTileEdge; ++place)
    order.lines[place] = static_cast<std::uint8_t>(groups[place / group] * group + place % group);
  return order;
}

template <std::size_t count>
std::int64_t place_in(const std::uint8_t (&order)[count], std::int64_t what) {
  return std::find(order, order + count, what) - order;
}

}  // namespace

std::int64_t LineOrder::place_of_tile(std::int64_t tile) const {
  return moved ? place_in(tiles, tile) : tile;
}
int LineOrder::place_of_line(int line) const {
  return moved ? static_cast<int>(place_in(lines, line)) : line;
}

Turn make_turn(std::int64_t m, std::int64_t n, int group, std::uint64_t seed,
               std::uint32_t number) {
  if (number == 0) return {};
  Random random(derive_seed(seed, number));
  Turn turn;
  turn.number = number;
  turn.rows = draw(m, 1, random);
  turn.columns = draw(n, static_cast<std::size_t>(group), random);
  return turn;
}

}  // namespace shakedown::node

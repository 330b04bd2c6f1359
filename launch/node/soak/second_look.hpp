// What is done about a tile that the jury does not agree on: every GPU repeats the product, and the
// CPU recomputes the tile where the vote decides nothing.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/verdict.hpp"
#include "launch/node/soak/jury.hpp"
#include "launch/node/soak/product_rig.hpp"

namespace shakedown::node {

inline constexpr int kReruns = 100;

/// What one GPU's re-runs of a product showed of a tile.
struct Look {
  int reruns = 0;
  int differing = 0;       // from the right hash; where that is not known, from the first re-run's
  int hash_disagrees = 0;  // 1: the device's hash of the tile's bytes is not the host's
  int beyond_bound = -1;   // elements that the CPU's result refutes; -1: it was not computed
  std::uint64_t hash = 0;  // of the first re-run that differed, else of the last one
};

struct LookedAt {
  Look look;
  std::vector<std::byte> bytes;  // of the tile with that hash
};

/// Repeats the product whose operands the rig holds. `host`, if not null, is the CPU's result.
LookedAt look_again(ProductRig& rig, std::int64_t tile, std::optional<std::uint64_t> right,
                    int reruns, const HostTile* host);

/// What is concluded about one juror.
struct Conclusion {
  int juror = 0;  // -1: about all of them
  Outcome outcome = Outcome::fail;
  Class class_ = Class::hardware;
  std::string cause;
  std::string action;
  bool open = false;  // other operands may show more
};

/// From the vote on a tile and what every juror's second look showed.
std::vector<Conclusion> conclude(const Ruling& ruling, std::span<const Look> looks);
/// About those whose product was refuted, by a known answer or the CPU, and is right when it is
/// repeated. `refuted` by juror: the tile; -1: none. Empty where it is all of two jurors or more.
std::vector<Conclusion> refuted_once(const std::vector<double>& refuted,
                                     std::span<const Look> looks);

}  // namespace shakedown::node

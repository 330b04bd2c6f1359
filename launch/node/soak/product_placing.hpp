// Where a wrong product comes from: the same product again in other turns, with C elsewhere in
// memory, and without one SM after another.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/program.hpp"
#include "launch/node/soak/placing.hpp"
#include "launch/node/soak/product_rig.hpp"

namespace shakedown::node {

/// What was tried of a tile that was wrong, and how often it was wrong.
struct ProductAttempts {
  Attempts same;                // the product as it was
  Attempts any;                 // the same: any tile of it
  Attempts place;               // in other turns: what is then where the tile was in the launch
  Attempts element;             // in other turns: the tile, where it is then
  Attempts elsewhere;           // with C elsewhere in its buffer
  int without = 0;              // SMs that were held, one after another; 0: not tried
  std::vector<int> cured_by{};  // those of them without which no tile was wrong
};

/// Wrong in other turns too: wherever the tile is computed, half as often at least.
bool follows_data(const ProductAttempts& attempts);

/// Pure. The SM is named where it is the only one without which all is right, whatever tiles were
/// wrong: blocks may come to other SMs from launch to launch. Else what is wrong in other turns too
/// is wrong by its data; what is wrong with C elsewhere too, by the SM at its place of the launch;
/// and the rest by the memory of C. `unit`: "SM".
Placing place_product(const ProductAttempts& attempts, const std::string& unit);

/// `right` is by tile the hash that most have; none: not known. `same`: what the re-runs were. The
/// rig has the product's operands, and has them again afterwards.
ProductAttempts try_product(ProductRig& rig, std::int64_t tile,
                            std::span<const std::optional<std::uint64_t>> right, Attempts same,
                            int repeats = 100);

/// Keeps other work from one SM of a GPU while it lives. As with HeldSms, no memory is freed and no
/// kernel run for the first time meanwhile.
class HeldProcessor {
 public:
  HeldProcessor(Device& device, int processor);
  ~HeldProcessor();
  HeldProcessor(const HeldProcessor&) = delete;
  HeldProcessor& operator=(const HeldProcessor&) = delete;

  /// Whether it got to the SM.
  bool holds() const { return holds_; }

 private:
  std::unique_ptr<Stream> stream_;
  Buffer words_;  // of the host: HoldWords
  bool holds_ = false;
};

namespace gpu {
/// Enqueues a block that stays on the SM until words->stop, in pinned host memory.
void launch_hold_processor(HoldWords* words, int processor, Stream& stream);
}  // namespace gpu

}  // namespace shakedown::node

// What a soak does when: phases of a few seconds, each of one load or of all, over and over.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/node/compute/product.hpp"

namespace shakedown::node {

enum class LoadKind { products, probes, memory, copies, collectives };
inline constexpr int kLoadKinds = 5;
std::vector<LoadKind> all_loads();
const char* name_of(LoadKind kind);
std::vector<std::string> names_of_loads();

enum class Shape { steady, square, mixed };
const char* name_of(Shape shape);
std::vector<std::string> names_of_shapes();

/// One window's work.
struct Phase {
  Shape shape = Shape::steady;
  std::vector<LoadKind> loads;      // at the same time
  std::optional<ProductType> type;  // of the products, if they are one
  double pulse_hertz = 0;           // of the products; 0: steady

  /// "steady product bf16", "square product fp16 2 Hz", "mixed product fp8, memory, copies".
  std::string name() const;
  bool has(LoadKind kind) const;
};

/// The phases of one cycle: each type's products, each other load, memory once more, whose patterns
/// need the time, then one square wave and one mixture of all but the probes, which need each SM
/// for themselves; types and frequencies change from cycle to cycle. `alone`: a single rank, which
/// has no collectives. Empty where nothing is left to do.
std::vector<Phase> phases_of_cycle(const std::vector<std::string>& shapes,
                                   const std::vector<std::string>& loads,
                                   const std::vector<ProductType>& types, bool alone, int cycle);

/// Seconds per window: at most 10, and so few that each phase comes six times.
double window_seconds(double total_s, std::size_t phases);

/// Makes square waves that are too slow for a window faster: each has two periods in it at least.
void fit_pulses(std::vector<Phase>& phases, double window_s);

}  // namespace shakedown::node

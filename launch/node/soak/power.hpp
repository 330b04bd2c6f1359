// The power of a soak: the faults that it finds with a probability of 95 %, from the counts of what
// it checked. Models of faults, not nature's: docs/burn-in.md.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/record.hpp"
#include "launch/node/compute/product.hpp"

namespace shakedown::node {

/// What one rank checked of a type's products: what its power follows from.
struct ProductCount {
  double products = 0;  // N_t: checked, of all operands
  double turns = 0;     // T_t: distinct pairs of seed and turn of full entropy among them
  double elements = 0;  // E: m n, of one product
};

/// What one rank checked in all.
struct Checked {
  std::map<ProductType, ProductCount> products;  // of each type that was to be checked
  double processors = 0;                         // SMs, or threads of the cpu backend
  double lanes = 0;                              // of a processor; 0: they are not known
  double probes = 0;
  double memory_share = 0;   // by one pattern at least, of all of the GPU's; kUnknown: of a CPU's
  double memory_passes = 0;  // of all patterns
  double copied_words = 0, link_words = 0;  // of 8 bytes
};

/// Of a GPU of which each SM has 8 warps at work on a product: two warpgroups.
inline constexpr double kLanes = 8 * 32;

/// X where one wrong in X is what a soak finds in 95 of 100 cases: the rule of three, 3 = -ln 0.05.
/// 0: nothing of the kind was checked.
struct Power {
  /// A processor, or a lane, is always wrong for one of X of its elements, in one of the types that
  /// have turns: X = E min T_t / (3 U), with U such units.
  double processor_elements = 0, lane_elements = 0;
  std::vector<ProductType> sticky_types, unmoved_types;  // with turns, and without
  double products = 0;                        // one of X of all types' is wrong: X = sum of N_t / 3
  std::map<ProductType, double> products_of;  // the same, of one type's: N_t / 3
  double probes = 0;
  double copied_words = 0, link_words = 0;
  double memory_share = 0, memory_passes = 0;
};
Power power_of(const Checked& checked);
/// Of several GPUs the least of each: what is found whichever of them has the fault.
Power least_of(const std::vector<Power>& ranks);

/// "power at 95 %: an SM wrong for 1 element in 4.8e7, ...; not seen: ...". `unit`: "SM" or "core".
/// Empty where nothing was checked.
std::string line_of(const Power& power, const std::string& unit, std::size_t ranks);
/// one_in.products, one_in.products.bf16, ... of a "soak_summary" record: 0 where none was checked.
Json record_of(const Power& power);

}  // namespace shakedown::node

// The faults that a preloaded library makes: those of the JSON file FAULTY_MODEL.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/faulty/excitation.hpp"

namespace shakedown::faulty {

/// In the order of node::ProductType.
inline constexpr const char* kTypes[] = {"fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"};

struct CellFault {
  double address;  // as a share of the memory
  int bit;         // of the byte there
  int stuck;       // at 0 or 1
};

struct CopyFault {
  std::string way;  // h2d, d2d, d2h; empty: each
  double rate;      // of words of 8 bytes
  std::uint64_t flip;
};

/// Of what all_reduce delivers.
struct CollectiveFault {
  double rate;  // of calls: one element of them
  std::uint64_t flip;
};

struct Model {
  std::string name;  // "class"
  std::uint64_t seed = 0;
  std::vector<ProductFault> products;
  std::vector<CellFault> cells;
  std::vector<CopyFault> copies;
  std::vector<CollectiveFault> collectives;

  bool empty() const {
    return products.empty() && cells.empty() && copies.empty() && collectives.empty();
  }
};

/// Where this process is: what a library needs to begin.
struct Settings {
  Model model;       // empty where FAULTY_RANK names another rank
  bool here = true;  // false: another rank has the faults
  std::string log;   // FAULTY_LOG
};

/// From FAULTY_MODEL, FAULTY_SEED, FAULTY_RANK and FAULTY_LOG. `places`: the "on" that the library
/// has; `block`: what one computes of a product. Ends the process with exit code 2 and a line that
/// names file and key where one is wrong.
Settings read_settings(const std::vector<std::string>& places, int block_rows, int block_columns);

/// How many of `count` things that each happen with probability `rate` do, in trial `trial`.
std::uint64_t happen(std::uint64_t seed, std::uint64_t trial, double count, double rate);

// FAULTY_LOG: what a preloaded library did, as one JSON object, renewed while the process works: a
// tool may end by a signal that runs no destructor.

/// From the first call on a thread writes what `counts` returns into the file `path` whenever that
/// has changed, and the end of the process does. An empty path: nothing is written.
void keep_log(const std::string& path, const std::string& model,
              const std::function<Counts()>& counts);

}  // namespace shakedown::faulty

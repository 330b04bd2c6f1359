// What a soak without errors proves.
#pragma once

#include <string>

namespace shakedown::node {

/// The work that was checked, on all GPUs.
struct Work {
  double products = 0;
  double probes = 0;        // of single processors
  double memory_bytes = 0;  // read and verified
  double copied_bytes = 0;  // between host and device
  double link_bytes = 0;    // delivered by collectives
  double gpu_hours = 0;
  double self_compared = 0;  // of the products: with the same GPU's others alone
};

/// Events per GPU-hour that are excluded at 95 % where none was seen in this time: 3 / T, the rule
/// of three (exactly -ln 0.05 / T). Infinite for no time.
double rate_bound(double gpu_hours);

/// "0 wrong in 2.1e6 products, 9.8 PB of memory, 1.2 PB over links: rate below 12 per GPU-hour at
/// 95 %"; "2.1e6 products, of which 1.6e6 were compared only with themselves". With wrong
/// operations there is no bound to give. `device`: "GPU" or "rank".
std::string statement_of(const Work& work, double wrong, const std::string& device = "GPU");

/// "9.8 PB", decimal units.
std::string readable_decimal_bytes(double bytes);

}  // namespace shakedown::node

// What a soak gives the judge: the rates of its products, as `metric` lines.
#pragma once

#include <string>
#include <vector>

#include "launch/node/compute/rate_tests.hpp"
#include "launch/node/soak/findings.hpp"

namespace shakedown::node {

/// One type's products on this rank, in all windows of steady products.
struct SoakedProduct {
  ProductSpec spec;
  std::string algorithm;
  ProductRates rates;
};

/// product/T/... as bin/compute_perf has them, with the condition manner "checked": the products
/// are compared all the while. Wrong where one of them was.
std::vector<Series> series_of(const std::vector<SoakedProduct>& products,
                              const std::vector<Window>& windows,
                              const std::vector<Incident>& incidents, int rank, BackendKind kind);

}  // namespace shakedown::node

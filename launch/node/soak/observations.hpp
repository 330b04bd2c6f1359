// What a soak gives the judge: the rates of its products, as `metric` lines.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/judge/observation.hpp"
#include "launch/node/soak/findings.hpp"

namespace shakedown::node {

/// One type's products on this rank, in all windows of steady products.
struct SoakedProduct {
  ProductSpec spec;
  std::string algorithm;
  ProductRates rates;
};

/// Collective; complete on each rank. product/T/... with the condition manner "checked", as the
/// products are compared all the while; wrong where one of them was. The names, units and cycles
/// are those of bin/compute_perf.
std::vector<judge::Observation> observations_of(const std::map<ProductType, SoakedProduct>& mine,
                                                const std::vector<Window>& windows,
                                                const std::vector<Incident>& incidents,
                                                const Backend& backend, const MpiSession& session);

}  // namespace shakedown::node

#include "launch/node/soak/observations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/statistics.hpp"
#include "common/units.hpp"

namespace shakedown::node {
namespace {

struct Quantity {
  const char* name;
  const char* unit;
  std::vector<double> ProductRates::*samples;
};
constexpr Quantity kQuantities[] = {
    {"flop_per_cycle_sm", "FLOP/cycle/SM", &ProductRates::flop_per_cycle_sm},
    {"clock_mhz", "MHz", &ProductRates::clock_mhz},
    {"tflops", "TFLOP/s", &ProductRates::tflops}};

/// At most kMost samples, evenly spaced: a soak may last for days.
std::vector<double> thinned(const std::vector<double>& samples) {
  constexpr std::size_t kMost = 60;
  if (samples.size() <= kMost) return samples;
  std::vector<double> kept;
  for (std::size_t i = 0; i < kMost; ++i) kept.push_back(samples[i * samples.size() / kMost]);
  return kept;
}

Json json_of(const std::map<ProductType, SoakedProduct>& products) {
  Json all = Json::array();
  for (const auto& [type, product] : products) {
    const ProductSpec& spec = product.spec;
    Json json{{"type", name_of(type)},
              {"shape", fmt::format("{}x{}x{}", spec.m, spec.n, spec.k)},
              {"algorithm", without_library(product.algorithm)}};
    for (const Quantity& quantity : kQuantities)
      json[quantity.name] = thinned(product.rates.*quantity.samples);
    all.push_back(std::move(json));
  }
  return all;
}

/// In the windows of steady products: the median power, the hottest reading, every reason.
judge::Circumstances seen_of(const std::vector<Window>& windows, std::size_t rank,
                             const std::string& type) {
  std::vector<double> power_w;
  judge::Circumstances seen;
  for (const Window& window : windows) {
    if (!window.steady_products || name_of(*window.steady_products) != type) continue;
    const RankWindow& of_rank = window.ranks[rank];
    if (std::isfinite(of_rank.power_w)) power_w.push_back(of_rank.power_w);
    seen.temperature_c = std::fmax(seen.temperature_c, of_rank.temperature_c);  // or the known one
    if (of_rank.throttle_known)
      seen.reasons = seen.reasons.value_or(0) | of_rank.throttle_reasons;
  }
  if (!power_w.empty()) seen.power_w = median_of(power_w);
  return seen;
}

bool was_wrong(const std::vector<Incident>& incidents, int rank, const std::string& type) {
  return std::ranges::any_of(incidents, [&](const Incident& incident) {
    return incident.rank == rank && incident.mismatch.load == "product " + type;
  });
}

}  // namespace

std::vector<judge::Observation> observations_of(const std::map<ProductType, SoakedProduct>& mine,
                                                const std::vector<Window>& windows,
                                                const std::vector<Incident>& incidents,
                                                const Backend& backend,
                                                const MpiSession& session) {
  std::map<std::string, std::string> versions;
  for (const LibraryVersion& library : library_versions(backend.kind))
    if (library.name == "cublas" || library.name == "onednn")
      versions[library.name] = library.running;
  const std::vector<Unit> units = units_of(session, backend);
  const std::vector<std::string> products = session.all_gather(json_text(json_of(mine)));
  std::vector<judge::Observation> all;
  for (const Unit& unit : units) {
    const auto rank = static_cast<std::size_t>(unit.rank);
    for (const Json& product : Json::parse(products[rank])) {
      const std::string type = product["type"];
      const std::vector<double> mhz = product["clock_mhz"];
      for (const Quantity& quantity : kQuantities) {
        const Json& samples = product[quantity.name];
        if (samples.empty()) continue;
        judge::Observation rate =
            observed(fmt::format("product/{}/{}", type, quantity.name), quantity.unit, unit);
        for (const Json& sample : samples)  // null: not finite
          rate.samples.push_back(sample.is_number() ? sample.get<double>() : kUnknown);
        rate.conditions = {{"shape", product["shape"]},
                           {"algorithm", product["algorithm"]},
                           {"data", "random"},
                           {"manner", "checked"}};
        rate.versions = versions;
        const double limit_w = rate.seen.power_limit_w;
        rate.seen = seen_of(windows, rank, type);
        rate.seen.power_limit_w = limit_w;
        if (!mhz.empty()) rate.seen.clock_mhz = median_of(mhz);
        if (was_wrong(incidents, unit.rank, type)) rate.check = judge::Check::wrong;
        all.push_back(std::move(rate));
      }
    }
  }
  return all;
}

}  // namespace shakedown::node

#include "launch/node/soak/power.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "launch/node/soak/schedule.hpp"

namespace shakedown::node {
namespace {

/// Where none of `checked` was wrong, less than one in this many is, at 95 %. A single one shows
/// what is always wrong.
double one_in(double checked) { return checked > 0 ? std::max(1.0, checked / 3) : 0; }

/// Two digits, rounded down: 190, 11000, 4.8e7.
std::string two_digits(double value) {
  const double exponent = std::floor(std::log10(value) + 1e-12);
  const double tenths = std::floor(value / std::pow(10, exponent - 1) + 1e-9);
  if (exponent < 5) return fmt::format("{:.0f}", std::floor(tenths * std::pow(10, exponent - 1)));
  return fmt::format("{:.1f}e{:.0f}", tenths / 10, exponent);
}

/// " (fp64 210, bf16 2800)": the type with the least and that with the most.
std::string by_type(const Power& power) {
  if (power.products_of.size() < 2) return "";
  const auto [least, most] =
      std::minmax_element(power.products_of.begin(), power.products_of.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; });
  if (least->second == 0)
    return fmt::format(" ({} {})", name_of(most->first), two_digits(most->second));
  return fmt::format(" ({} {}, {} {})", name_of(least->first), two_digits(least->second),
                     name_of(most->first), two_digits(most->second));
}

}  // namespace

Power power_of(const Checked& checked) {
  Power power;
  double turns = INFINITY, elements = 0, products = 0;
  for (const auto& [type, count] : checked.products) {
    products += count.products;
    power.products_of[type] = one_in(count.products);
    (count.turns > 0 ? power.sticky_types : power.unmoved_types).push_back(type);
    if (count.turns == 0) continue;
    turns = std::min(turns, count.turns);
    elements = count.elements;
  }
  power.products = one_in(products);
  if (elements > 0 && checked.processors > 0) {
    power.processor_elements = one_in(elements * turns / checked.processors);
    if (checked.lanes > 0)
      power.lane_elements = one_in(elements * turns / checked.processors / checked.lanes);
  }
  power.probes = one_in(checked.probes);
  power.copied_words = one_in(checked.copied_words);
  power.link_words = one_in(checked.link_words);
  power.memory_share = checked.memory_share;
  power.memory_passes = checked.memory_passes;
  return power;
}

Power least_of(const std::vector<Power>& ranks) {
  if (ranks.empty()) return {};
  Power least = ranks.front();
  for (const Power& rank : ranks) {
    for (const auto number :
         {&Power::processor_elements, &Power::lane_elements, &Power::products, &Power::probes,
          &Power::copied_words, &Power::link_words, &Power::memory_share, &Power::memory_passes})
      least.*number = std::fmin(least.*number, rank.*number);
    for (const auto& [type, number] : rank.products_of) {
      double& of_type = least.products_of[type];
      of_type = std::min(of_type, number);
    }
    if (rank.sticky_types.size() < least.sticky_types.size()) {
      least.sticky_types = rank.sticky_types;
      least.unmoved_types = rank.unmoved_types;
    }
  }
  return least;
}

std::string line_of(const Power& power, const std::string& unit, std::size_t ranks) {
  std::vector<std::string> found, missed;
  const auto say = [&](double one_in, const char* what, const std::string& more = "") {
    if (one_in > 0)
      found.push_back(fmt::format("one {} in {}{}", what, two_digits(one_in), more));
    else
      missed.push_back(fmt::format("a wrong {}", what));
  };
  missed.push_back(fmt::format("what all {}s do alike in data of full entropy", unit));
  if (power.processor_elements > 0) {
    std::string text = fmt::format("{} {} wrong for 1 element in {}", unit == "SM" ? "an" : "a",
                                   unit, two_digits(power.processor_elements));
    if (power.lane_elements > 0)
      text += fmt::format(", a lane for 1 in {}", two_digits(power.lane_elements));
    const std::size_t types = power.sticky_types.size();
    found.push_back(text + (types > 1 ? fmt::format(", in each of {} types", types)
                                      : fmt::format(", in {}", name_of(power.sticky_types[0]))));
  }
  if (!power.unmoved_types.empty() && power.products > 0)
    missed.push_back(fmt::format("{} {} that is always wrong in {}", unit == "SM" ? "an" : "a",
                                 unit, fmt::join(names_of(power.unmoved_types), " ")));
  say(power.products, "product", by_type(power));
  say(power.probes, "probe");
  const bool whole = !(power.memory_share < 1);  // so of a CPU's too
  if (power.memory_share == 0)
    missed.emplace_back("wrong memory");
  else
    found.push_back(
        fmt::format("a stuck word in {}, {:.1f} passes",
                    std::isfinite(power.memory_share)
                        ? fmt::format("{:.1f} % of the memory", 100 * power.memory_share)
                        : std::string("the tested memory"),
                    std::floor(10 * power.memory_passes) / 10));
  if (!whole && power.memory_share > 0)
    missed.push_back(fmt::format("{:.1f} % of the memory", 100 * (1 - power.memory_share)));
  say(power.copied_words, "copied word");
  say(power.link_words, "word over links");
  if (found.empty()) return "";
  return fmt::format("power at 95 %{}: {}; not seen: {}",
                     ranks < 2      ? ""
                     : unit == "SM" ? " on each GPU"
                                    : " on each rank",
                     fmt::join(found, "; "), fmt::join(missed, ", "));
}

Json record_of(const Power& power) {
  Json fields{{"one_in.processor_elements", power.processor_elements},
              {"one_in.products", power.products},
              {"one_in.probes", power.probes},
              {"one_in.copied_words", power.copied_words},
              {"one_in.link_words", power.link_words}};
  if (power.lane_elements > 0) fields["one_in.lane_elements"] = power.lane_elements;
  for (const auto& [type, number] : power.products_of)
    fields[fmt::format("one_in.products.{}", name_of(type))] = number;
  return fields;
}

}  // namespace shakedown::node

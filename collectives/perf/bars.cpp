#include "collectives/perf/bars.hpp"

#include <fmt/format.h>

#include <vector>

#include "common/options.hpp"
#include "common/types.hpp"

namespace shakedown::collectives {

void declare_options(OptionSet& options, BarOptions& values) {
  options
      .add("--min-busbw", values.min_busbw_gbs,
           "lowest busbw allowed for each operation's largest size; 0: no bar")
      .at_least(0)
      .metavar("GB/S");
  options
      .add("--max-latency", values.max_latency_us,
           "longest time allowed for each operation's smallest size; 0: no bar")
      .at_least(0)
      .metavar("US");
  options
      .add("--reference", values.reference,
           "record of an earlier run with the same settings on the same kind of machine; rows that "
           "are slower than in it fail")
      .metavar("FILE");
  options
      .add("--tolerance", values.tolerance_percent,
           "percentage by which a row's median time may exceed that of the reference")
      .at_least(0)
      .only_with({"--reference"})
      .metavar("PERCENT");
}

std::string name_of_row(const Json& c) {
  return fmt::format("{} {} {} {} {}", c.at("operation").get<std::string>(),
                     c.at("dtype").get<std::string>(), c.at("reduction").get<std::string>(),
                     readable_bytes(c.at("bytes").get<double>()),
                     c.at("in_place").get<bool>() ? "in place" : "out of place");
}

std::optional<Finding> Bars::judge(const Json& c, double shown_time_us, bool smallest,
                                   bool largest) const {
  Finding finding{"operation", name_of_row(c), ExitCode::pass, ""};
  const double busbw = c.at("busbw_gbs").get<double>();
  const bool exchanges = c.at("world_size").get<int>() > 1;
  bool judged = false;
  const auto hold = [&](ExitCode code, const std::string& what) {
    judged = true;
    const auto weight = [](ExitCode c) {
      return c == ExitCode::fail ? 2 : c == ExitCode::pass ? 0 : 1;
    };
    if (weight(code) < weight(finding.code)) return;
    finding.code = code;
    finding.cause = what;
  };
  const auto hold_bar = [&](bool holds, const std::string& what) {
    if (exchanges) return hold(holds ? ExitCode::pass : ExitCode::fail, what);
    hold(ExitCode::inconclusive, what + ": one rank exchanges nothing");
  };
  if (options_.min_busbw_gbs > 0 && largest)
    hold_bar(busbw >= options_.min_busbw_gbs,
             fmt::format("busbw {:.4g} GB/s, --min-busbw {:g}", busbw, options_.min_busbw_gbs));
  if (options_.max_latency_us > 0 && smallest)
    hold_bar(shown_time_us <= options_.max_latency_us,
             fmt::format("{:.4g} us, --max-latency {:g}", shown_time_us, options_.max_latency_us));
  if (const Json& wrong = c.at("wrong_elements"); wrong.is_number() && wrong.get<double>() > 0)
    hold(ExitCode::fail,
         fmt::format("{:.0f} wrong elements: {}", wrong.get<double>(), c.value("first_wrong", "")));
  return judged ? std::optional(finding) : std::nullopt;
}

std::string Bars::bars_on_sizes() const {
  std::vector<std::string> bars;
  if (options_.min_busbw_gbs > 0)
    bars.push_back(fmt::format("--min-busbw {:g}", options_.min_busbw_gbs));
  if (options_.max_latency_us > 0)
    bars.push_back(fmt::format("--max-latency {:g}", options_.max_latency_us));
  return fmt::format("{}", fmt::join(bars, ", "));
}

}  // namespace shakedown::collectives

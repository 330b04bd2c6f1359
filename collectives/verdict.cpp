#include "collectives/verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "common/error.hpp"
#include "common/options.hpp"
#include "common/types.hpp"

namespace shakedown {
namespace {

/// What must be equal for two figures to be compared.
constexpr const char* kIdentity[] = {"backend",    "transport", "launch_mode", "registration",
                                     "world_size", "operation", "dtype",       "reduction",
                                     "root",       "bytes",     "in_place"};

bool same_configuration(const Json& a, const Json& b) {
  return std::all_of(std::begin(kIdentity), std::end(kIdentity), [&](const char* key) {
    return a.contains(key) && b.contains(key) && a.at(key) == b.at(key);
  });
}

std::string name_of_row(const Json& c) {
  return fmt::format("{} {} {} {} {}", c.at("operation").get<std::string>(),
                     c.at("dtype").get<std::string>(), c.at("reduction").get<std::string>(),
                     readable_bytes(c.at("bytes").get<double>()),
                     c.at("in_place").get<bool>() ? "in place" : "out of place");
}

}  // namespace

void declare_options(OptionSet& options, BarOptions& values) {
  options
      .add("--min-busbw", values.min_busbw_gbs,
           "GB/s that each operation's largest size must reach; 0: no bar")
      .at_least(0);
  options
      .add("--max-latency", values.max_latency_us,
           "us that each operation's smallest size may take; 0: no bar")
      .at_least(0);
  options.add("--reference", values.reference, "record of an earlier run, whose rows are the bars")
      .existing_file();
  options
      .add("--tolerance", values.tolerance_percent,
           "percent that --reference's busbw may be missed by")
      .at_least(0);
}

Json record_of(const Verdict& verdict) {
  return {{"scope", verdict.scope},
          {"name", verdict.name},
          {"verdict", verdict.verdict},
          {"cause", verdict.cause}};
}

Bars::Bars(const BarOptions& options) : options_(options) {
  if (options.reference.empty()) return;
  std::ifstream in(options.reference);
  int number = 0;
  int cut = 0;  // a line that a full disk cut, where a run follows
  const auto refuse_cut = [&] {
    if (cut > 0)
      throw UsageError(fmt::format("--reference {}: line {} is not JSON", options.reference, cut));
  };
  for (std::string line; std::getline(in, line);) {
    ++number;
    Json json = Json::parse(line, nullptr, false);
    if (json.is_discarded()) {
      refuse_cut();
      cut = number;
      continue;
    }
    const Json kind = json.is_object() ? json.value("kind", Json()) : Json();
    if (kind != "run") refuse_cut();
    cut = 0;
    if (!kind.is_string())
      throw UsageError(
          fmt::format("--reference {}: line {} is not a record", options.reference, number));
    const Json time = json.value("time_us_p50", Json());
    const Json wrong = json.value("wrong_elements", Json());
    if (kind == "collective" && time.is_number() && wrong.is_number() && wrong.get<double>() == 0)
      reference_.push_back(std::move(json));
  }
  refuse_cut();
  if (reference_.empty())
    throw UsageError(fmt::format("--reference {}: holds no collective records that were checked",
                                 options.reference));
}

// Of a file that was appended to, the last run.
const Json* Bars::reference_of(const Json& collective) const {
  const auto found = std::find_if(reference_.rbegin(), reference_.rend(),
                                  [&](const Json& r) { return same_configuration(r, collective); });
  return found == reference_.rend() ? nullptr : &*found;
}

std::optional<Verdict> Bars::judge(const Json& c, double shown_time_us, bool smallest,
                                   bool largest) const {
  Verdict verdict{name_of_row(c), "PASS", ""};
  const double busbw = c.at("busbw_gbs").get<double>();
  bool judged = false;
  const auto hold = [&](bool holds, const std::string& what) {
    judged = true;
    if (!holds) verdict.verdict = "FAIL";
    if (!holds || verdict.verdict == "PASS") verdict.cause = what;
  };
  if (options_.min_busbw_gbs > 0 && largest)
    hold(busbw >= options_.min_busbw_gbs,
         fmt::format("busbw {:.4g} GB/s, --min-busbw {:g}", busbw, options_.min_busbw_gbs));
  if (options_.max_latency_us > 0 && smallest)
    hold(shown_time_us <= options_.max_latency_us,
         fmt::format("{:.4g} us, --max-latency {:g}", shown_time_us, options_.max_latency_us));
  if (!options_.reference.empty()) {
    if (const Json* reference = reference_of(c)) {
      const double time = c.at("time_us_p50").get<double>();
      const double wanted = reference->at("time_us_p50").get<double>();
      hold(wanted >= time * (1 - options_.tolerance_percent / 100),
           fmt::format("{:.4g} us, the reference {:.4g} us, tolerance {:g} %", time, wanted,
                       options_.tolerance_percent));
    }
  }
  if (const Json& wrong = c.at("wrong_elements"); wrong.is_number() && wrong.get<double>() > 0)
    hold(false,
         fmt::format("{:.0f} wrong elements: {}", wrong.get<double>(), c.value("first_wrong", "")));
  return judged ? std::optional(verdict) : std::nullopt;
}

std::string Bars::bars_on_sizes() const {
  std::vector<std::string> bars;
  if (options_.min_busbw_gbs > 0)
    bars.push_back(fmt::format("--min-busbw {:g}", options_.min_busbw_gbs));
  if (options_.max_latency_us > 0)
    bars.push_back(fmt::format("--max-latency {:g}", options_.max_latency_us));
  return fmt::format("{}", fmt::join(bars, ", "));
}

}  // namespace shakedown

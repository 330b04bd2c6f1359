// What a program measured of one thing, as a `metric` line of its record has it: all that the judge
// is given. Programs fill it in, bin/judge reads it back; neither computes a ratio.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/nvml.hpp"
#include "common/record.hpp"

namespace shakedown::judge {

/// Who was measured. Lists have an element per rank, in the order of `ranks`; UUIDs and serials
/// are empty where there are none.
struct Subject {
  Scope scope = Scope::gpu;  // gpu, rank (of a CPU), link (a pair), rail, node, group
  std::string name;  // a GPU's UUID; a rank; "2->5", "2<->5"; a host; what a group is called
  std::vector<int> ranks;
  std::vector<std::string> hosts, uuids, serials;

  /// The same in every run: UUIDs where they are known, else hosts and ranks.
  std::string key() const;
  /// "GPU 1 (rank 1 on n017)", for people.
  std::string text() const;
};

/// Of copies between host and GPU, which are encrypted then: comparable with such alone, and with
/// no wires.
inline constexpr const char* kConfidential = "confidential_computing";

enum class Check { verified, unchecked, wrong };                         // the data
enum class Taken { measured, timed_out, not_supported, out_of_memory };  // the measurement

/// What else was seen meanwhile; kUnknown where it was not read. They explain, and judge nothing.
struct Circumstances {
  double clock_mhz = kUnknown;  // of the SMs' own counters, never NVML's
  double temperature_c = kUnknown;
  double power_w = kUnknown, power_limit_w = kUnknown;
  std::optional<std::uint64_t> reasons;  // throttle reasons
};

struct Observation {
  std::string metric;  // "product/fp16/flop_per_cycle_sm": limits.json lists them
  std::string unit;    // us, ms and s: less is better; else more
  Subject of;
  std::string backend;  // "gpu", "cpu"
  std::string board;    // as the driver names it, or the processor
  std::string
      pci_device_id;  // "10de:2335", with the subsystem "10de:2335:10de:18be"; empty: unknown
  std::string compute_capability;  // "9.0"; empty: none
  std::string path_class;          // "nvswitch", "host:near": links are compared within theirs
  std::map<std::string, std::string> conditions;  // equal, or not comparable
  std::map<std::string, std::string> versions;    // "cublas": of the library that did it
  double peak = kUnknown;  // in `unit`, by what the device reports of itself: clock x width, links
  int look = 1;            // 2, 3: measured again, as the first seemed slow
  std::vector<double> samples;
  Circumstances seen;
  Check check = Check::verified;
  Taken taken = Taken::measured;
  std::string disturbed_by;  // "other processes: pid 99", "3 ranks on 2 cores": no measure of it

  std::string stage;  // of acceptance; empty: none
  std::string run;    // its run_id, which begins with when it started; empty: this one
  /// Of a step, whose products follow the clock that power and heat allow.
  bool follows_clock() const { return metric.starts_with("train/"); }
  bool less_is_better() const { return unit == "us" || unit == "ms" || unit == "s"; }
};

/// Each name once, in their order.
std::vector<std::string> distinct(const std::vector<std::string>& names);

/// The fields of a `metric` line; unknown ones are absent.
Json record_of(const Observation& observation);
/// As `metric` lines in tables: a row for each, a table for those with the same conditions.
void write_table(const std::vector<Observation>& observations, Record& record);
/// Of such a line. Throws UsageError that names what is missing or of the wrong type.
Observation observation_of(const Json& line);

}  // namespace shakedown::judge

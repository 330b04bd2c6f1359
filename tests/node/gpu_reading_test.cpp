// Readings of GPUs by a driver that is made for the test: the fake library, whose GPUs are a file.
#include "launch/node/health/facts/gpu_reading.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "common/usage_error.hpp"
#include "launch/node/health/facts/gpu_reader.hpp"
#include "launch/node/health/facts/json_fields.hpp"
#include "launch/node/monitor/monitor.hpp"
#include "tests/catch.hpp"
#include "tests/node/made_up.hpp"
#include "tests/support/transcript.hpp"

namespace shakedown::node {
namespace {

std::string fake_library() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "fake_nvml.so";
}

/// Gives the fake library these GPUs for as long as it lives.
class Fake {
 public:
  explicit Fake(const Json& host)
      : variable_("SHAKEDOWN_FAKE_NVML", folder_.write("gpus.json", host.dump())) {}

 private:
  test::TempFolder folder_;
  test::Variable variable_;
};

HostGpus read(const Json& host, double deadline_s = 5) {
  const Fake fake(host);
  return GpuReader(deadline_s, fake_library()).read(true);
}

/// The first two GPUs of the fixture; the second is to be made sick.
Json two_gpus(const Json& fake) {
  Json host = fixture("h200.json");
  host["gpus"].erase(host["gpus"].begin() + 2, host["gpus"].end());
  host["gpus"][1]["fake"] = fake;
  return host;
}

/// All keys of `full` but those of `reading`.
std::set<std::string> missing_in(const Json& reading, const Json& full) {
  std::set<std::string> keys;
  for (const auto& [key, value] : full.items())
    if (!reading.contains(key)) keys.insert(key);
  return keys;
}

constexpr double kShort_s = 0.1;  // a call that does return takes microseconds of it

GpuReading busy() {
  GpuReading reading;
  reading.index = 7;
  reading.utilisation_percent = reading.memory_utilisation_percent = 100;
  reading.memory_used_bytes = 150754820096;
  reading.temperature_c = reading.memory_temperature_c = 105;
  reading.power_w = 1000;
  reading.sm_clock_mhz = reading.memory_clock_mhz = 1980;
  reading.pcie_sent_mbs = reading.pcie_received_mbs = 55123.4;
  reading.throttle_reasons = 0x1fc;  // all that have a name
  return reading;
}

std::string line(const GpuReading& reading, const Growth& growth = {}) {
  return monitor_line("a-long-name-of-host17.cluster", reading, growth);
}

}  // namespace

TEST_CASE("every field of a reading comes from the driver and back from JSON", "[node][nvml]") {
  Json expected = fixture("h200.json");
  // The last is as those of other nodes are: on Grace, in a rack, divided.
  expected["gpus"][7].update({{"memory_numa_node", 9},
                              {"mig_enabled", true},
                              {"mig_devices", {"1g.18gb", "1g.18gb", "3g.71gb"}},
                              {"fabric_cluster", "00a1b2c3d4e5f60718293a4b5c6d7e8f"},
                              {"fabric_clique", 3},
                              {"c2c_count", 10},
                              {"c2c_active", 9},
                              {"c2c_errors", 5}});
  expected["gpus"][7] = Json(read_as<GpuReading>(expected["gpus"][7]));  // keys in their order
  const auto start = std::chrono::steady_clock::now();
  const HostGpus host = read(expected, 60);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  CHECK(took.count() < 30);  // calls that return are not waited for until their deadline
  expected.erase("source");
  CHECK(Json(host) == expected);
  CHECK(Json(read_as<HostGpus>(expected)) == expected);
  REQUIRE(host.gpus.size() == 8);
  // The fixture has every key but those of what went wrong.
  GpuReading full = host.gpus[7];
  full.stalled = {"nvmlDeviceGetX"};
  full.failed = {"nvmlDeviceGetY: GPU is lost"};
  full.processes = {{17, 4096}, {18, std::nullopt}};
  CHECK(Json(read_as<GpuReading>(Json(full))) == Json(full));
  CHECK(missing_in(expected["gpus"][7], Json(full)) == std::set<std::string>{"failed", "stalled"});
}

TEST_CASE("a reading refuses unknown keys and values of another type", "[node][nvml]") {
  CHECK_THROWS_WITH(read_as<GpuReading>({{"index", 0}, {"power", 70}}), ContainsSubstring("power"));
  CHECK_THROWS_AS(read_as<GpuReading>({{"persistence", "on"}}), UsageError);
  CHECK(Json(read_as<GpuReading>({{"index", 3}})) == Json{{"index", 3}});  // and nothing is zero
}

TEST_CASE("a GPU is read again once its late call has returned", "[node][nvml]") {
  const Fake fake(two_gpus({{"stall_s", {{"nvmlDeviceGetPersistenceMode", 1}}}}));
  GpuReader reader(kShort_s, fake_library());
  CHECK(reader.read().gpus.at(1).sm_clock_mhz == 345);
  CHECK_FALSE(reader.read().gpus.at(1).sm_clock_mhz);  // the call has not returned yet
  const auto start = std::chrono::steady_clock::now();
  while (!reader.read().gpus.at(1).sm_clock_mhz)
    REQUIRE(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
}

TEST_CASE("what throws while a GPU is read is no hang", "[node][nvml]") {
  CHECK_THROWS_AS(read(two_gpus({{"throws", "nvmlDeviceGetPowerUsage"}})), std::runtime_error);
}

TEST_CASE("what is read of a GPU", "[node][nvml]") {
  test::check_transcript("tests/node/gpu_readings.txt", [](const std::string& given) {
    std::istringstream in(given);
    Json errors, changes = Json::object(), host = two_gpus(Json::object());
    in >> errors;
    if (in >> std::ws && in.peek() == '{') in >> changes;
    change(host["gpus"][1], changes);
    const Json healthy = fixture("h200.json")["gpus"][1];
    host["gpus"][1]["fake"]["error"] = errors;
    const HostGpus found = read(host);
    CHECK(found.gpus.at(0).failed.empty());
    CHECK(found.gpus.at(0).has_ecc == true);
    const Json reading = found.gpus.at(1);
    const std::set<std::string> missing = missing_in(reading, healthy);
    std::string lines =
        missing.empty() ? "" : fmt::format("without {}\n", fmt::join(missing, ", "));
    for (const auto& [key, value] : reading.items())
      if (value != healthy.value(key, Json()))
        lines += fmt::format("{}: {}\n", key, key == "nvlinks" ? value[5].dump() : value.dump());
    return lines.empty() ? "nothing" : lines;
  });
}

TEST_CASE("whether a GPU has ECC, and its inforom where it is requested", "[node][nvml]") {
  const auto has_ecc = [](int status) {
    return read(two_gpus({{"error", {{"nvmlDeviceGetEccMode", status}}}})).gpus.at(1).has_ecc;
  };
  CHECK(has_ecc(nvml::kNotSupported) == false);
  CHECK_FALSE(has_ecc(nvml::kNotRead));  // an error says nothing of it
  const Fake fake(fixture("h200.json"));
  CHECK_FALSE(GpuReader(5, fake_library()).read().gpus.at(1).inforom_valid);
}

// The lines and records of bin/gpu_monitor.

TEST_CASE("a monitor's line fits, and what is unknown is not zero in it", "[node][monitor]") {
  const std::string full = line(busy(), {450.1, 450.1, 12, 0});
  CHECK(full.size() <= 111);             // and the newline
  CHECK(full.find("-of-host17 ") == 0);  // the name's end
  CHECK_THAT(full, ContainsSubstring(" 450.1 ") && ContainsSubstring(" 12/0 ") &&
                       ContainsSubstring(" 55.12 ") && EndsWith("sw_power_cap +6\n"));
  const std::string unknown = line({});
  CHECK(unknown.find_first_of("123456789", unknown.find(' ')) == std::string::npos);
  CHECK(std::count(unknown.begin() + 10, unknown.end(), '-') == 14);  // all but host and index
  GpuReading idle;
  idle.throttle_reasons = 1;
  CHECK_THAT(line(idle), EndsWith(" none\n"));
  idle.stalled = {"nvmlDeviceGetPowerUsage"};
  CHECK_THAT(line(idle), EndsWith(" stalled\n"));
  const std::string heading = monitor_heading("05:00:00Z");
  CHECK(heading.starts_with("05:00:00Z "));
  CHECK_THAT(heading, ContainsSubstring("\nhost ") && EndsWith("  throttle reasons\n"));
}

TEST_CASE("counters grow between readings; what became less is unknown", "[node][monitor]") {
  GpuReading before;
  before.nvlink_sent_bytes = 1'000'000'000;
  before.nvlink_received_bytes = 5;
  before.volatile_.corrected = 3;
  GpuReading now = before;
  now.nvlink_sent_bytes = 5'000'000'000;
  now.nvlink_received_bytes = 4;  // the driver was loaded anew
  now.volatile_.corrected = 10;
  now.volatile_.uncorrected = 1;
  const Growth grown = growth(before, now, 2);
  CHECK(grown.nvlink_sent_gbs == 2);
  CHECK_FALSE(grown.nvlink_received_gbs);
  CHECK(grown.ecc_corrected == 7);
  CHECK_FALSE(grown.ecc_uncorrected);
}

}  // namespace shakedown::node

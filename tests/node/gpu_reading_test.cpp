// Readings of GPUs by a driver that is made for the test: the fake library, whose GPUs are a file.
#include "launch/node/health/facts/gpu_reading.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "common/options.hpp"
#include "common/usage_error.hpp"
#include "launch/node/health/facts/gpu_reader.hpp"
#include "launch/node/monitor/monitor.hpp"
#include "launch/node/monitor/samples.hpp"
#include "tests/catch.hpp"
#include "tests/support/files.hpp"

namespace shakedown::node {
namespace {

std::string fake_library() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "fake_nvml.so";
}

Json fixture() { return Json::parse(std::ifstream("tests/node/fixtures/h200.json")); }

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
  return read_gpus(deadline_s, fake_library(), INFINITY, true);
}

/// By a library without these functions.
HostGpus read_without(const Json& host, const std::set<std::string>& lacking) {
  const Fake fake(host);
  std::string problem;
  const nvml::FindFunction find = nvml::open_library(fake_library(), problem);
  return GpuReader(5,
                   [&](const char* name) -> void* {
                     return lacking.count(name) > 0 ? nullptr : find(name);
                   })
      .read(true);
}

/// The first two GPUs of the fixture; the second is to be made sick.
Json two_gpus(const Json& fake) {
  Json host = fixture();
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
  Json expected = fixture();
  const auto start = std::chrono::steady_clock::now();
  const HostGpus host = read(expected, 60);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  CHECK(took.count() < 30);  // calls that return are not waited for until their deadline
  expected.erase("source");
  CHECK(to_json(host) == expected);
  CHECK(to_json(host_gpus_of(expected)) == expected);
  REQUIRE(host.gpus.size() == 8);
  // The fixture has every key but those of what went wrong.
  GpuReading full = host.gpus[0];
  full.stalled = {"nvmlDeviceGetX"};
  full.failed = {"nvmlDeviceGetY: GPU is lost"};
  full.processes = {{17, 4096}, {18, std::nullopt}};
  CHECK(to_json(gpu_reading_of(to_json(full))) == to_json(full));
  CHECK(missing_in(expected["gpus"][0], to_json(full)) ==
        std::set<std::string>{"failed", "stalled"});
}

TEST_CASE("a reading refuses unknown keys and values of another type", "[node][nvml]") {
  CHECK_THROWS_WITH(gpu_reading_of({{"index", 0}, {"power", 70}}), ContainsSubstring("power"));
  CHECK_THROWS_AS(gpu_reading_of({{"persistence", "on"}}), UsageError);
  CHECK(to_json(gpu_reading_of({{"index", 3}})) == Json{{"index", 3}});  // and nothing is zero
}

TEST_CASE("a call that does not return is named, and the other GPUs are read", "[node][nvml]") {
  const Json host = two_gpus({{"stall_s", {{"nvmlDeviceGetPowerUsage", 3600}}}});
  const Fake fake(host);
  GpuReader reader(kShort_s, fake_library());
  const HostGpus read = reader.read(true);
  REQUIRE(read.gpus.size() == 2);
  Json well = host["gpus"][0];
  CHECK(to_json(read.gpus[0]) == well);
  CHECK(read.gpus[1].stalled == Texts{"nvmlDeviceGetPowerUsage"});
  CHECK(read.gpus[1].uuid ==
        host["gpus"][1]["uuid"].get<std::string>());  // what came before it is known
  CHECK(read.gpus[1].sm_clock_mhz == 345);
  CHECK_FALSE(read.gpus[1].power_w);
  CHECK_FALSE(read.gpus[1].volatile_.uncorrected);

  const HostGpus again =
      reader.read(true);  // it is not called once more, and nothing old is repeated
  CHECK(to_json(again.gpus[0]) == well);
  CHECK(again.gpus[1].stalled == Texts{"nvmlDeviceGetPowerUsage"});
  CHECK(again.gpus[1].serial == host["gpus"][1]["serial"].get<std::string>());
  CHECK_FALSE(again.gpus[1].sm_clock_mhz);
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

TEST_CASE("a driver that does not start is why there is nothing to read", "[node][nvml]") {
  Json host = fixture();
  host["fake"] = {{"stall_s", {{"nvmlInit_v2", 3600}}}};
  CHECK_THAT(read(host, kShort_s).problem.value(), ContainsSubstring("nvmlInit_v2 did not return"));
  host["fake"] = {{"error", {{"nvmlInit_v2", 15}}}};
  CHECK(read(host).problem.value() == "nvmlInit_v2: GPU is lost");
  host["fake"] = {{"stall_s", {{"nvmlSystemGetDriverVersion", 3600}}}};
  const HostGpus without_version = read(host, kShort_s);
  CHECK(without_version.stalled == Texts{"nvmlSystemGetDriverVersion"});
  CHECK_FALSE(without_version.driver_version);
  CHECK(without_version.gpus.size() == 8);
  host["gpus"] = Json::array();
  host.erase("fake");
  CHECK(read(host).problem.value() == "the driver has no GPU");
  CHECK_THAT(read_gpus(1, "libnothing-of-this-name.so").problem.value(),
             ContainsSubstring("libnothing-of-this-name.so"));
  CHECK_THAT(read_gpus(1, "libm.so.6").problem.value(), ContainsSubstring("has no nvmlInit_v2"));
}

TEST_CASE("a function that a driver lacks leaves its field unknown, and no other", "[node][nvml]") {
  const Json host = two_gpus(Json::object());
  const Json full = host["gpus"][0];
  const auto lost = [&](const std::set<std::string>& functions) {
    const HostGpus read = read_without(host, functions);
    REQUIRE(read.gpus.size() == 2);
    CHECK(read.gpus[0].failed.empty());
    return missing_in(to_json(read.gpus[0]), full);
  };
  using Keys = std::set<std::string>;
  CHECK(lost({}).empty());
  CHECK(lost({"nvmlDeviceGetPowerUsage"}) == Keys{"power_w"});
  CHECK(lost({"nvmlDeviceGetTemperatureV"}).empty());  // the older one answers
  CHECK(lost({"nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"}) == Keys{"temperature_c"});
  CHECK(lost({"nvmlDeviceGetMemoryInfo_v2"}).empty());
  CHECK(lost({"nvmlDeviceGetPcieReplayCounter"}).empty());  // a field value has it too
  CHECK(lost({"nvmlDeviceGetGpuFabricInfoV"}) ==
        Keys{"fabric_state", "fabric_status", "fabric_health"});
  CHECK(lost({"nvmlDeviceValidateInforom"}) == Keys{"inforom_valid"});
  CHECK(lost({"nvmlDeviceGetFieldValues"}) == Keys{"memory_temperature_c", "recovery_action",
                                                   "nvlink_sent_bytes", "nvlink_received_bytes"});
  const HostGpus read = read_without(host, {"nvmlDeviceGetFieldValues"});
  CHECK(read.gpus[0].nvlink_count == 18);  // counted by their states
  CHECK(read.gpus[0].nvlinks.at(17).active == true);
  CHECK_FALSE(read.gpus[0].nvlinks[17].crc_errors);
}

TEST_CASE("errors are reported in NVML's words, but not what a GPU does not have", "[node][nvml]") {
  Json host = two_gpus({{"error", {{"nvmlDeviceGetSerial", 15}, {"nvmlDeviceGetMigMode", 3}}}});
  CHECK(read(host).gpus.at(0).has_ecc == true);
  GpuReading sick = read(host).gpus.at(1);
  CHECK(sick.failed == Texts{"nvmlDeviceGetSerial: GPU is lost"});
  CHECK(sick.serial.empty());
  CHECK_FALSE(sick.mig_enabled);
  CHECK(sick.power_w.has_value());

  sick = read(two_gpus({{"error", {{"nvmlDeviceGetEccMode", 3}}}})).gpus.at(1);
  CHECK(sick.has_ecc == false);
  sick = read(two_gpus({{"error", {{"nvmlDeviceGetEccMode", 999}}}})).gpus.at(1);
  CHECK_FALSE(sick.has_ecc);  // an error says nothing of it

  host = two_gpus({{"error", {{"nvmlDeviceGetTemperatureV", 999}}}});
  sick = read(host).gpus.at(1);
  CHECK(sick.temperature_c == 30);
  CHECK(sick.failed.empty());  // the older function has answered

  host = two_gpus({{"error", {{"nvmlDeviceGetHandleByIndex_v2", 15}}}});
  const HostGpus lost = read(host);
  REQUIRE(lost.gpus.size() == 2);  // a GPU off the bus is still one of the host's
  CHECK(lost.gpus[1].failed == Texts{"nvmlDeviceGetHandleByIndex_v2: GPU is lost"});
  CHECK(lost.gpus[1].uuid.empty());
}

TEST_CASE("nonsense is data of a reading: it is not for the reader to judge", "[node][nvml]") {
  Json host = two_gpus(Json::object());
  Json& gpu = host["gpus"][1];
  gpu["power_w"] = 0;
  gpu["temperature_c"] = 4294967295.0;
  gpu["recovery_action"] = "drain_and_reset";
  gpu["compute_mode"] = "prohibited";
  gpu["fabric_state"] = "in_progress";
  gpu["processes"] = {{{"pid", 17}}, {{"pid", 18}, {"memory_bytes", 1048576}}};
  gpu["nvlinks"][5] = {{"link", 5}, {"active", false}, {"crc_errors", 7}};
  const GpuReading read_back = read(host).gpus.at(1);
  CHECK(read_back.power_w == 0);
  CHECK(read_back.temperature_c == 4294967295.0);
  CHECK(read_back.recovery_action == "drain_and_reset");
  CHECK(read_back.compute_mode == "prohibited");
  CHECK_FALSE(read_back.fabric_status);  // of a state that is not completed
  REQUIRE(read_back.processes.has_value());
  REQUIRE(read_back.processes->size() == 2);
  CHECK_FALSE(read_back.processes->at(0).memory_bytes);
  CHECK(read_back.processes->at(1).memory_bytes == 1048576);
  CHECK(read_back.nvlinks.at(5).active == false);
  CHECK_FALSE(read_back.nvlinks[5].speed_mbs);
}

TEST_CASE("DCGM#2: a corrupt inforom is read, where it is requested", "[node][nvml]") {
  Json host = two_gpus(Json::object());
  host["gpus"][1]["inforom_valid"] = false;
  CHECK(read(host).gpus.at(1).inforom_valid == false);
  CHECK(read(host).gpus.at(1).failed.empty());
  host["gpus"][1]["fake"] = {{"error", {{"nvmlDeviceValidateInforom", 14}}}};
  CHECK(read(host).gpus.at(1).inforom_valid == false);
  const Fake fake(host);
  CHECK_FALSE(read_gpus(5, fake_library()).gpus.at(1).inforom_valid);
}

TEST_CASE("an injected stall is like a real one", "[node][nvml]") {
  const Fake fake(fixture());
  const auto reader = open_reader(kShort_s, true, fake_library());
  for (const GpuReading& gpu : reader->read().gpus)
    CHECK(gpu.stalled == Texts{"nvmlDeviceGetPowerUsage"});
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
}

TEST_CASE("the heading of a reading has its time", "[node][monitor]") {
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

TEST_CASE("a limit of no readings or no time is refused", "[node][monitor]") {
  for (const char* option : {"--count", "--seconds"}) {
    MonitorOptions options;
    OptionSet set("gpu_monitor", "");
    declare_options(set, options);
    const char* const words[] = {"gpu_monitor", option, "0"};
    CHECK_FALSE(set.parse(1, words));
    const auto ending = set.parse(3, words);
    REQUIRE(ending);
    CHECK(ending->code == ExitCode::usage);
    CHECK_THAT(ending->text, ContainsSubstring(std::string(option) + " 0: must be at least"));
  }
}

TEST_CASE("a host's sample arrives as it was sent", "[node][monitor]") {
  HostSample sent{"n1", "2026-11-23T05:00:00Z", 1.5, 0.25, 12.5, {}};
  sent.read.problem = "no driver";
  sent.read.gpus = {busy()};
  const HostSample received = host_sample_of(text_of(sent));
  CHECK(text_of(received) == text_of(sent));
  CHECK(received.cpu_s == 0.25);
  CHECK(received.read.gpus.at(0).power_w == 1000);
}

}  // namespace shakedown::node

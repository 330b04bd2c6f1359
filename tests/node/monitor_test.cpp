// The lines and records of bin/gpu_monitor.
#include <algorithm>

#include "common/options.hpp"
#include "launch/node/monitor/monitor.hpp"
#include "launch/node/monitor/samples.hpp"
#include "tests/catch.hpp"

namespace shakedown::node {
namespace {

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

TEST_CASE("a monitor's line fits, and shows what is unknown as neither zero nor none",
          "[node][monitor]") {
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

TEST_CASE("counters grow between readings; what became less or is unknown has no growth",
          "[node][monitor]") {
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

TEST_CASE("a limit of no readings or no time is refused; without a limit it is a signal",
          "[node][monitor]") {
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

#include "common/record.hpp"

#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

#include "common/half.hpp"
#include "common/identity.hpp"
#include "common/nvml.hpp"
#include "common/progress.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown {
namespace {

std::string temporary_file() {
  std::string name = "/tmp/shakedown_record_XXXXXX";
  const int file = mkstemp(name.data());
  REQUIRE(file >= 0);
  close(file);
  return name;
}

}  // namespace

TEST_CASE("records are appended, a line each, with non-finite numbers as null", "[record]") {
  const std::string path = temporary_file();
  for (int run = 0; run < 2; ++run) {
    Record record(path);
    record.write("step",
                 {{"images_per_s", 2.5}, {"power_w", {1.0, kUnknown}}, {"strategy", "ddp"}});
    record.write("end", {{"exit_code", run}});
  }
  std::ifstream in(path);
  std::vector<Json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  std::remove(path.c_str());
  REQUIRE(lines.size() == 4);
  CHECK(lines[0].begin().key() == "kind");
  CHECK(lines[0]["kind"] == "step");
  CHECK(lines[0]["images_per_s"] == 2.5);
  CHECK(lines[0]["power_w"][1].is_null());
  CHECK(lines[3]["exit_code"] == 1);
}

TEST_CASE("a record whose last line was cut goes on with a new line", "[record]") {
  const std::string path = temporary_file();
  std::ofstream(path) << "{\"kind\":\"step\"}\n{\"kind\":\"ste";
  for (int run = 0; run < 2; ++run) {
    Record record(path);
    record.write("run", {{"number", run}});
    record.write("end", {{"exit_code", 0}});
  }
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::remove(path.c_str());
  REQUIRE(lines.size() == 6);
  CHECK(lines[1] == "{\"kind\":\"ste");
  CHECK(Json::parse(lines[2])["kind"] == "run");
  CHECK(Json::parse(lines[4])["number"] == 1);
}

TEST_CASE("a record that cannot be opened or written is named", "[record]") {
  CHECK_THROWS_WITH(Record("/no/such/folder/x.jsonl"),
                    ContainsSubstring("/no/such/folder/x.jsonl"));
  CHECK_FALSE(Record("").active());
  Record("").write("step", {});
  Record full("/dev/full");
  try {
    full.write("step", {{"a", 1}});
    FAIL("a full disk went unnoticed");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::inconclusive);
    CHECK_THAT(error.what(), ContainsSubstring("/dev/full"));
  }
}

TEST_CASE("durations and bytes read as people write them", "[record]") {
  CHECK(readable_duration(9) == "0:09");
  CHECK(readable_duration(245) == "4:05");
  CHECK(readable_duration(3723) == "1:02:03");
  CHECK(readable_bytes(512) == "512 B");
  CHECK(readable_bytes(1536) == "1.5 KiB");
  CHECK(readable_bytes(25.0 * 1024 * 1024) == "25 MiB");
}

TEST_CASE("throttle reasons have nvidia-smi's names", "[nvml]") {
  using Names = std::vector<std::string>;
  CHECK(throttle_reason_names(0x1) == Names{});  // idle
  CHECK(throttle_reason_names(0x4 | 0x20) == Names{"sw_power_cap", "sw_thermal_slowdown"});
  CHECK(throttle_reason_names(0x80) == Names{"hw_power_brake"});
}

TEST_CASE("power is the energy between the counter's own updates over their time", "[nvml]") {
  CHECK(mean_power_w({{0, 50}, {0.1, 50}, {0.2, 120}, {0.3, 190}, {0.4, 190}}) == Approx(700));
  CHECK(mean_power_w({{0, 50}, {0.1, 60}, {0.2, 60}, {0.3, 60}, {0.4, 180}, {0.5, 180}}) ==
        Approx(400));
  CHECK(std::isnan(mean_power_w({})));
  CHECK(std::isnan(mean_power_w({{0, 50}})));
  CHECK(std::isnan(mean_power_w({{0, 50}, {0.1, 120}, {0.2, 120}})));  // one update has no length
  CHECK(std::isnan(mean_power_w({{0, kUnknown}, {0.1, kUnknown}, {0.2, kUnknown}})));
}

TEST_CASE("a GPU is sampled where there is one, and unknown where not", "[nvml]") {
  std::string problem;
  const auto gpus = gpu::visible_devices(problem);
  GpuSampler sampler(Nvml::open(), gpus.empty() ? "" : gpus.front());
  if (!gpus.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const GpuWindow window = sampler.finish();
  if (gpus.empty()) {
    CHECK(window.samples == 0);
    CHECK(std::isnan(window.power_w));
    CHECK(std::isnan(window.energy_j));
    CHECK(std::isnan(window.nvlink.sent));
  } else {
    CHECK(window.samples > 0);
    CHECK(window.power_w > 10);
    CHECK(window.energy_j > 5);
    const bool no_nvlink = std::isnan(window.nvlink.sent) && std::isnan(window.nvlink.received);
    CHECK((no_nvlink || (window.nvlink.sent >= 0 && window.nvlink.received >= 0)));
    CHECK(window.sm_clock_mhz > 100);
    CHECK(window.memory_used_bytes > 0);
  }
}

TEST_CASE("16-bit floats round to nearest even and keep every value", "[half]") {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = float16_to_float(half);
    if (!std::isnan(value)) REQUIRE(float_to_float16(value) == half);
    const float wide = bfloat16_to_float(half);
    if (!std::isnan(wide)) REQUIRE(float_to_bfloat16(wide) == half);
  }
  CHECK(std::isnan(float16_to_float(float_to_float16(NAN))));
  CHECK(std::isnan(bfloat16_to_float(float_to_bfloat16(NAN))));
  CHECK(float_to_float16(65519.0F) == 0x7BFF);  // below the midpoint to infinity
  CHECK(float_to_float16(65520.0F) == 0x7C00);
  CHECK(float_to_float16(1.0F + 0x1p-11F) == 0x3C00);      // tie to even
  CHECK(float_to_float16(1.0F + 3 * 0x1p-11F) == 0x3C02);  // tie to even
  CHECK(float_to_float16(0x1p-25F) == 0);                  // tie to even, subnormal
  CHECK(float_to_float16(0x1.8p-25F) == 1);
  CHECK(float_to_bfloat16(1.0F + 0x1p-8F) == 0x3F80);
  CHECK(float_to_bfloat16(1.0F + 3 * 0x1p-8F) == 0x3F82);
}

}  // namespace shakedown

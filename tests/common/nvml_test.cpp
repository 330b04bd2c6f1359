// What is read of a GPU: by a library made for the test, which may lack a function or refuse a
// call, and by the machine's own.
#include "common/nvml.hpp"

#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <thread>

#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown {
namespace {

constexpr int kNotSupported = 3;  // NVML_ERROR_NOT_SUPPORTED
constexpr int kLost = 15;         // NVML_ERROR_GPU_IS_LOST

int init() { return 0; }
int found(const char*, void** device) {
  static int gpu;
  *device = &gpu;
  return 0;
}
int clock_of(void*, unsigned, unsigned* mhz) { return *mhz = 1500, 0; }
int temperature_of(void*, unsigned, unsigned* celsius) { return *celsius = 50, 0; }
struct Temperature {
  unsigned version;
  unsigned sensor;
  int celsius;
};
int temperature_v(void*, Temperature* t) {
  if (t->version != (sizeof(Temperature) | 1U << 24) || t->sensor != 0) return 25;
  return t->celsius = 51, 0;
}
int reasons_power_cap(void*, unsigned long long* bits) { return *bits = 0x4, 0; }
int no_reasons(void*, unsigned long long* bits) { return *bits = 0x1, 0; }  // idle
int unsupported_reasons(void*, unsigned long long*) { return kNotSupported; }
/// Answers every other call.
std::atomic<int> power_calls = 0;
int flickering_power(void*, unsigned* mw) {
  return *mw = 300000, ++power_calls % 2 == 0 ? kLost : 0;
}
int flickering_reasons(void*, unsigned long long* bits) {
  static int calls = 0;
  return *bits = 0, ++calls % 2 == 0 ? kLost : 0;
}
int flickering_clock(void*, unsigned, unsigned* mhz) {
  static int calls = 0;
  return *mhz = 1500, ++calls % 2 == 0 ? kLost : 0;
}

using Functions = std::map<std::string, void*>;

template <class Function>
void* address(Function* function) {
  return reinterpret_cast<void*>(function);
}

std::atomic<bool> answers = false;   // whether late_power returns
std::atomic<bool> answered = false;  // whether it did
int late_power(void*, unsigned* milliwatts) {
  for (int ms = 0; !answers && ms < 20000; ++ms)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  *milliwatts = 250000;
  answered = true;
  return 0;
}

/// A library with these functions and those that any use needs.
std::shared_ptr<Nvml> library(Functions functions) {
  functions.insert({{"nvmlInit_v2", address(init)}, {"nvmlDeviceGetHandleByUUID", address(found)}});
  return Nvml::open([functions](const char* name) {
    const auto function = functions.find(name);
    return function == functions.end() ? nullptr : function->second;
  });
}

std::string reasons_by(Functions functions) {
  return text_of_throttle_reasons(library(std::move(functions))->sample("GPU-1").throttle_reasons);
}

constexpr const char* kOldReasons = "nvmlDeviceGetCurrentClocksThrottleReasons";
constexpr const char* kReasons = "nvmlDeviceGetCurrentClocksEventReasons";

}  // namespace

TEST_CASE("a function that NVML lacks leaves its reading unknown, and no other", "[nvml]") {
  const auto nvml = library({{"nvmlDeviceGetClockInfo", address(clock_of)}});
  REQUIRE(nvml);
  const GpuSample sample = nvml->sample("GPU-1");
  CHECK(sample.sm_clock_mhz == 1500);
  CHECK(std::isnan(sample.power_w));
  CHECK(std::isnan(sample.temperature_c));
  CHECK_FALSE(sample.throttle_reasons);
  CHECK(std::isnan(nvml->nvlink_bytes("GPU-1").sent));
  CHECK(std::isnan(nvml->process_memory_bytes("GPU-1")));
  CHECK(nvml->driver_version().empty());
  CHECK_FALSE(Nvml::open([](const char*) -> void* { return nullptr; }));
}

TEST_CASE("NVML is loaded from a shared library, and there is none without it", "[nvml]") {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const auto nvml = Nvml::open((folder / "fake_nvml.so").string());
  REQUIRE(nvml);
  CHECK(nvml->driver_version() == "999.1");
  CHECK(nvml->sample("GPU-1").power_w == 250);
  CHECK(std::isnan(nvml->sample("GPU-1").sm_clock_mhz));
  CHECK(std::isnan(nvml->sample("GPU-2").power_w));  // an unknown GPU
  CHECK_FALSE(Nvml::open("libnothing-of-this-name.so"));
  CHECK_FALSE(Nvml::open("libm.so.6"));  // a library, but not NVML
}

TEST_CASE("what NVML deprecates is called where its replacement does not answer", "[nvml]") {
  const auto temperature_by = [](Functions functions) {
    return library(std::move(functions))->sample("GPU-1").temperature_c;
  };
  const Functions old{{"nvmlDeviceGetTemperature", address(temperature_of)}};
  Functions both = old;
  both["nvmlDeviceGetTemperatureV"] = address(temperature_v);
  CHECK(temperature_by(old) == 50);
  CHECK(temperature_by(both) == 51);
  CHECK(reasons_by({{kOldReasons, address(reasons_power_cap)}}) == "sw_power_cap");
  CHECK(reasons_by({{kOldReasons, address(no_reasons)}, {kReasons, address(reasons_power_cap)}}) ==
        "sw_power_cap");
  CHECK(reasons_by({{kOldReasons, address(reasons_power_cap)},
                    {kReasons, address(unsupported_reasons)}}) == "sw_power_cap");
}

TEST_CASE("throttle reasons have nvidia-smi's names, and unknown is not none", "[nvml]") {
  CHECK(text_of_throttle_reasons(0x1).empty());  // idle
  CHECK(text_of_throttle_reasons(0x4 | 0x20) == "sw_power_cap sw_thermal_slowdown");
  CHECK(text_of_throttle_reasons(0x80) == "hw_power_brake");
  CHECK(text_of_throttle_reasons(std::nullopt) == "unknown");
  CHECK(reasons_by({{kReasons, address(no_reasons)}}).empty());
  CHECK(reasons_by({{kReasons, address(unsupported_reasons)}}) == "unknown");
  CHECK(reasons_by({}) == "unknown");
}

TEST_CASE("a window is of the samples that are known", "[nvml]") {
  const auto window_by = [](Functions functions) {
    GpuSampler sampler(library(std::move(functions)), "GPU-1");
    while (power_calls < 3) std::this_thread::yield();
    return sampler.finish();
  };
  const GpuWindow window = window_by({{"nvmlDeviceGetPowerUsage", address(flickering_power)},
                                      {"nvmlDeviceGetClockInfo", address(flickering_clock)},
                                      {kReasons, address(flickering_reasons)}});
  REQUIRE(window.samples > 1);
  CHECK(window.power_w == Approx(300));
  CHECK(window.sm_clock_mhz == 1500);
  CHECK(std::isnan(window.temperature_c));
  CHECK_FALSE(window.throttle_reasons);  // what was the matter when it did not answer is unknown
}

TEST_CASE("a driver that does not answer leaves a window unknown, and holds nobody up", "[nvml]") {
  {
    GpuSampler sampler(library({{"nvmlDeviceGetPowerUsage", address(late_power)}}), "GPU-1", 0.02);
    const GpuWindow window = sampler.finish();
    CHECK(window.samples == 0);
    CHECK(std::isnan(window.power_w));
  }
  CHECK_FALSE(answered);  // the sampler has ended first
  answers = true;
  while (!answered) std::this_thread::yield();  // its thread leaves this file's functions
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

}  // namespace shakedown

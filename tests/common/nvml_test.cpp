// What is read of GPUs and of what joins them: by a library made for the test, which may lack a
// function or refuse a call, and by the machine's own.
#include "common/nvml.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <thread>

#include "common/units.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown {
namespace {

constexpr int kLost = 15;  // NVML_ERROR_GPU_IS_LOST

int init() { return 0; }
int found(const char*, void** device) {
  static int gpu;
  *device = &gpu;
  return 0;
}
int clock_of(void*, unsigned, unsigned* mhz) { return *mhz = 1500, 0; }
int temperature_of(void*, unsigned, unsigned* celsius) { return *celsius = 50, 0; }
int temperature_v(void*, nvml::Temperature* t) {
  if (t->version != (sizeof(*t) | 1U << 24) || t->sensor != 0) return nvml::kVersionMismatch;
  return t->celsius = 51, 0;
}
int reasons_power_cap(void*, unsigned long long* bits) { return *bits = 0x4, 0; }
int no_reasons(void*, unsigned long long* bits) { return *bits = 0x1, 0; }  // idle
int unsupported_reasons(void*, unsigned long long*) { return nvml::kNotSupported; }
/// Answers every other call.
std::atomic<int> power_calls = 0;
int flickering_power(void*, unsigned* mw) {
  return *mw = 300000, ++power_calls % 2 == 0 ? kLost : 0;
}
int flickering_reasons(void*, unsigned long long* bits) {
  return *bits = 0, power_calls % 2 == 0 ? kLost : 0;
}
int flickering_clock(void*, unsigned, unsigned* mhz) {
  return *mhz = 1500, power_calls % 2 == 0 ? kLost : 0;
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

/// Two nodes of two GPUs each; rank 1 has `links_of_1` NVLinks.
Paths paths_with(const PathEnd& end, Between between, const std::string& board = "NVIDIA H100",
                 int links_of_1 = 18) {
  std::vector<Unit> units(4);
  std::vector<PathEnd> ends(4, end);
  for (int rank = 0; rank < 4; ++rank) {
    Unit& unit = units[rank];
    unit.rank = rank;
    unit.uuid = "GPU-" + std::to_string(rank);
    unit.board = board;
    ends[rank].wires.bus_id = "0000:0" + std::to_string(rank % 2);
    ends[rank].node = {between, between};
  }
  ends[1].wires.links = links_of_1;
  return {map_nodes({"n1", "n1", "n2", "n2"}), units, ends};
}

PathEnd switched(bool fabric, const std::string& clique = "") {
  PathEnd end;
  end.wires = {"", fabric, clique, 18, 18, {}, 25};
  return end;
}

PathEnd direct() {
  PathEnd end;
  end.wires = {"", false, "", 12, 0, {"0000:01", "0000:01", "0000:01", "0000:01", "0000:07"}, 25};
  return end;
}

unsigned ancestor = 0;
unsigned p2p = 0;

int handle(const char* uuid, void** device) { return *device = const_cast<char*>(uuid), 0; }
int pci(void*, nvml::PciInfo* to) { return std::strcpy(to->bus_id, "00000000:19:00.0"), 0; }
int state(void*, unsigned link, unsigned* active) {
  if (link >= 6) return 2;
  return *active = link != 5, 0;
}
int remote_type(void*, unsigned link, unsigned* type) { return *type = link < 2 ? 2 : 0, 0; }
int remote(void*, unsigned, nvml::PciInfo* to) {
  return std::strcpy(to->bus_id, "00000000:3B:00.0"), 0;
}
int fields(void*, int, nvml::FieldValue* to) {
  to->status = 0;
  to->type = 3;
  return to->value.wide = 26562, 0;
}
int common_ancestor(void*, void*, unsigned* level) { return *level = ancestor, 0; }
int p2p_status(void*, void*, unsigned index, unsigned* status) {
  return *status = index == 2 ? p2p : 0, 0;
}

std::shared_ptr<Nvml> made_nvml() {
  return library({{"nvmlDeviceGetHandleByUUID", address(handle)},
                  {"nvmlDeviceGetPciInfo_v3", address(pci)},
                  {"nvmlDeviceGetNvLinkState", address(state)},
                  {"nvmlDeviceGetNvLinkRemoteDeviceType", address(remote_type)},
                  {"nvmlDeviceGetNvLinkRemotePciInfo_v2", address(remote)},
                  {"nvmlDeviceGetFieldValues", address(fields)},
                  {"nvmlDeviceGetTopologyCommonAncestor", address(common_ancestor)},
                  {"nvmlDeviceGetP2PStatus", address(p2p_status)}});
}

}  // namespace

TEST_CASE("a MIG instance has clock and heat of its GPU, and memory of its own", "[nvml]") {
  const std::string gpu = "GPU-1";
  static void* const of_gpu = const_cast<char*>(gpu.c_str());
  const auto parent = [](void*, void** device) { return *device = of_gpu, 0; };
  const auto clock = [](void* device, unsigned, unsigned* mhz) {
    return *mhz = 1500, device == of_gpu ? 0 : nvml::kNotSupported;
  };
  const auto memory = [](void* device, nvml::Memory* to) {
    return to->used = device == of_gpu ? 2 : 1, 0;
  };
  const auto uuid = [](void* device, char* text, unsigned) {
    return std::strcpy(text, device == of_gpu ? "GPU-1" : "MIG-1"), 0;
  };
  const auto nvml = library({{"nvmlDeviceGetHandleByUUID", address(handle)},
                             {"nvmlDeviceGetDeviceHandleFromMigDeviceHandle", address(+parent)},
                             {"nvmlDeviceGetUUID", address(+uuid)},
                             {"nvmlDeviceGetClockInfo", address(+clock)},
                             {"nvmlDeviceGetMemoryInfo", address(+memory)}});
  CHECK(nvml->sample("MIG-1").sm_clock_mhz == 1500);
  CHECK(nvml->sample("MIG-1").memory_used_bytes == 1);
  CHECK(nvml->gpu_of("MIG-1") == "GPU-1");
}

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

// What joins two GPUs, of what NVML reports of each.

TEST_CASE("what joins two GPUs is their path class, its clique and its wires", "[paths]") {
  const auto between = [](const Paths& paths, int a, int b) {
    const Path path = paths.between(a, b);
    return fmt::format("{} {} {:g}", path.path_class, path.clique, path.peak_gbs);
  };
  for (const Paths& paths :
       {paths_with(switched(true), Between::nvlink), paths_with(switched(false), Between::nvlink),
        paths_with(switched(true), Between::unknown)}) {
    CHECK(between(paths, 0, 1) == "nvswitch  450");
    CHECK(between(paths, 0, 2) == "network_rail  nan");
    CHECK(between(paths, 0, 3) == "network  nan");
  }
  // the wires of the one with fewer links
  const Paths half = paths_with(switched(true), Between::nvlink, "NVIDIA H100", 9);
  CHECK(between(half, 0, 1) == "nvswitch  225");
  CHECK(between(half, 1, 0) == "nvswitch  225");
  // a fabric of several nodes
  const Paths fabric = paths_with(switched(true, "ab12.7"), Between::nvlink);
  CHECK(between(fabric, 0, 3) == "nvswitch ab12.7 450");
  CHECK(between(fabric, 0, 1) == "nvswitch ab12.7 450");
  // direct NVLinks are those that lead to the other GPU
  CHECK(between(paths_with(direct(), Between::nvlink, "NVIDIA A100-SXM4-40GB"), 0, 1) ==
        "nvlink  100");
  CHECK(between(paths_with(direct(), Between::nvlink, "NVIDIA H100 NVL"), 0, 1) ==
        "nvlink_bridge  100");
  // without NVLink the common ancestor
  for (const auto& [ancestor, name] : {std::pair{Between::pcie_switch, "pcie_switch  nan"},
                                       {Between::host_bridge, "host_bridge  nan"},
                                       {Between::socket, "socket  nan"},
                                       {Between::unknown, "unknown  nan"}})
    CHECK(between(paths_with(PathEnd(), ancestor), 0, 1) == name);
  const Paths cpu(map_nodes({"n1", "n1"}), std::vector<Unit>(2), std::vector<PathEnd>(2));
  CHECK(between(cpu, 0, 1) == "host  nan");
  // registered with a fabric, and yet joined by PCIe
  CHECK(between(paths_with(switched(true), Between::socket), 0, 1) == "socket  nan");
}

TEST_CASE("NVLinks, their other ends and their speed are read of NVML", "[paths]") {
  const NvlinkWires wires = made_nvml()->nvlink_wires("GPU-1");
  CHECK(wires.bus_id == "00000000:19:00.0");
  CHECK_FALSE(wires.fabric);
  CHECK(wires.links == 5);
  CHECK(wires.to_switch == 2);
  CHECK(wires.gpus == std::vector<std::string>(3, "00000000:3B:00.0"));
  CHECK(wires.link_gbs == 25);
  p2p = 0;
  CHECK(made_nvml()->between("GPU-1", "GPU-2") == Between::nvlink);
  p2p = 5;
  for (const auto& [level, between] : {std::pair{10U, Between::pcie_switch},
                                       {20U, Between::pcie_switch},
                                       {30U, Between::host_bridge},
                                       {40U, Between::host_bridge},
                                       {50U, Between::socket}}) {
    ancestor = level;
    CHECK(made_nvml()->between("GPU-1", "GPU-2") == between);
  }
}

}  // namespace shakedown

// A shared library in NVML's place, whose GPUs are those of a JSON file as launch/node/health
// writes it (bin/gpu_monitor --save-readings, tests/node/fixtures), named by SHAKEDOWN_FAKE_NVML.
// What a reading lacks is not supported. "fake" of a GPU makes it sick, by the name of a function:
//   "stall_s": {"nvmlDeviceGetPowerUsage": 60}   the call takes this long
//   "error": {"nvmlDeviceGetSerial": 15}         the call returns this error
//   "throws": "nvmlDeviceGetSerial"              the call ends so, as what reads may
//   "grows": {"volatile_corrected": 3}           by a key: the value grows by this with each call
//   "effective_errors": 3, "receive_errors": 0   of each NVLink, as since Blackwell
// "fake" of the file does so for the functions of no GPU. Without a file there is one GPU that
// answers few of the calls.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/nvml_library.hpp"

namespace {

using Json = nlohmann::json;
using namespace shakedown::nvml;

struct Gpu {
  Json values;
  Json fake;
  std::map<std::string, int> calls;  // by key that grows
  std::mutex mutex;
};

struct Host {
  Json values;
  Json fake;
  std::vector<Gpu*> gpus;
};

/// Of the last nvmlInit. Never released: threads that it has stalled still have their GPU.
Host* host = nullptr;

Host* read_host() {
  auto* made = new Host;
  const char* const path = std::getenv("SHAKEDOWN_FAKE_NVML");
  made->values = path == nullptr
                     ? Json{{"driver_version", "999.1"},
                            {"gpus", Json::array({{{"uuid", "GPU-1"}, {"power_w", 250}}})}}
                     : Json::parse(std::ifstream(path));
  made->fake = made->values.value("fake", Json::object());
  for (const Json& gpu : made->values.value("gpus", Json::array())) {
    made->gpus.push_back(new Gpu);
    made->gpus.back()->values = gpu;
    made->gpus.back()->fake = gpu.value("fake", Json::object());
  }
  return made;
}

/// What "fake" makes of a call: its error, after its stall.
int spoilt(const Json& fake, const char* function) {
  if (const double stall_s = fake.value("stall_s", Json::object()).value(function, 0.0))
    std::this_thread::sleep_for(std::chrono::duration<double>(stall_s));
  if (fake.value("throws", Json()) == function) throw std::runtime_error(function);
  return fake.value("error", Json::object()).value(function, kSuccess);
}

Gpu& gpu_of(Device device) { return *static_cast<Gpu*>(device); }

/// The value of a key, or null.
Json value_of(Gpu& gpu, const char* key) {
  Json value = gpu.values.value(key, Json());
  const double growth = gpu.fake.value("grows", Json::object()).value(key, 0.0);
  if (value.is_null() || growth == 0) return value;
  const std::lock_guard lock(gpu.mutex);
  return value.get<double>() + growth * gpu.calls[key]++;
}

template <class Number>
int answer(const char* function, Device device, const char* key, Number* to, double scale = 1) {
  Gpu& gpu = gpu_of(device);
  if (const int error = spoilt(gpu.fake, function)) return error;
  const Json value = value_of(gpu, key);
  if (value.is_null()) return kNotSupported;
  *to = static_cast<Number>(value.is_boolean() ? value.get<bool>()
                                               : std::llround(scale * value.get<double>()));
  return kSuccess;
}

int copy(const Json& text, char* to, unsigned length) {
  if (text.is_null()) return kNotSupported;
  std::strncpy(to, text.get<std::string>().c_str(), length);
  to[length - 1] = '\0';
  return kSuccess;
}

int answer_text(const char* function, Device device, const char* key, char* to, unsigned length) {
  if (const int error = spoilt(gpu_of(device).fake, function)) return error;
  return copy(gpu_of(device).values.value(key, Json()), to, length);
}

/// The place of a text among those that a number stands for.
int answer_word(const char* function, Device device, const char* key,
                const std::vector<std::string>& words, unsigned* to) {
  if (const int error = spoilt(gpu_of(device).fake, function)) return error;
  const Json value = gpu_of(device).values.value(key, Json());
  if (value.is_null()) return kNotSupported;
  const auto word = value.get<std::string>();
  for (*to = 0; *to < words.size() && words[*to] != word; ++*to) continue;
  return kSuccess;
}

const std::vector<std::string> kActions{"none",      "reset",           "reboot",
                                        "drain_p2p", "drain_and_reset", "recover_imex_domain"};

Json link_of(Gpu& gpu, unsigned link) {
  for (const Json& known : gpu.values.value("nvlinks", Json::array()))
    if (known.value("link", ~0U) == link) return known;
  return Json::object();
}

/// The value of a field, or null.
Json field_of(Gpu& gpu, const FieldValue& field) {
  const Json link = link_of(gpu, field.scope);
  switch (field.field) {
    case kFieldMemoryTemperature: return value_of(gpu, "memory_temperature_c");
    case kFieldNvlinkCount: return value_of(gpu, "nvlink_count");
    case kFieldPcieReplays: return value_of(gpu, "pcie_replays");
    case kFieldNvlinkReplays: return link.value("replay_errors", Json());
    case kFieldNvlinkRecoveries: return link.value("recovery_errors", Json());
    case kFieldNvlinkCrcErrors: return link.value("crc_errors", Json());
    case kFieldNvlinkEffectiveErrors: return gpu.fake.value("effective_errors", Json());
    case kFieldNvlinkReceiveErrors: return gpu.fake.value("receive_errors", Json());
    case kFieldNvlinkSpeed: return link.value("speed_mbs", Json());
    case kFieldNvlinkState: return link.value("active", Json());
    case kFieldNvlinkSentKib:
    case kFieldNvlinkReceivedKib: {
      const bool sent = field.field == kFieldNvlinkSentKib;
      const Json bytes = value_of(gpu, sent ? "nvlink_sent_bytes" : "nvlink_received_bytes");
      return bytes.is_null() ? bytes : Json(bytes.get<double>() / 1024);
    }
    case kFieldC2cCount: return value_of(gpu, "c2c_count");
    case kFieldC2cState: return field.scope < gpu.values.value("c2c_active", 0U);
    // All of them are replays of the first link.
    case kFieldC2cCrcErrors:
    case kFieldC2cReplays:
    case kFieldC2cRepeatedReplays: {
      const Json errors = value_of(gpu, "c2c_errors");
      const bool has_some = field.field == kFieldC2cReplays && field.scope == 0;
      return errors.is_null() || has_some ? errors : Json(0);
    }
    case kFieldRecoveryAction: {
      unsigned action = 0;
      const int status = answer_word("", &gpu, "recovery_action", kActions, &action);
      return status == kSuccess ? Json(action) : Json();
    }
    default: return {};
  }
}

}  // namespace

#define SPOILT(fake) \
  if (const int error = spoilt(fake, __func__)) return error

// Functions that answer with one key of the GPU.
#define TEXT(function, key)                                  \
  int function(Device device, char* text, unsigned length) { \
    return answer_text(__func__, device, key, text, length); \
  }
#define NUMBER(function, type, key, scale) \
  int function(Device device, type* to) { return answer(__func__, device, key, to, scale); }
#define MODE(function, key)                               \
  int function(Device device, unsigned* now, unsigned*) { \
    return answer(__func__, device, key, now);            \
  }

extern "C" {
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetName, "model")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
NUMBER(nvmlDeviceGetPowerUsage, unsigned, "power_w", 1e3)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, "power_limit_w", 1e3)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, "power_limit_default_w", 1e3)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "throttle_reasons", 1)
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, "persistence", 1)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "pcie_generation", 1)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "pcie_width", 1)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "max_pcie_generation", 1)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "max_pcie_width", 1)
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, "pcie_replays", 1)
NUMBER(nvmlDeviceGetNumaNodeId, unsigned, "memory_numa_node", 1)
MODE(nvmlDeviceGetEccMode, "ecc_enabled")
MODE(nvmlDeviceGetMigMode, "mig_enabled")
int nvmlInit_v2() {
  host = read_host();
  return spoilt(host->fake, __func__);
}
int nvmlShutdown() { return spoilt(host->fake, __func__); }
const char* nvmlErrorString(int status) {
  switch (status) {
    case kSuccess: return "Success";
    case kNotSupported: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 10: return "Timeout";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
  }
}
int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  SPOILT(host->fake);
  return copy(host->values.value("driver_version", Json()), text, length);
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  SPOILT(host->fake);
  const Json text = host->values.value("cuda_driver_version", Json());
  if (text.is_null()) return kNotSupported;
  int major = 0;
  int minor = 0;
  std::sscanf(text.get<std::string>().c_str(), "%d.%d", &major, &minor);
  *version = 1000 * major + 10 * minor;
  return kSuccess;
}
int nvmlSystemGetConfComputeState(ConfidentialState* state) {
  SPOILT(host->fake);
  state->feature = host->values.value("confidential_computing", false);
  return kSuccess;
}
int nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned* count) {
  SPOILT(gpu_of(device).fake);
  *count = 8;
  return gpu_of(device).values.contains("mig_devices") ? kSuccess : kNotSupported;
}
/// Their first place is empty.
int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned place, Device* instance) {
  SPOILT(gpu_of(device).fake);
  const Json devices = gpu_of(device).values.value("mig_devices", Json::array());
  if (place == 0 || place > devices.size()) return kNotFound;
  auto* made = new Gpu;
  made->fake = Json::object();
  made->values["model"] = "NVIDIA H200 MIG " + devices[place - 1].get<std::string>();
  *instance = made;
  return kSuccess;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  SPOILT(host->fake);
  *count = static_cast<unsigned>(host->gpus.size());
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* device) {
  if (index >= host->gpus.size()) return kInvalidArgument;
  *device = host->gpus[index];
  SPOILT(host->gpus[index]->fake);
  return kSuccess;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, Device* device) {
  for (Gpu* gpu : host->gpus) {
    if (gpu->values.value("uuid", "") != uuid) continue;
    *device = gpu;
    SPOILT(gpu->fake);
    return kSuccess;
  }
  return kNotFound;
}
int nvmlDeviceGetPciInfo_v3(Device device, PciInfo* pci) {
  SPOILT(gpu_of(device).fake);
  const std::string id = gpu_of(device).values.value("pci_id", "");
  const bool read = std::sscanf(id.c_str(), "%x:%x:%x", &pci->domain, &pci->bus, &pci->device) == 3;
  unsigned vendor = 0, ours = 0, maker = 0, board = 0;
  const std::string kind = gpu_of(device).values.value("pci_device_id", "");
  std::sscanf(kind.c_str(), "%x:%x:%x:%x", &vendor, &ours, &maker, &board);
  pci->device_id = ours << 16 | vendor;
  pci->subsystem_id = board << 16 | maker;
  return read ? kSuccess : kNotSupported;
}
int nvmlDeviceGetMemoryAffinity(Device device, unsigned, unsigned long* nodes, unsigned) {
  unsigned node = 0;
  const int status = answer(__func__, device, "numa_node", &node);
  *nodes = 1UL << node;
  return status;
}
int nvmlDeviceGetClockInfo(Device device, unsigned type, unsigned* mhz) {
  return answer(__func__, device, type == kClockSm ? "sm_clock_mhz" : "memory_clock_mhz", mhz);
}
int nvmlDeviceGetMaxClockInfo(Device device, unsigned type, unsigned* mhz) {
  return answer(__func__, device, type == kClockSm ? "max_sm_clock_mhz" : "max_memory_clock_mhz",
                mhz);
}
/// In an int there is no room for 4294967295 C: then only the older function has it.
int nvmlDeviceGetTemperatureV(Device device, Temperature* temperature) {
  if (temperature->version != version_of<Temperature>(1) || temperature->sensor != 0)
    return kVersionMismatch;
  long long celsius = 0;
  const int status = answer(__func__, device, "temperature_c", &celsius);
  temperature->celsius = static_cast<int>(celsius);
  return status == kSuccess && temperature->celsius != celsius ? kNotSupported : status;
}
int nvmlDeviceGetTemperature(Device device, unsigned, unsigned* celsius) {
  return answer(__func__, device, "temperature_c", celsius);
}
int nvmlDeviceGetMarginTemperature(Device device, MarginTemperature* margin) {
  if (margin->version != version_of<MarginTemperature>(1)) return kVersionMismatch;
  return answer(__func__, device, "temperature_margin_c", &margin->celsius);
}
int nvmlDeviceGetUtilizationRates(Device device, Utilisation* percent) {
  if (const int status = answer(__func__, device, "utilisation_percent", &percent->gpu))
    return status;
  return answer("", device, "memory_utilisation_percent", &percent->memory);
}
int nvmlDeviceGetMemoryInfo_v2(Device device, MemoryV2* memory) {
  if (memory->version != version_of<MemoryV2>(2)) return kVersionMismatch;
  if (const int status = answer(__func__, device, "memory_total_bytes", &memory->total))
    return status;
  return answer("", device, "memory_used_bytes", &memory->used);
}
int nvmlDeviceGetMemoryInfo(Device device, Memory* memory) {
  if (const int status = answer(__func__, device, "memory_total_bytes", &memory->total))
    return status;
  return answer("", device, "memory_used_bytes", &memory->used);
}
int nvmlDeviceGetViolationStatus(Device device, unsigned policy, Violation* violation) {
  return answer(__func__, device,
                policy == kPolicyPower ? "power_violation_ns" : "thermal_violation_ns",
                &violation->violation_ns);
}
int nvmlDeviceGetComputeMode(Device device, unsigned* mode) {
  return answer_word(__func__, device, "compute_mode",
                     {"default", "exclusive_thread", "prohibited", "exclusive_process"}, mode);
}
int nvmlDeviceGetTotalEccErrors(Device device, unsigned type, unsigned since,
                                unsigned long long* errors) {
  const std::string key = std::string(since == kVolatile ? "volatile_" : "aggregate_") +
                          (type == kCorrected ? "corrected" : "uncorrected");
  return answer(__func__, device, key.c_str(), errors);
}
int nvmlDeviceGetSramEccErrorStatus(Device device, SramErrors* errors) {
  if (errors->version != version_of<SramErrors>(1)) return kVersionMismatch;
  if (const int status =
          answer(__func__, device, "aggregate_sram_uncorrected", &errors->aggregate_parity))
    return status;
  return answer("", device, "sram_threshold_exceeded", &errors->threshold_exceeded);
}
int nvmlDeviceGetRemappedRows(Device device, unsigned* corrected, unsigned* uncorrected,
                              unsigned* pending, unsigned* failure) {
  if (const int status = answer(__func__, device, "remapped_corrected", corrected)) return status;
  if (const int status = answer("", device, "remapped_uncorrected", uncorrected)) return status;
  if (const int status = answer("", device, "remap_pending", pending)) return status;
  return answer("", device, "remap_failure", failure);
}
int nvmlDeviceGetPcieThroughput(Device device, unsigned direction, unsigned* kbs) {
  return answer(__func__, device, direction == kPcieSent ? "pcie_sent_mbs" : "pcie_received_mbs",
                kbs, 1e3);
}
int nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned* active) {
  SPOILT(gpu_of(device).fake);
  const Json known = link_of(gpu_of(device), link);
  if (known.empty()) return kInvalidArgument;
  if (!known.contains("active")) return kNotSupported;
  *active = known["active"].get<bool>();
  return kSuccess;
}
int nvmlDeviceGetGpuFabricInfoV(Device device, FabricInfo* info) {
  if (info->version != version_of<FabricInfo>(3)) return kVersionMismatch;
  unsigned state = 0;
  unsigned health = 0;
  if (const int status =
          answer_word(__func__, device, "fabric_state",
                      {"not_supported", "not_started", "in_progress", "completed"}, &state))
    return status;
  answer_word("", device, "fabric_health",
              {"not_supported", "healthy", "unhealthy", "limited_capacity"}, &health);
  info->state = static_cast<unsigned char>(state);
  info->health_summary = static_cast<unsigned char>(health);
  info->status = gpu_of(device).values.value("fabric_status", "success") == "success" ? 0 : 999;
  const std::string cluster = gpu_of(device).values.value("fabric_cluster", "");
  for (std::size_t i = 0; i < cluster.size() / 2; ++i)
    info->cluster_uuid[i] =
        static_cast<unsigned char>(std::stoul(cluster.substr(2 * i, 2), nullptr, 16));
  info->clique = gpu_of(device).values.value("fabric_clique", 0U);
  return kSuccess;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned* count, Process* processes) {
  SPOILT(gpu_of(device).fake);
  const Json list = gpu_of(device).values.value("processes", Json());
  if (list.is_null()) return kNotSupported;
  const unsigned room = *count;
  *count = static_cast<unsigned>(list.size());
  if (*count > room) return kInsufficientSize;
  for (unsigned i = 0; i < *count; ++i)
    processes[i] = {list[i].value("pid", 0U), list[i].value("memory_bytes", kMemoryHidden), 0, 0};
  return kSuccess;
}
int nvmlDeviceValidateInforom(Device device) {
  unsigned valid = 0;
  const int status = answer(__func__, device, "inforom_valid", &valid);
  return status == kSuccess && valid == 0 ? kCorruptedInforom : status;
}
int nvmlDeviceGetFieldValues(Device device, int count, FieldValue* fields) {
  SPOILT(gpu_of(device).fake);
  for (FieldValue* field = fields; field != fields + count; ++field) {
    const Json value = field_of(gpu_of(device), *field);
    field->status = value.is_null() ? kNotSupported : kSuccess;
    field->type = 3;  // unsigned long long
    if (value.is_boolean()) field->value.wide = value.get<bool>();
    if (value.is_number()) field->value.wide = static_cast<unsigned long long>(value.get<double>());
  }
  return kSuccess;
}
}

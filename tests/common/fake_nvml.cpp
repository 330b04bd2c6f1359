// A shared library in NVML's place, whose GPUs are those of a JSON file as launch/node/health
// writes it (bin/gpu_monitor --save-readings, tests/node/fixtures), named by SHAKEDOWN_FAKE_NVML.
// What a reading lacks is not supported. "fake" of a GPU makes it sick, by the name of a function:
//   "stall_s": {"nvmlDeviceGetPowerUsage": 60}   the call takes this long
//   "error": {"nvmlDeviceGetSerial": 15}         the call returns this error
//   "grows": {"volatile_corrected": 3}           by a key: the value grows by this with each call
//   "effective_errors": 3, "receive_errors": 0   of each NVLink, as since Blackwell
// "fake" of the file does so for the functions of no GPU. Without a file there is one GPU that
// answers few of the calls.
#include "tests/common/fake_nvml.hpp"

using namespace fake_nvml;

#define SPOILT(fake) \
  if (const int error = spoilt(fake, __func__)) return error

extern "C" {
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
  return 6;  // NVML_ERROR_NOT_FOUND
}
int nvmlDeviceGetUUID(Device device, char* text, unsigned length) {
  return answer_text(__func__, device, "uuid", text, length);
}
int nvmlDeviceGetName(Device device, char* text, unsigned length) {
  return answer_text(__func__, device, "model", text, length);
}
int nvmlDeviceGetSerial(Device device, char* text, unsigned length) {
  return answer_text(__func__, device, "serial", text, length);
}
int nvmlDeviceGetVbiosVersion(Device device, char* text, unsigned length) {
  return answer_text(__func__, device, "vbios", text, length);
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
int nvmlDeviceGetPowerUsage(Device device, unsigned* milliwatts) {
  return answer(__func__, device, "power_w", milliwatts, 1e3);
}
int nvmlDeviceGetEnforcedPowerLimit(Device device, unsigned* milliwatts) {
  return answer(__func__, device, "power_limit_w", milliwatts, 1e3);
}
int nvmlDeviceGetPowerManagementDefaultLimit(Device device, unsigned* milliwatts) {
  return answer(__func__, device, "power_limit_default_w", milliwatts, 1e3);
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
int nvmlDeviceGetCurrentClocksEventReasons(Device device, unsigned long long* reasons) {
  return answer(__func__, device, "throttle_reasons", reasons);
}
int nvmlDeviceGetViolationStatus(Device device, unsigned policy, Violation* violation) {
  return answer(__func__, device,
                policy == kPolicyPower ? "power_violation_ns" : "thermal_violation_ns",
                &violation->violation_ns);
}
int nvmlDeviceGetPersistenceMode(Device device, unsigned* on) {
  return answer(__func__, device, "persistence", on);
}
int nvmlDeviceGetEccMode(Device device, unsigned* now, unsigned*) {
  return answer(__func__, device, "ecc_enabled", now);
}
int nvmlDeviceGetMigMode(Device device, unsigned* now, unsigned*) {
  return answer(__func__, device, "mig_enabled", now);
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
int nvmlDeviceGetCurrPcieLinkGeneration(Device device, unsigned* generation) {
  return answer(__func__, device, "pcie_generation", generation);
}
int nvmlDeviceGetCurrPcieLinkWidth(Device device, unsigned* width) {
  return answer(__func__, device, "pcie_width", width);
}
int nvmlDeviceGetMaxPcieLinkGeneration(Device device, unsigned* generation) {
  return answer(__func__, device, "max_pcie_generation", generation);
}
int nvmlDeviceGetMaxPcieLinkWidth(Device device, unsigned* width) {
  return answer(__func__, device, "max_pcie_width", width);
}
int nvmlDeviceGetPcieReplayCounter(Device device, unsigned* replays) {
  return answer(__func__, device, "pcie_replays", replays);
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

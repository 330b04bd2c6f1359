// NVML's functions, found one by one in a library that is opened at run time: what one driver lacks
// does not switch off the rest. The declarations are our own, so that no build needs nvml.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

namespace shakedown::nvml {

using Device = void*;

// nvmlReturn_t
inline constexpr int kSuccess = 0;
inline constexpr int kInvalidArgument = 2;
inline constexpr int kNotSupported = 3;
inline constexpr int kNotFound = 6;
inline constexpr int kInsufficientSize = 7;
inline constexpr int kFunctionNotFound = 13;
inline constexpr int kCorruptedInforom = 14;
inline constexpr int kVersionMismatch = 25;
inline constexpr int kDeprecated = 26;
inline constexpr int kNotRead = 999;  // NVML_ERROR_UNKNOWN

inline constexpr unsigned kTemperatureGpu = 0;
inline constexpr unsigned kClockSm = 1, kClockMemory = 2;
inline constexpr unsigned kCorrected = 0, kUncorrected = 1;
inline constexpr unsigned kVolatile = 0, kAggregate = 1;
inline constexpr unsigned kLocationSram = 7;
inline constexpr unsigned kPcieSent = 0, kPcieReceived = 1;
inline constexpr unsigned kPolicyPower = 0, kPolicyThermal = 1;
inline constexpr unsigned kNvlinkReplay = 0, kNvlinkRecovery = 1, kNvlinkCrcFlit = 2;
inline constexpr unsigned kNumaNodes = 0;   // NVML_AFFINITY_SCOPE_NODE
inline constexpr unsigned kMostLinks = 36;  // of NVLink and of C2C
inline constexpr unsigned kP2pNvlink = 2, kP2pOk = 0;
inline constexpr unsigned kRemoteGpu = 0, kRemoteSwitch = 2;
inline constexpr unsigned char kFabricCompleted = 3;
/// nvmlGpuTopologyLevel_t: several switches without a host bridge, the same NUMA node.
inline constexpr unsigned kTopologySwitches = 20, kTopologyNode = 40;
inline constexpr unsigned kAllLinks = ~0U;

/// NVML_FI_DEV_...: what nvmlDeviceGetFieldValues reads.
enum Field : unsigned {
  kFieldViolationPower = 74,    // ns
  kFieldViolationThermal = 75,  // ns
  kFieldMemoryTemperature = 82,
  kFieldNvlinkCommonSpeed = 90,  // MB/s
  kFieldNvlinkCount = 91,
  kFieldPcieReplays = 94,
  kFieldNvlinkSentKib = 138,  // payload; scope: a link or kAllLinks
  kFieldNvlinkReceivedKib = 139,
  kFieldNvlinkReplays = 161,  // 161 to 165: scope is a link
  kFieldNvlinkRecoveries = 162,
  kFieldNvlinkCrcErrors = 163,
  kFieldNvlinkSpeed = 164,  // MB/s
  kFieldNvlinkState = 165,
  kFieldC2cCount = 170,
  kFieldC2cState = 171,  // 171, and 231 to 233: scope is a link
  // Since Blackwell in place of 161, 163 and 162: packets received with errors, errors that the
  // forward error correction left, recoveries.
  kFieldNvlinkReceiveErrors = 208,
  kFieldNvlinkRecoveryEvents = 215,
  kFieldNvlinkEffectiveErrors = 219,
  kFieldRecoveryAction = 230,
  kFieldC2cCrcErrors = 231,
  kFieldC2cReplays = 232,
  kFieldC2cRepeatedReplays = 233,  // back to back
};

/// The version that a struct of NVML's begins with.
template <class Struct>
constexpr unsigned version_of(unsigned number) {
  return static_cast<unsigned>(sizeof(Struct)) | number << 24;
}

struct Temperature {
  unsigned version;
  unsigned sensor;
  int celsius;
};
struct MarginTemperature {
  unsigned version;
  int celsius;
};
struct Memory {
  unsigned long long total, free, used;
};
struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct Process {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance;
  unsigned compute_instance;
};
inline constexpr unsigned long long kMemoryHidden = ~0ULL;  // Process::used_memory
struct Utilisation {
  unsigned gpu, memory;  // per cent
};
struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
struct Violation {
  unsigned long long reference_us, violation_ns;
};
struct SramErrors {
  unsigned version;
  unsigned long long aggregate_parity, aggregate_sec_ded, aggregate_corrected;
  unsigned long long volatile_parity, volatile_sec_ded, volatile_corrected;
  unsigned long long in_l2, in_sm, in_pcie, in_mcu, in_others;
  unsigned threshold_exceeded;
};
struct OldFabricInfo {
  unsigned char cluster_uuid[16];
  int status;
  unsigned clique;
  unsigned char state;
};
struct FabricInfo {
  unsigned version;
  unsigned char cluster_uuid[16];
  int status;
  unsigned clique;
  unsigned char state;
  unsigned health_mask;
  unsigned char health_summary;
};
inline constexpr unsigned kFabricVersion3 = version_of<FabricInfo>(3);
/// Without the last member, and what aligns it.
inline constexpr unsigned kFabricVersion2 = kFabricVersion3 - 4 - (1U << 24);
/// nvmlConfComputeSystemState_t: no version.
struct ConfidentialState {
  unsigned environment, feature, devtools;
};
/// nvmlFieldValue_t, which has not changed since CUDA 11.
struct FieldValue {
  unsigned field;
  unsigned scope;
  long long timestamp_us;
  long long latency_us;
  unsigned type;
  int status;
  union {
    double real;
    int signed_narrow;
    unsigned narrow;
    unsigned long long wide;
    long long signed_wide;
    unsigned short shortest;
  } value;
};
static_assert(sizeof(FieldValue) == 40);
static_assert(sizeof(PciInfo) == 68);
static_assert(sizeof(Process) == 24);

/// A value that was not read yet.
inline FieldValue field_value(Field field, unsigned scope = 0) {
  FieldValue value{};
  value.field = field;
  value.scope = scope;
  value.status = kNotRead;
  return value;
}

/// The value of a field that is no fraction and not negative; none where it was not read.
std::optional<std::uint64_t> count_of(const FieldValue& field);
/// Vendor and device, vendor and device of the subsystem: "10de:2335:10de:18be"; empty: not known.
std::string device_id_of(const PciInfo& pci);

/// The address of one of the library's functions, or null.
using FindFunction = std::function<void*(const char* name)>;

/// A function that the library may lack.
template <class Signature>
struct Function;
template <class Result, class... Parameters>
struct Function<Result(Parameters...)> {
  Function(const FindFunction& find, const char* symbol)
      : name(symbol), address(reinterpret_cast<Result (*)(Parameters...)>(find(symbol))) {}
  const char* name;
  Result (*address)(Parameters...);  // null where the library lacks it
};

/// Calls it; kFunctionNotFound where the library lacks it.
template <class... Parameters, class... Arguments>
int call(const Function<int(Parameters...)>& function, Arguments... arguments) {
  return function.address == nullptr ? kFunctionNotFound : function.address(arguments...);
}

// The calls in which the driver initializes GPUs: seconds per GPU without persistence mode.
constexpr const char* kInit = "nvmlInit_v2";
constexpr const char* kHandleByIndex = "nvmlDeviceGetHandleByIndex_v2";

/// All functions that are used. Where there are two of a purpose, the later one is older.
struct Library {
  explicit Library(FindFunction find_function) : find(std::move(find_function)) {}
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  /// "GPU is lost": NVML's words, or the number.
  std::string words_of(int status) const;

  const FindFunction find;

  const Function<int()> init{find, kInit};
  const Function<int()> shutdown{find, "nvmlShutdown"};
  const Function<int(char*, unsigned)> driver_version{find, "nvmlSystemGetDriverVersion"};
  const Function<int(int*)> cuda_version{find, "nvmlSystemGetCudaDriverVersion_v2"};
  const Function<int(ConfidentialState*)> confidential{find, "nvmlSystemGetConfComputeState"};
  const Function<int(unsigned*)> count{find, "nvmlDeviceGetCount_v2"};
  const Function<int(unsigned, Device*)> handle_by_index{find, kHandleByIndex};
  const Function<int(const char*, Device*)> handle_by_uuid{find, "nvmlDeviceGetHandleByUUID"};
  const Function<int(Device, char*, unsigned)> uuid{find, "nvmlDeviceGetUUID"};
  const Function<int(Device, char*, unsigned)> model{find, "nvmlDeviceGetName"};
  const Function<int(Device, char*, unsigned)> serial{find, "nvmlDeviceGetSerial"};
  const Function<int(Device, char*, unsigned)> vbios{find, "nvmlDeviceGetVbiosVersion"};
  const Function<int(Device, PciInfo*)> pci{find, "nvmlDeviceGetPciInfo_v3"};
  const Function<int(Device, unsigned, unsigned long*, unsigned)> memory_affinity{
      find, "nvmlDeviceGetMemoryAffinity"};
  const Function<int(Device, unsigned*)> numa_node{find, "nvmlDeviceGetNumaNodeId"};
  const Function<int(Device, unsigned, unsigned*)> clock{find, "nvmlDeviceGetClockInfo"};
  const Function<int(Device, unsigned, unsigned*)> max_clock{find, "nvmlDeviceGetMaxClockInfo"};
  const Function<int(Device, unsigned*)> memory_bus_width{find, "nvmlDeviceGetMemoryBusWidth"};
  const Function<int(Device, unsigned*)> power_mw{find, "nvmlDeviceGetPowerUsage"};
  const Function<int(Device, unsigned*)> power_limit_mw{find, "nvmlDeviceGetEnforcedPowerLimit"};
  const Function<int(Device, unsigned*)> old_power_limit_mw{find,
                                                            "nvmlDeviceGetPowerManagementLimit"};
  const Function<int(Device, unsigned*)> power_default_mw{
      find, "nvmlDeviceGetPowerManagementDefaultLimit"};
  const Function<int(Device, unsigned long long*)> energy_mj{find,
                                                             "nvmlDeviceGetTotalEnergyConsumption"};
  const Function<int(Device, Temperature*)> temperature{find, "nvmlDeviceGetTemperatureV"};
  const Function<int(Device, unsigned, unsigned*)> old_temperature{find,
                                                                   "nvmlDeviceGetTemperature"};
  const Function<int(Device, MarginTemperature*)> margin{find, "nvmlDeviceGetMarginTemperature"};
  const Function<int(Device, Utilisation*)> utilisation{find, "nvmlDeviceGetUtilizationRates"};
  const Function<int(Device, MemoryV2*)> memory_v2{find, "nvmlDeviceGetMemoryInfo_v2"};
  const Function<int(Device, Memory*)> memory{find, "nvmlDeviceGetMemoryInfo"};
  const Function<int(Device, unsigned long long*)> reasons{
      find, "nvmlDeviceGetCurrentClocksEventReasons"};
  const Function<int(Device, unsigned long long*)> old_reasons{
      find, "nvmlDeviceGetCurrentClocksThrottleReasons"};
  const Function<int(Device, unsigned, Violation*)> violation{find, "nvmlDeviceGetViolationStatus"};
  const Function<int(Device, unsigned*)> persistence{find, "nvmlDeviceGetPersistenceMode"};
  const Function<int(Device, unsigned*, unsigned*)> ecc_mode{find, "nvmlDeviceGetEccMode"};
  const Function<int(Device, unsigned*, unsigned*)> mig_mode{find, "nvmlDeviceGetMigMode"};
  const Function<int(Device, unsigned*)> most_mig_devices{find, "nvmlDeviceGetMaxMigDeviceCount"};
  const Function<int(Device, unsigned, Device*)> mig_device{find,
                                                            "nvmlDeviceGetMigDeviceHandleByIndex"};
  const Function<int(Device, Device*)> gpu_of_mig{find,
                                                  "nvmlDeviceGetDeviceHandleFromMigDeviceHandle"};
  const Function<int(Device, unsigned*)> compute_mode{find, "nvmlDeviceGetComputeMode"};
  const Function<int(Device, unsigned, unsigned, unsigned long long*)> ecc_errors{
      find, "nvmlDeviceGetTotalEccErrors"};
  const Function<int(Device, SramErrors*)> sram_errors{find, "nvmlDeviceGetSramEccErrorStatus"};
  const Function<int(Device, unsigned, unsigned, unsigned, unsigned long long*)> old_ecc_errors{
      find, "nvmlDeviceGetMemoryErrorCounter"};
  const Function<int(Device, unsigned*, unsigned*, unsigned*, unsigned*)> remapped_rows{
      find, "nvmlDeviceGetRemappedRows"};
  const Function<int(Device, unsigned*)> pcie_generation{find,
                                                         "nvmlDeviceGetCurrPcieLinkGeneration"};
  const Function<int(Device, unsigned*)> pcie_width{find, "nvmlDeviceGetCurrPcieLinkWidth"};
  const Function<int(Device, unsigned*)> max_pcie_generation{find,
                                                             "nvmlDeviceGetMaxPcieLinkGeneration"};
  const Function<int(Device, unsigned*)> max_pcie_width{find, "nvmlDeviceGetMaxPcieLinkWidth"};
  const Function<int(Device, unsigned*)> pcie_replays{find, "nvmlDeviceGetPcieReplayCounter"};
  const Function<int(Device, unsigned, unsigned*)> pcie_rate_kbs{find,
                                                                 "nvmlDeviceGetPcieThroughput"};
  const Function<int(Device, unsigned, unsigned*)> nvlink_state{find, "nvmlDeviceGetNvLinkState"};
  const Function<int(Device, unsigned, unsigned, unsigned long long*)> nvlink_errors{
      find, "nvmlDeviceGetNvLinkErrorCounter"};
  const Function<int(Device, unsigned, unsigned*)> nvlink_remote_type{
      find, "nvmlDeviceGetNvLinkRemoteDeviceType"};
  const Function<int(Device, unsigned, PciInfo*)> nvlink_remote{
      find, "nvmlDeviceGetNvLinkRemotePciInfo_v2"};
  const Function<int(Device, Device, unsigned, unsigned*)> p2p_status{find,
                                                                      "nvmlDeviceGetP2PStatus"};
  const Function<int(Device, Device, unsigned*)> common_ancestor{
      find, "nvmlDeviceGetTopologyCommonAncestor"};
  const Function<int(Device, FabricInfo*)> fabric{find, "nvmlDeviceGetGpuFabricInfoV"};
  const Function<int(Device, OldFabricInfo*)> old_fabric{find, "nvmlDeviceGetGpuFabricInfo"};
  const Function<int(Device, unsigned*, Process*)> processes{
      find, "nvmlDeviceGetComputeRunningProcesses_v3"};
  const Function<int(Device)> validate_inforom{find, "nvmlDeviceValidateInforom"};
  const Function<int(Device, int, FieldValue*)> field_values{find, "nvmlDeviceGetFieldValues"};
  const Function<const char*(int)> error_text{find, "nvmlErrorString"};
};

/// Where a GPU is in its NVLink fabric, by the newest function that answers: `reads(function,
/// parameter)` calls it for the GPU and returns whether it does.
template <class Reads>
bool read_fabric(const Library& library, Reads&& reads, FabricInfo& info) {
  for (const unsigned version : {kFabricVersion3, kFabricVersion2}) {
    info.version = version;
    if (reads(library.fabric, &info)) return true;
  }
  OldFabricInfo old{};
  if (!reads(library.old_fabric, &old)) return false;
  std::copy(std::begin(old.cluster_uuid), std::end(old.cluster_uuid), info.cluster_uuid);
  info.clique = old.clique;
  info.state = old.state;
  info.status = old.status;
  return true;
}
/// The UUID of a fabric of several nodes, in hexadecimal; empty where the fabric is the node's own.
std::string cluster_of(const FabricInfo& info);

/// The name of the library: SHAKEDOWN_NVML_LIBRARY of the environment, which is for tests, or
/// libnvidia-ml.so.1.
std::string library_name();

/// The functions of a shared library, or none where it cannot be opened; `problem` then has the
/// reason. It stays loaded until the process ends, as a call may never return.
FindFunction open_library(const std::string& name, std::string& problem);

}  // namespace shakedown::nvml

// All that is known of one GPU's health at one moment. What the driver did not say is absent, which
// is neither zero nor "none".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/record.hpp"

namespace shakedown::node {

template <class T>
using Known = std::optional<T>;

struct NvlinkReading {
  int link = 0;
  Known<bool> active;
  Known<int> speed_mbs;  // raw, one direction
  Known<std::uint64_t> crc_errors, replay_errors, recovery_errors;
};

struct ProcessReading {
  int pid = 0;
  Known<std::uint64_t> memory_bytes;
};

/// Corrected and uncorrected errors of memory and SRAM.
struct EccReading {
  Known<std::uint64_t> corrected, uncorrected;
};

struct GpuReading {
  int index = 0;  // NVML's, in the order of PCI ids: not CUDA's ordinal
  // identity
  std::string uuid, model, serial, vbios, pci_id;  // empty: not known
  std::string pci_device_id;                       // as GpuDescription's
  Known<int> numa_node;
  Known<int> memory_numa_node;  // whose memory is the GPU's: on Grace, where the system uses it too
  // state
  Known<double> sm_clock_mhz, memory_clock_mhz, max_sm_clock_mhz, max_memory_clock_mhz;
  Known<double> power_w, power_limit_w, power_limit_default_w;
  Known<double> temperature_c, memory_temperature_c;
  Known<double> temperature_margin_c;  // to the slowdown: "T.limit"
  Known<double> utilisation_percent, memory_utilisation_percent;
  Known<std::uint64_t> memory_used_bytes, memory_total_bytes;
  Known<std::uint64_t> throttle_reasons;                          // bits, as common/nvml
  Known<std::uint64_t> power_violation_ns, thermal_violation_ns;  // since the driver was loaded
  Known<bool> persistence, ecc_enabled, mig_enabled;
  Known<bool> has_ecc;  // false: NVML says that the GPU does not support it; not recorded
  Known<std::vector<std::string>> mig_devices;  // profiles, sorted: "1g.18gb"
  Known<std::string> compute_mode;              // "default", "exclusive_process", "prohibited"
  // errors
  EccReading volatile_, aggregate;  // since the driver was loaded; of the GPU's life
  Known<std::uint64_t> aggregate_sram_uncorrected;
  Known<bool> sram_threshold_exceeded;
  Known<int> remapped_corrected, remapped_uncorrected;
  Known<bool> remap_pending, remap_failure;
  Known<bool> inforom_valid;  // where it was read with the inforom
  // "none", "reset", "reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain", else its
  // number
  Known<std::string> recovery_action;
  // links
  Known<int> pcie_generation, pcie_width;          // now: lower while the GPU idles
  Known<int> max_pcie_generation, max_pcie_width;  // of GPU and slot
  Known<std::uint64_t> pcie_replays;
  Known<double> pcie_sent_mbs, pcie_received_mbs;
  Known<int> nvlink_count;  // of those that the GPU has; each is in nvlinks, active or not
  std::vector<NvlinkReading> nvlinks;
  // Payload of all links and processes since the driver was loaded, in steps of 1 KiB.
  Known<std::uint64_t> nvlink_sent_bytes, nvlink_received_bytes;
  Known<std::string> fabric_state;   // "not_supported", "not_started", "in_progress", "completed"
  Known<std::string> fabric_status;  // where completed: "success" or NVML's words for the error
  Known<std::string> fabric_health;  // "healthy", "unhealthy", "limited_capacity"
  // Of a fabric of several nodes, where completed: GPUs of one clique reach each other. Empty
  // cluster: the fabric is the node's own.
  Known<std::string> fabric_cluster;
  Known<int> fabric_clique;
  Known<std::uint64_t> c2c_count, c2c_active;    // links to a Grace processor
  Known<std::uint64_t> c2c_errors;               // CRC errors and replays of all of them
  Known<std::vector<ProcessReading>> processes;  // that compute, of any user
  // what did not answer
  std::vector<std::string> stalled;  // calls that took longer than their deadline
  std::vector<std::string> failed;   // "nvmlDeviceGetX: GPU is lost": errors but not_supported
};

/// The GPUs of this host as the driver has them; what it says of itself. As JSON, by
/// json_fields.hpp, a fixture: "volatile_corrected" is the key of volatile_.corrected.
struct HostGpus {
  Known<std::string> driver_version, cuda_driver_version;
  Known<bool> confidential_computing;
  Known<std::string> problem;  // why there are none to read: "libnvidia-ml.so.1: cannot open ..."
  std::vector<GpuReading> gpus;
  std::vector<std::string> stalled, failed;  // calls that are no GPU's
};

// Error counters of a GPU, and how they grow from one reading to the next.

/// NVLinks that are active; unknown where they, or the state of one, are.
Known<std::size_t> active_nvlinks(const GpuReading& reading);

/// CRC errors, replays and recoveries of all NVLinks; unknown where one counter of one link is.
Known<std::uint64_t> nvlink_errors(const GpuReading& reading);

/// Unknown where either is, and where the counter has become less: the driver was loaded anew.
Known<std::uint64_t> grown(const Known<std::uint64_t>& before, const Known<std::uint64_t>& now);

// The "health" record: one reading of one GPU.

/// Its fields: those of to_json, of lists of objects a number instead. `time` is UTC; `reading_ms`
/// is what the reading of all GPUs of the host took.
Json health_record(const std::string& host, const std::string& time, double reading_ms,
                   const GpuReading& reading);

}  // namespace shakedown::node

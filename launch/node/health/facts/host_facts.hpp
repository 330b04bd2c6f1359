// What a host says of itself, in /proc, /sys, its file systems and this process's environment. A
// fact that cannot be read is absent.
#pragma once

#include <fmt/format.h>
#include <sched.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/record.hpp"

namespace shakedown::node {

/// Where facts are read: the machine and its environment, or what a test made up.
struct FactSource {
  std::string root;                                // before /proc and /sys; empty: the machine's
  std::map<std::string, std::string> environment;  // by name

  /// The variable's value, or null.
  const std::string* variable(const std::string& name) const;
  /// The first line of a file, without blanks around it; empty where it cannot be read.
  std::string line_of(const std::string& path) const;
  /// All lines of a file; none where it cannot be read.
  std::vector<std::string> lines_of(const std::string& path) const;
  /// The names in a folder, sorted; none where it cannot be read.
  std::vector<std::string> names_in(const std::string& folder) const;
  /// The first lines of FOLDER/*/FILE that are not empty, each once.
  std::set<std::string> each_line_of(const std::string& folder, const std::string& file) const;
};
/// The machine, or `root`, with the environment of this process.
FactSource facts_here(const std::string& root = "");

/// The numbers of a kernel's list: "0-3,8" is 0, 1, 2, 3, 8. Empty where it is none.
std::vector<int> numbers_in(const std::string& list);
double uptime_s(const FactSource& source);
/// "docker"; "none seen".
Json read_container(const FactSource& source);

using Read = std::function<Json(const FactSource& source)>;  // null: not known
struct Fact {
  const char* name;
  bool compared;  // between the nodes of a job, which should be alike
  Read read;
};

inline constexpr const char* kCoresAllowed = "cores_allowed";
inline constexpr const char* kPersistenceDaemon = "persistence_daemon";  // a fact's name
std::vector<Fact> all_facts();
// Which are among them:
std::vector<Fact> device_facts();                 // the PCI bus, the driver, networks
std::vector<Fact> nccl_facts();                   // NCCL's variables, and what they name
inline constexpr const char* kAmazon = "0x1d0f";  // EFA's vendor
inline constexpr const char* kImexNodes = "/etc/nvidia-imex/nodes_config.cfg";

/// Each fact under its name, all read at the same time; in "stalled" the names of those that did
/// not return by the deadline.
Json read_facts(const FactSource& source, double deadline_s,
                const std::vector<Fact>& facts = all_facts());

// Memory near a device: allocated by a thread that runs on the cores of its NUMA node.

inline constexpr const char* kNotNear = "not near";  // how text() begins then
inline constexpr const char* kNumaUnknown = "NUMA node unknown";

/// While it lives, this thread runs on those of its cores that are of the device's NUMA node.
class NearDevice {
 public:
  /// `pci_id` as CUDA has it, "0000:1B:00.0"; empty: no device, nothing changes. `root`: where the
  /// machine's file system is mounted.
  explicit NearDevice(const std::string& pci_id, const std::string& root = "");
  ~NearDevice();
  NearDevice(const NearDevice&) = delete;
  NearDevice& operator=(const NearDevice&) = delete;

  /// "NUMA node 1", "not near NUMA node 1: no core of it is allowed" or "NUMA node unknown".
  const std::string& text() const { return text_; }

 private:
  std::string text_ = kNumaUnknown;
  bool moved_ = false;
  cpu_set_t before_;
};

// The words of GpuReading for NVML's numbers.

inline constexpr std::array kComputeModes{"default", "exclusive_thread", "prohibited",
                                          "exclusive_process"};
inline constexpr std::array kFabricStates{"not_supported", "not_started", "in_progress",
                                          "completed"};
inline constexpr std::array kFabricHealth{"not_supported", "healthy", "unhealthy",
                                          "limited_capacity"};
inline constexpr std::array kRecoveryActions{"none",      "reset",           "reboot",
                                             "drain_p2p", "drain_and_reset", "recover_imex_domain"};

/// The number itself where it has no word yet.
template <std::size_t N>
std::string word_of(const std::array<const char*, N>& words, std::uint64_t number) {
  return number < N ? words[number] : fmt::format("{}", number);
}

}  // namespace shakedown::node

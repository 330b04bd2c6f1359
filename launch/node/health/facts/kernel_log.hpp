// What the kernel reported of GPUs and NVSwitches: XIDs, SXids, and the driver's other errors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shakedown::node {

enum class KernelEventKind {
  xid,             // of a GPU
  sxid,            // of an NVSwitch
  off_the_bus,     // "... has fallen off the bus"
  init_failed,     // "RmInitAdapter failed!"
  probe_failed,    // the driver did not take a device, when it was loaded or bound
  driver_loading,  // everything before is of an earlier load
  not_understood   // an error of the driver, or an XID, in a form that is not known
};

struct KernelEvent {
  double age_s = 0;
  KernelEventKind kind = KernelEventKind::xid;
  std::string pci_id;  // "0000:3b:00", in small letters, without the function; empty: not named
  int code = 0;        // of an XID or SXid
  std::string text;    // after the code; of what has no code all of it; the first 1,000 bytes
  std::uint64_t sequence = 0;  // the kernel's number of the message
};

struct KernelLog {
  std::vector<KernelEvent> events;  // in their order
  double reaches_back_s = 0;        // the age of the oldest message, of any program
  std::uint64_t first_sequence = 0, last_sequence = 0;

  /// Whether it has all messages since the boot: the kernel counts them from 0.
  bool is_whole() const { return first_sequence == 0; }
};
inline constexpr const char* kKernelLogFact = "kernel_log";  // a log's name among the facts

/// The events among the kernel's messages, in `file` as /dev/kmsg has them, `uptime_s` after the
/// boot. None where they cannot be read, or none of them is a message of a kernel.
std::optional<KernelLog> read_kernel_log(const std::string& file, double uptime_s);

/// The XIDs that the kernel reports of a GPU.
class KernelWatch {
 public:
  /// `root`: where the machine's file system is mounted.
  explicit KernelWatch(std::string pci_id, std::string root = "");

  /// Of the GPU, of the node's NVSwitches and of no named device, since the last call or the
  /// construction. None where the messages cannot be read, or were overwritten before they were.
  std::optional<std::vector<KernelEvent>> events();

 private:
  std::string kmsg() const { return root_ + "/dev/kmsg"; }

  std::string pci_id_, root_;
  double start_s_;                     // of the watch, by the uptime
  std::optional<std::uint64_t> last_;  // number of the last message that is known
};

/// Whether "0000:1b:00" and "00000000:1B:00.0" are one device: functions and leading zeros aside.
bool same_pci_device(const std::string& one, const std::string& other);

}  // namespace shakedown::node

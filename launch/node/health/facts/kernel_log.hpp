// What the kernel reported of GPUs (XID) and NVSwitches (SXid).
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace shakedown::node {

struct KernelEvent {
  double age_s = 0;
  bool nvswitch = false;
  std::string pci_id;
  int code = 0;
  std::string text;  // after the code
};

/// The events among the kernel's messages, in `file` as /dev/kmsg has them, `uptime_s` after the
/// boot. None where they cannot be read.
std::optional<std::vector<KernelEvent>> read_kernel_events(const std::string& file,
                                                           double uptime_s);

}  // namespace shakedown::node

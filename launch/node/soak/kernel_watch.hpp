// The XIDs that the kernel reports of this rank's GPU while a soak runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/node/health/facts/kernel_log.hpp"

namespace shakedown::node {

class KernelWatch {
 public:
  /// `root`: where the machine's file system is mounted.
  explicit KernelWatch(std::string pci_id, std::string root = "");

  /// Of the GPU, of the node's NVSwitches and of no named device, since the last call or the
  /// construction. None where the messages cannot be read, or were overwritten before they were.
  std::optional<std::vector<KernelEvent>> events();

 private:
  double uptime_s() const;
  std::string kmsg() const { return root_ + "/dev/kmsg"; }

  std::string pci_id_, root_;
  double start_s_;                     // of the watch, by the uptime
  std::optional<std::uint64_t> last_;  // number of the last message that is known
};

}  // namespace shakedown::node

// The XIDs that the kernel reports of this rank's GPU while a soak runs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/node/health/facts/kernel_log.hpp"

namespace shakedown::node {

/// Whether "0000:1b:00" and "00000000:1B:00.0" are one device: functions and leading zeros aside.
bool same_pci_device(const std::string& one, const std::string& other);

class KernelWatch {
 public:
  /// `root`: where the machine's file system is mounted.
  explicit KernelWatch(std::string pci_id, std::string root = "");

  /// Of the GPU and of the node's NVSwitches, since the last call or the construction; none where
  /// the messages cannot be read.
  std::optional<std::vector<KernelEvent>> events();

 private:
  double uptime_s() const;
  std::string kmsg() const { return root_ + "/dev/kmsg"; }

  std::string pci_id_, root_;
  double newest_s_;  // the time of the newest message that is known
};

}  // namespace shakedown::node

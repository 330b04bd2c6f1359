// The path that NCCL used: algorithm, protocol, channels and transports, from its own log.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>

namespace shakedown::collectives {

/// The choice for one operation. NCCL logs it on rank 0 only, and not for send, recv or symmetric
/// kernels.
struct PathChoice {
  std::string algorithm;  // "RING"
  std::string protocol;   // "SIMPLE"
  int channels = 0;
  bool operator==(const PathChoice&) const = default;
};

/// From lines of NCCL's log.
struct PathLines {
  std::optional<PathChoice> last;    // of the last operation in them
  std::set<std::string> transports;  // "P2P/CUMEM", "SHM/direct/direct", "NET/IB"
};
PathLines parse_path(const std::string& log);

/// NCCL writes a line per operation, which adds to its latency: not for figures to be compared.
class NcclPath {
 public:
  /// Where `on`, makes NCCL write its log to a file. To be called before NCCL is first used.
  explicit NcclPath(bool on);
  ~NcclPath();
  NcclPath(const NcclPath&) = delete;
  NcclPath& operator=(const NcclPath&) = delete;

  /// Lines of the operations since the last call; the transports are all that were ever logged.
  PathLines read();

 private:
  std::string file_;
  std::size_t read_ = 0;  // bytes
  std::set<std::string> transports_;
};

}  // namespace shakedown::collectives

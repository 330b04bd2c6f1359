// The path that NCCL took: algorithm, protocol, channels and transports, from its own log.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>

namespace shakedown::collectives {

/// Of one operation. NCCL says it on rank 0 alone, and not of send and recv or symmetric kernels.
struct PathChoice {
  std::string algorithm;  // "RING"
  std::string protocol;   // "SIMPLE"
  int channels = 0;
  bool operator==(const PathChoice&) const = default;
};

/// What lines of NCCL's log say.
struct PathLines {
  std::optional<PathChoice> last;    // of the last operation in them
  std::set<std::string> transports;  // "P2P/CUMEM", "SHM/direct/direct", "NET/IB"
};
PathLines parse_path(const std::string& log);

/// Writing a line for each operation takes NCCL some time: not for figures that are to be compared.
class NcclPath {
 public:
  /// Where `on`, has NCCL write its log to a file: before NCCL is first called in this process.
  explicit NcclPath(bool on);
  ~NcclPath();
  NcclPath(const NcclPath&) = delete;
  NcclPath& operator=(const NcclPath&) = delete;

  /// Of what was done since the last call; the transports are all that were ever told.
  PathLines read();

 private:
  std::string file_;
  std::size_t read_ = 0;  // bytes
  std::set<std::string> transports_;
};

}  // namespace shakedown::collectives

#include "collectives/perf/nccl_path.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>

#include "common/error.hpp"

namespace shakedown::collectives {

PathLines parse_path(const std::string& log) {
  // enqueue.cc and transport/*.cc of NCCL 2.24 to 2.30
  static const std::regex operation(
      R"(Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\})");
  static const std::regex transport(R"(Channel \d+.* via (P2P/[^\s\[]+|SHM/\S+|NET/[^\s/]+))");
  PathLines lines;
  for (std::sregex_iterator m(log.begin(), log.end(), operation), end; m != end; ++m)
    lines.last = {(*m)[1], (*m)[2], std::stoi((*m)[4]) - std::stoi((*m)[3]) + 1};
  for (std::sregex_iterator m(log.begin(), log.end(), transport), end; m != end; ++m)
    lines.transports.insert((*m)[1]);
  return lines;
}

NcclPath::NcclPath(bool on) {
  if (!on) return;
  std::string name = std::filesystem::temp_directory_path() / "shakedown-nccl.XXXXXX";
  const int file = mkstemp(name.data());  // a name that nobody can have foreseen
  if (file < 0)
    throw InconclusiveError(
        fmt::format("--path: cannot create {}: {}", name, std::strerror(errno)));
  close(file);
  file_ = name;
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_SUBSYS", "INIT,P2P,SHM,NET,TUNING", 1);
  setenv("NCCL_DEBUG_FILE", file_.c_str(), 1);
}

NcclPath::~NcclPath() {
  std::error_code ignored;
  if (!file_.empty()) std::filesystem::remove(file_, ignored);
}

PathLines NcclPath::read() {
  if (file_.empty()) return {};
  std::ifstream in(file_, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(read_));
  const std::string log{std::istreambuf_iterator<char>(in), {}};
  read_ += log.size();
  PathLines lines = parse_path(log);
  transports_.merge(lines.transports);
  lines.transports = transports_;
  return lines;
}

}  // namespace shakedown::collectives

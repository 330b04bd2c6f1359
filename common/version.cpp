#include "common/version.hpp"

#include <fmt/format.h>

#include <set>

#include "common/backend.hpp"
#include "common/mpi_session.hpp"
#include "git_revision.hpp"

namespace shakedown {
namespace {

void add_line(std::string& text, const std::string& what, const std::string& value) {
  text += fmt::format("{:14} {}\n", what, value);
}

/// "9.1.0", or "9.1.0 (built with 9.0.0)".
void add_library(std::string& text, const std::string& what, const std::string& running,
                 const std::string& built) {
  add_line(text, what,
           running == built ? built : fmt::format("{} (built with {})", running, built));
}

}  // namespace

std::string git_revision() { return SHAKEDOWN_GIT_REVISION; }

std::string version_text(const std::string& program) {
  std::vector<const char*> backends;
  if (cpu::built()) backends.push_back("cpu");
  if (gpu::built()) backends.push_back("gpu");
  std::string text = fmt::format("{} (Shakedown) {}\n", program, SHAKEDOWN_VERSION);
  add_line(text, "revision", git_revision());
  add_line(text, "backends", fmt::format("{}", fmt::join(backends, ", ")));
  if (gpu::built()) add_line(text, "architectures", SHAKEDOWN_CUDA_ARCHS);
  std::string mpi = MpiSession::library_version();
  if (const auto v = mpi.find(" v"); v != std::string::npos)
    mpi.erase(v + 1, 1);  // Open MPI v4.1.4
  add_library(text, "mpi", mpi, MpiSession::build_version());
  for (const BackendKind kind : {BackendKind::gpu, BackendKind::cpu})
    for (const LibraryVersion& library : library_versions(kind))
      add_library(text, library.name, library.running, library.built);
  return text;
}

std::string differing_versions(const std::vector<std::string>& hosts,
                               const std::vector<Versions>& by_rank) {
  std::set<std::string> seen;
  std::vector<std::string> others;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    std::vector<std::string> differences;
    for (std::size_t i = 0; i < by_rank[0].size(); ++i)
      if (by_rank[r][i] != by_rank[0][i])
        differences.push_back(fmt::format("{} {} instead of {}", by_rank[r][i].first,
                                          by_rank[r][i].second, by_rank[0][i].second));
    if (!differences.empty() && seen.insert(hosts[r]).second)
      others.push_back(
          fmt::format("rank {} on {} ({})", r, hosts[r], fmt::join(differences, ", ")));
  }
  if (others.empty()) return "";
  return fmt::format("versions differ from those of rank 0 on {}: {}", hosts[0],
                     fmt::join(others, ", "));
}

}  // namespace shakedown

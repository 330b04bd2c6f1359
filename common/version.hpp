// Which version of what this is, for --version and the record.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace shakedown {

/// The commit this was built from, followed by "-dirty" when the tree had changes.
std::string git_revision();

/// Name and version.
using Versions = std::vector<std::pair<std::string, std::string>>;

/// What --version prints: version, revision, backends, CUDA architectures, libraries. Needs neither
/// a device nor a started MPI.
std::string version_text(const std::string& program);

/// "versions differ from those of rank 0 on n1: rank 2 on n2 (driver 570.86 instead of 580.65)" of
/// the first rank of each host that has other versions than rank 0; "" where all are the same.
std::string differing_versions(const std::vector<std::string>& hosts,
                               const std::vector<Versions>& by_rank);

}  // namespace shakedown

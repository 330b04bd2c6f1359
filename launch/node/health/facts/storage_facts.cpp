// File systems: space and inodes.
#include <sys/statvfs.h>
#include <nlohmann/json.hpp>

#include "launch/node/health/facts/host_facts.hpp"

namespace shakedown::node {
namespace {

/// A server that does not answer blocks this for ever: read_facts has a deadline.
Json space_at(const std::string& path) {
  struct statvfs found {};
  if (statvfs(path.c_str(), &found) != 0) return {};
  const double block = static_cast<double>(found.f_frsize);
  return {{"total_bytes", block * static_cast<double>(found.f_blocks)},
          {"free_bytes", block * static_cast<double>(found.f_bavail)},
          {"inodes", found.f_files},  // 0 where the file system does not count them
          {"free_inodes", found.f_favail}};
}

Json read_shm(const FactSource& source) { return space_at(source.root + "/dev/shm"); }
Json read_tmp(const FactSource& source) { return space_at(source.root + "/tmp"); }
Json read_current(const FactSource&) { return space_at("."); }

}  // namespace

std::vector<Fact> storage_facts() {
  return {
      {"shm", false, read_shm}, {"tmp", false, read_tmp}, {"current_folder", false, read_current}};
}

}  // namespace shakedown::node

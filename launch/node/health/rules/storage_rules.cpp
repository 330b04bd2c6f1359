// Space and inodes of the file systems that programs write to.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launch/node/health/rules/host_rules.hpp"

namespace shakedown::node {
namespace {

constexpr double kMiB = 0x1p20, kGiB = 0x1p30;
// NCCL and MPI of eight ranks need some; loaders in other frameworks 8 GB.
constexpr double kLeastShared = 64 * kMiB, kUsualShared = 8e9;
constexpr double kLeastFree = 16 * kMiB, kUsualFree = kGiB;
constexpr double kLowInodes = 0.01;  // share that is free

std::vector<Judgement> judge_shm(const Json& facts) {
  const Json& shm = fact_of(facts, "shm");
  if (shm.is_null()) return {not_known("/dev/shm cannot be read")};
  const double total = shm.at("total_bytes"), free = shm.at("free_bytes");
  const std::string cause =
      fmt::format("/dev/shm: {:.1f} of {:.1f} GiB free", free / kGiB, total / kGiB);
  const Json& container = fact_of(facts, "container");
  const char* larger = container.is_null() || container == "none seen"
                           ? "mount -o remount,size=8g /dev/shm"
                           : "docker run --ipc=host (or --shm-size=8g)";
  if (free < kLeastShared)
    return {failure(Class::config, cause + ", ranks of a node cannot share memory",
                    total < kUsualShared ? larger : "remove what is left over in /dev/shm")};
  if (total < kUsualShared) return {warning(Class::config, cause, larger)};
  if (free < 0.1 * total)
    return {warning(Class::environment, cause, "remove what is left over in /dev/shm")};
  return {passed("/dev/shm: at least 8 GB, at least 10 % of it free")};
}

std::vector<Judgement> judge_space(const Json& facts, const char* fact, const std::string& where) {
  const Json& space = fact_of(facts, fact);
  if (space.is_null()) return {not_known(where + " cannot be read")};
  const double free = space.at("free_bytes");
  const double inodes = space.at("inodes"), free_inodes = space.at("free_inodes");
  const std::string action = "remove files from " + where;
  if (free < kLeastFree)
    return {failure(Class::environment, fmt::format("{}: {:.0f} MiB free", where, free / kMiB),
                    action)};
  if (inodes > 0 && free_inodes == 0)
    return {failure(Class::environment, where + ": no inode is free", action)};
  if (free < kUsualFree)
    return {warning(Class::environment, fmt::format("{}: {:.0f} MiB free", where, free / kMiB),
                    action)};
  if (inodes > 0 && free_inodes < kLowInodes * inodes)
    return {warning(Class::environment,
                    fmt::format("{}: {:.1f} % of inodes free", where, 100 * free_inodes / inodes),
                    action)};
  return {passed(where + ": at least 1 GiB free, and inodes")};
}

std::vector<Judgement> judge_tmp(const Json& facts) { return judge_space(facts, "tmp", "/tmp"); }
std::vector<Judgement> judge_current(const Json& facts) {
  return judge_space(facts, "current_folder", "the current folder");
}

}  // namespace

std::vector<HostRule> storage_rules() {
  return {{"shared-memory", "/dev/shm: size and what is free", judge_shm},
          {"tmp", "/tmp: space and inodes", judge_tmp},
          {"current-folder", "the current folder: space and inodes", judge_current}};
}

}  // namespace shakedown::node

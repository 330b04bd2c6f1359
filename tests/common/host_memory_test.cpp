// How much memory there is by made-up files of /proc and /sys.
#include "common/host.hpp"

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/catch.hpp"

namespace shakedown {
namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;

/// A machine of 64 GiB, 60 of them available.
struct Machine {
  explicit Machine(const std::string& groups) {
    write("/proc/meminfo", "MemTotal: 67108864 kB\nMemFree: 1 kB\nMemAvailable: 62914560 kB\n");
    write("/proc/self/cgroup", groups);
  }
  ~Machine() { std::filesystem::remove_all(root); }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  }
  void group(const std::string& folder, std::size_t limit_gib, std::size_t used_gib) const {
    write("/sys/fs/cgroup" + folder + "/memory.max", std::to_string(limit_gib * kGiB) + "\n");
    write("/sys/fs/cgroup" + folder + "/memory.current", std::to_string(used_gib * kGiB) + "\n");
  }
  void check(std::size_t free_gib, std::size_t total_gib) const {
    const MemoryInfo memory = host_memory(root);
    CHECK(memory.free_bytes == free_gib * kGiB);
    CHECK(memory.total_bytes == total_gib * kGiB);
  }

  std::string root = "host_memory_test_folder";
};

}  // namespace

TEST_CASE("without a control group's limit the memory is the machine's", "[host_memory]") {
  const Machine machine("0::/user.slice\n");
  machine.check(60, 64);
  machine.write("/sys/fs/cgroup/user.slice/memory.max", "max\n");
  machine.write("/sys/fs/cgroup/user.slice/memory.current", "123456\n");
  machine.check(60, 64);
}

TEST_CASE("the least of a v2 group and those above it bounds the memory", "[host_memory]") {
  const Machine machine("0::/slurm/job_7/step_0\n");
  machine.group("/slurm/job_7", 16, 6);  // whose step has no limit of its own
  machine.check(10, 16);
  machine.group("/slurm/job_7/step_0", 8, 1);
  machine.check(7, 8);
  machine.group("/slurm", 100, 98);
  machine.check(2, 8);
  machine.write("/sys/fs/cgroup/slurm/memory.stat",
                "anon 1\ninactive_file " + std::to_string(3 * kGiB) + "\nactive_file 7\n");
  machine.check(5, 8);  // the kernel drops such pages
  machine.group("/slurm/job_7/step_0", 8, 9);
  machine.check(0, 8);
}

TEST_CASE("a container sees its group at the root", "[host_memory]") {
  const Machine machine("0::/../outside\n");
  machine.group("", 4, 1);
  machine.check(3, 4);
}

TEST_CASE("v1 groups bound the memory as well", "[host_memory]") {
  const Machine machine("9:name=systemd:/\n4:cpu,memory:/slurm/uid_0\n0::/\n");
  const std::string folder = "/sys/fs/cgroup/memory/slurm/uid_0";
  machine.write(folder + "/memory.usage_in_bytes", std::to_string(kGiB));
  machine.write(folder + "/memory.limit_in_bytes", "9223372036854771712\n");  // none
  machine.check(60, 64);
  machine.write(folder + "/memory.limit_in_bytes", std::to_string(5 * kGiB));
  machine.check(4, 5);
  machine.write(folder + "/memory.stat", "inactive_file 1\ntotal_inactive_file 1073741824\n");
  machine.check(5, 5);
}

}  // namespace shakedown

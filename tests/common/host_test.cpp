// How much memory the host has by made-up files of /proc and /sys; its reductions.
#include "common/host.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/error.hpp"
#include "common/mpi_exchange.hpp"
#include "common/numbers.hpp"
#include "tests/catch.hpp"
#include "tests/support/files.hpp"

namespace shakedown {
namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;

/// A machine of 64 GiB, 60 of them available.
struct Machine {
  explicit Machine(const std::string& groups) {
    write("/proc/meminfo", "MemTotal: 67108864 kB\nMemFree: 1 kB\nMemAvailable: 62914560 kB\n");
    write("/proc/self/cgroup", groups);
  }

  void write(const std::string& path, const std::string& text) const { root.write(path, text); }
  void group(const std::string& folder, std::size_t limit_gib, std::size_t used_gib) const {
    write("/sys/fs/cgroup" + folder + "/memory.max", std::to_string(limit_gib * kGiB) + "\n");
    write("/sys/fs/cgroup" + folder + "/memory.current", std::to_string(used_gib * kGiB) + "\n");
  }
  void check(std::size_t free_gib, std::size_t total_gib) const {
    const MemoryInfo memory = host_memory(root.path);
    CHECK(memory.free_bytes == free_gib * kGiB);
    CHECK(memory.total_bytes == total_gib * kGiB);
  }

  test::TempFolder root;
};

constexpr std::size_t kElements = 2500;  // some blocks of the computation, and no multiple of one

/// Three inputs of small numbers, each reduction, the result in place of the last input.
template <class T>
void check_type(DataType type) {
  const auto value = [](std::size_t input, std::size_t i) {
    return static_cast<T>((i + 2 * input) % 5 + 1);
  };
  for (const Reduction op : all_reductions()) {
    std::array<std::vector<T>, 3> inputs;
    std::vector<T> expected;
    for (std::size_t i = 0; i < kElements; ++i) {
      const std::array<T, 3> v{value(0, i), value(1, i), value(2, i)};
      for (std::size_t k = 0; k < 3; ++k) inputs[k].push_back(v[k]);
      const T sum = static_cast<T>(v[0] + v[1] + v[2]);
      expected.push_back(op == Reduction::sum    ? sum
                         : op == Reduction::avg  ? static_cast<T>(sum / T{3})
                         : op == Reduction::prod ? static_cast<T>(v[0] * v[1] * v[2])
                         : op == Reduction::min  ? std::min({v[0], v[1], v[2]})
                                                 : std::max({v[0], v[1], v[2]}));
    }
    const std::array<const void*, 3> from{inputs[0].data(), inputs[1].data(), inputs[2].data()};
    reduce_elements(op, from, {inputs[2].data(), kElements, type, Place::host});
    CAPTURE(name_of(type), name_of(op));
    CHECK(inputs[2] == expected);
  }
}

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

// Reductions on the host against what numbers of each type must give.

TEST_CASE("every type and reduction of three inputs", "[host_reduction]") {
  check_type<double>(DataType::float64);
  check_type<float>(DataType::float32);
  check_type<std::int64_t>(DataType::int64);
  check_type<std::int32_t>(DataType::int32);
  check_type<std::int8_t>(DataType::int8);
  check_type<std::uint64_t>(DataType::uint64);
  check_type<std::uint32_t>(DataType::uint32);
  check_type<std::uint8_t>(DataType::uint8);
}

TEST_CASE("16-bit floating-point sums are rounded once", "[host_reduction]") {
  const bool half = GENERATE(true, false);
  const float least = half ? 0x1p-11F : 0x1p-8F;  // half of the step above 1: alone it is lost
  const auto bits = [&](float x) { return half ? float_to_float16(x) : float_to_bfloat16(x); };
  const std::vector<std::uint16_t> one(kElements, bits(1));
  const std::vector<std::uint16_t> little(kElements, bits(least));
  std::vector<std::uint16_t> sum(kElements);
  const View to(sum.data(), kElements, half ? DataType::float16 : DataType::bfloat16, Place::host);
  reduce_elements(Reduction::sum,
                  std::array<const void*, 3>{one.data(), little.data(), little.data()}, to);
  CHECK(sum == std::vector<std::uint16_t>(kElements, bits(1 + 2 * least)));
  divide_elements(to, 2);
  CHECK(sum == std::vector<std::uint16_t>(kElements, bits(0.5F + least)));
}

}  // namespace shakedown

#include "collectives/perf/nccl_path.hpp"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "tests/catch.hpp"

namespace shakedown::collectives {

TEST_CASE("NCCL's log says algorithm, protocol, channels and transports", "[path]") {
  const PathLines lines = parse_path(
      "vm:12:34 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
      "vm:12:34 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n"
      "vm:12:34 [0] NCCL INFO Channel 02 : 0[0] -> 1[1] via SHM/direct/direct\n"
      "vm:12:34 [0] NCCL INFO Channel 00/0 : 1[1] -> 8[0] [send] via NET/IB/3/GDRDMA\n"
      "vm:12:34 [0] NCCL INFO AllReduce: 8 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}\n"
      "vm:12:34 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE "
      "channel{Lo..Hi}={0..23}\n");
  CHECK(lines.last == PathChoice{"RING", "SIMPLE", 24});
  CHECK(lines.transports ==
        std::set<std::string>{"P2P/CUMEM", "P2P/CUMEM/read", "SHM/direct/direct", "NET/IB"});
}

TEST_CASE("a log that says nothing of it gives nothing", "[path]") {
  const PathLines lines = parse_path("vm:12:34 [0] NCCL INFO Bootstrap: Using eth0\n");
  CHECK_FALSE(lines.last);
  CHECK(lines.transports.empty());
}

TEST_CASE("NCCL's log goes to a file that nobody else can have made, and goes away", "[path]") {
  std::string first;
  {
    const NcclPath a(true);
    first = std::getenv("NCCL_DEBUG_FILE");
    const NcclPath b(true);
    CHECK(first != std::getenv("NCCL_DEBUG_FILE"));
    struct stat status {};
    REQUIRE(stat(first.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
  }
  CHECK_FALSE(std::filesystem::exists(first));
  for (const char* name : {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"}) unsetenv(name);
}

}  // namespace shakedown::collectives

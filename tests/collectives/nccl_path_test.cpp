#include "collectives/nccl_path.hpp"

#include "tests/catch.hpp"

namespace shakedown {

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

}  // namespace shakedown

#include "training/throughput.hpp"

#include "common/nvml.hpp"
#include "tests/catch.hpp"

namespace shakedown {

TEST_CASE("NVLink's counters are believed where every rank's can be read and moved",
          "[throughput]") {
  CHECK(nvlink_tells({101, 102}, {100, 100}));
  CHECK(nvlink_tells({0, 0}, {0, 0}));      // none exchanges nothing
  CHECK(nvlink_tells({3, 100}, {0, 100}));  // a rank that only receives acknowledges
  CHECK_FALSE(nvlink_tells({101}, {100}));  // of one rank alone
  CHECK_FALSE(nvlink_tells({101, kUnknown}, {100, 100}));
  CHECK_FALSE(nvlink_tells({101, 0}, {100, 100}));  // by PCIe or the host
}

}  // namespace shakedown

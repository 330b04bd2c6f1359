// Verified copies of every backend: sound ones pass, a flipped bit is found on its way.
#include "launch/node/soak/transfer_load.hpp"

#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown::node {
namespace {
constexpr CopySettings kSmall{std::size_t{1} << 16, 3};
}

TEST_CASE("copies arrive as they were sent", "[copies][kernels]") {
  const auto device = test::open_device(GENERATE(from_range(test::backends())));
  const auto copies = make_copy_load(*device, {}, kSmall);
  std::vector<Mismatch> found;
  LoadCount count;
  for (int i = 0; i < 3; ++i) count += copies->run(0, found);
  CHECK(found.empty());
  CHECK(count.checked == 9);
  CHECK(count.wrong == 0);
  CHECK(count.bytes == 9. * kSmall.bytes);
  CHECK(copies->bytes() == std::array{3. * kSmall.bytes, 3. * kSmall.bytes, 3. * kSmall.bytes});
}

TEST_CASE("a bit flipped by a copy is found, and on which way", "[copies]") {
  const auto device = test::open_device(GENERATE(from_range(test::backends())));
  const CopyWay way =
      GENERATE(CopyWay::host_to_device, CopyWay::device_to_device, CopyWay::device_to_host);
  const int times = GENERATE(-1, 1);
  CAPTURE(name_of(device->kind()), name_of(way), times);
  const auto copies = inject(CopyFault{way, 77, 5, times}, *device, {}, kSmall);
  std::vector<Mismatch> found;
  const LoadCount count = copies->run(0, found);
  CHECK(count.wrong == 1);
  REQUIRE(found.size() == 1);
  CHECK(found[0].index == 77 * 8);
  CHECK((*found[0].expected ^ *found[0].found) == 1U << 5);
  CHECK(found[0].reproduced == (times < 0 ? 3 : 0));
  CHECK_THAT(found[0].where, ContainsSubstring(name_of(way)));
}

TEST_CASE("what an earlier copy left does not pass for a copy", "[copies]") {
  struct Idle final : CopyLoad {
    using CopyLoad::CopyLoad;
    bool idle = false;
    void copy(CopyWay way, View to, ConstView from, Stream& stream) override {
      if (!idle) CopyLoad::copy(way, to, from, stream);
    }
  };
  const auto device = test::open_device(GENERATE(from_range(test::backends())));
  Idle copies(*device, {}, kSmall);
  std::vector<Mismatch> found;
  CHECK(copies.run(0, found).wrong == 0);
  copies.idle = true;
  CHECK(copies.run(0, found).wrong == 1);
}

}  // namespace shakedown::node

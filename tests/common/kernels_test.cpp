// The elementwise kernels of every backend against plain arithmetic.
#include "common/kernels.hpp"

#include <bit>
#include <chrono>
#include <cmath>
#include <thread>

#include "common/backend.hpp"
#include "common/mpi_session.hpp"
#include "common/numbers.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown {
namespace {

struct Rig : test::DeviceRig {
  explicit Rig(BackendKind kind) : DeviceRig(kind), kernels(device->kernels()) {}
  const Kernels& kernels;
};

constexpr std::uint64_t kMs = 1000000;

/// A link that is free.
struct LinkRig : Rig {
  explicit LinkRig(BackendKind kind) : Rig(kind), link(*device, sizeof(DuplexTime)) {
    device->zero(link.data(), link.bytes(), *stream);
  }
  /// Occupies it; returns until when.
  DuplexTime occupied(const DuplexTime& each_way) {
    kernels.occupy_link(static_cast<DuplexTime*>(link.data()), each_way, *stream);
    return download<DuplexTime>(*device, *stream, link.data(), 1).front();
  }
  const Buffer link;
};

}  // namespace

TEST_CASE("fill, convert, scale and accumulate", "[kernels]") {
  Rig rig(GENERATE(from_range(test::backends())));
  const std::size_t count = GENERATE(1, 5, 1000, 4099);
  const auto x = test::random_values(count, 9, -100, 100);
  const Buffer from = rig.of(x);
  const Buffer to(*rig.device, count * 4);
  const View wide = to.view(DataType::float32);

  rig.kernels.fill(wide, 2.5, *rig.stream);
  CHECK(rig.floats(to, count) == std::vector<float>(count, 2.5F));

  for (DataType type : {DataType::float16, DataType::bfloat16}) {
    const Buffer narrow(*rig.device, count * 2);
    rig.kernels.convert(from.view(DataType::float32), narrow.view(type), *rig.stream);
    const auto bits = download<std::uint16_t>(*rig.device, *rig.stream, narrow.data(), count);
    const bool half = type == DataType::float16;
    rig.kernels.convert(narrow.view(type), wide, *rig.stream);
    const auto back = rig.floats(to, count);
    int wrong = 0;
    for (std::size_t i = 0; i < count; ++i) {
      wrong += bits[i] != (half ? float_to_float16(x[i]) : float_to_bfloat16(x[i]));
      wrong += back[i] != (half ? float16_to_float(bits[i]) : bfloat16_to_float(bits[i]));
    }
    CHECK(wrong == 0);
  }

  rig.kernels.accumulate(wide, from.view(DataType::float32), true, *rig.stream);
  CHECK(rig.floats(to, count) == x);
  rig.kernels.accumulate(wide, from.view(DataType::float32), false, *rig.stream);
  rig.kernels.scale(wide, wide, 0.25F, *rig.stream);
  auto half = x;
  for (float& v : half) v /= 2;
  CHECK(rig.floats(to, count) == half);
}

TEST_CASE("stamps are one contributor's each, and their average is no other's", "[kernels]") {
  Rig rig(GENERATE(from_range(test::backends())));
  const DataType type = GENERATE(DataType::float32, DataType::float16, DataType::bfloat16);
  const std::size_t count = GENERATE(1, 64, 4099);
  const Stamps stamps{.contributors = GENERATE(1U, 3U, 4096U), .first = GENERATE(0U, 640U)};
  const Buffer narrow(*rig.device, count * size_of(type));
  const Buffer wide(*rig.device, count * sizeof(float));
  const Buffer errors_at(*rig.device, sizeof(StampErrors));
  const auto stamped_by = [&](std::uint32_t contributor) {
    rig.kernels.stamp(narrow.view(type), stamps, contributor, *rig.stream);
    rig.kernels.convert(narrow.view(type), wide.view(DataType::float32), *rig.stream);
    return rig.floats(wide, count);
  };
  const auto errors_of = [&](const std::vector<float>& values) {
    upload<float>(*rig.device, *rig.stream, wide.data(), values);
    rig.kernels.convert(wide.view(DataType::float32), narrow.view(type), *rig.stream);
    const std::vector<StampErrors> none(1);
    upload<StampErrors>(*rig.device, *rig.stream, errors_at.data(), none);
    rig.kernels.check_stamps(narrow.view(type), stamps, static_cast<StampErrors*>(errors_at.data()),
                             *rig.stream);
    return download<StampErrors>(*rig.device, *rig.stream, errors_at.data(), 1).front();
  };
  std::vector<float> average(count);
  int wrong = 0;
  const std::vector<float> first = stamped_by(0);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t element = stamps.first + i;
    const float stamp = stamp_of(element);
    wrong += first[i] != (element % stamps.contributors == 0 ? stamp : 0) ? 1 : 0;
    average[i] = stamp / static_cast<float>(stamps.contributors);
  }
  CHECK(wrong == 0);
  CHECK(errors_of(average).wrong == 0);
  for (const float bad : {0.0F, 2 * average[count - 1], float{NAN}, float{INFINITY}}) {
    std::vector<float> changed = average;
    changed[count - 1] = bad;
    const StampErrors found = errors_of(changed);
    CHECK(found.wrong == 1);
    CHECK(found.first >> 32 == stamps.first + count - 1);
    if (std::isfinite(bad))
      CHECK(std::bit_cast<float>(static_cast<std::uint32_t>(found.first & 0xFFFFFFFFU)) ==
            Approx(bad).epsilon(0.01));
    changed[0] = bad;
    CHECK(errors_of(changed).first >> 32 == stamps.first);
  }
}

TEST_CASE("one infinite or undefined gradient anywhere is seen", "[kernels]") {
  Rig rig(GENERATE(from_range(test::backends())));
  const std::size_t count = 1037;
  const std::size_t where = GENERATE(0, 511, 1036);
  const float bad = GENERATE(INFINITY, -INFINITY, NAN);
  auto x = test::random_values(count, 3);
  const auto finite = [&](ConstView values) {
    const Buffer flag = test::to_device<std::int32_t>(*rig.device, *rig.stream, {1});
    rig.kernels.check_finite(values, static_cast<std::int32_t*>(flag.data()), *rig.stream);
    return download<std::int32_t>(*rig.device, *rig.stream, flag.data(), 1).front();
  };
  CHECK(finite(rig.of(x).view(DataType::float32)) == 1);
  x[where] = bad;
  const Buffer dirty = rig.of(x);
  CHECK(finite(dirty.view(DataType::float32)) == 0);
  const Buffer half(*rig.device, count * 2);
  rig.kernels.convert(dirty.view(DataType::float32), half.view(DataType::float16), *rig.stream);
  CHECK(finite(half.view(DataType::float16)) == 0);
}

// Not run but by tests/gpu/run, which sees by it that compute-sanitizer looks at these kernels.
GPU_TEST_CASE("a kernel writes past its buffer", "[.overrun]") {
  Rig rig(BackendKind::gpu);
  const Buffer four(*rig.device, 4 * sizeof(float));
  rig.kernels.fill({four.data(), 64, DataType::float32, Place::device}, 1, *rig.stream);
  rig.stream->synchronize();
}

TEST_CASE("a link is busy for what is needed, each way, after what came before", "[kernels]") {
  LinkRig rig(GENERATE(from_range(test::backends())));
  const auto begin = rig.device->make_event();
  const auto end = rig.device->make_event();
  begin->record(*rig.stream);
  const DuplexTime first = rig.occupied({20 * kMs, 0});
  DuplexTime second = rig.occupied({10 * kMs, 5 * kMs});
  end->record(*rig.stream);
  rig.stream->synchronize();
  CHECK(first.receive == 0);
  CHECK(second.send >= first.send + 10 * kMs);
  CHECK(second.send == second.receive + 5 * kMs);  // both ways were free
  CHECK(end->milliseconds_since(*begin) >= 29.9);
  second.send += 50 * kMs;  // as by another stream: it is waited for
  upload<DuplexTime>(*rig.device, *rig.stream, rig.link.data(), std::span(&second, 1));
  CHECK(rig.occupied({10 * kMs, 0}).send == second.send + 10 * kMs);
}

GPU_TEST_CASE("the host does not wait for ever for a device", "[kernels]") {
  const auto device = gpu::make_device(test::session().local_rank(), 0.05);
  const auto stream = device->make_stream();
  const auto end = device->make_event();
  const Buffer link(*device, sizeof(DuplexTime));
  auto* const free_at = static_cast<DuplexTime*>(link.data());
  device->zero(link.data(), link.bytes(), *stream);
  stream->synchronize();

  device->kernels().occupy_link(free_at, {500 * kMs, 0}, *stream);
  CHECK_FALSE(stream->done());
  end->record(*stream);
  const auto late = ContainsSubstring("within 0.05 s (--timeout): it hangs");
  CHECK_THROWS_WITH(stream->synchronize(), late);
  CHECK_THROWS_WITH(end->synchronize(), late);
  CHECK_THROWS_WITH(download<DuplexTime>(*device, *stream, link.data(), 1), late);
  while (!end->done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  stream->synchronize();
  CHECK(stream->done());
}

}  // namespace shakedown

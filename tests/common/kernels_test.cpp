// The elementwise kernels of every backend against plain arithmetic.
#include "common/kernels.hpp"

#include <chrono>
#include <thread>

#include "common/backend.hpp"
#include "common/half.hpp"
#include "common/mpi_session.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown {
namespace {

struct Rig {
  explicit Rig(BackendKind kind)
      : device(test::open_device(kind)),
        stream(device->make_stream()),
        kernels(device->kernels()) {}

  std::vector<float> floats(const Buffer& buffer, std::size_t count) {
    return download<float>(*device, *stream, buffer.data(), count);
  }
  Buffer of(const std::vector<float>& values) { return test::to_device(*device, *stream, values); }

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  const Kernels& kernels;
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
    int wrong = 0;
    for (std::size_t i = 0; i < count; ++i)
      wrong +=
          bits[i] != (type == DataType::float16 ? float_to_float16(x[i]) : float_to_bfloat16(x[i]))
              ? 1
              : 0;
    CHECK(wrong == 0);
    rig.kernels.convert(narrow.view(type), wide, *rig.stream);
    const auto back = rig.floats(to, count);
    for (std::size_t i = 0; i < count; ++i)
      wrong += back[i] != (type == DataType::float16 ? float16_to_float(bits[i])
                                                     : bfloat16_to_float(bits[i]))
                   ? 1
                   : 0;
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
TEST_CASE("a kernel writes past its buffer", "[.overrun]") {
  for (BackendKind kind : test::backends()) {
    if (kind != BackendKind::gpu) continue;
    Rig rig(kind);
    const Buffer four(*rig.device, 4 * sizeof(float));
    rig.kernels.fill({four.data(), 64, DataType::float32, Place::device}, 1, *rig.stream);
    rig.stream->synchronize();
  }
}

TEST_CASE("a link is busy for what is needed, each way on its own", "[kernels]") {
  Rig rig(GENERATE(from_range(test::backends())));
  const Buffer link(*rig.device, sizeof(DuplexTime));
  auto* const free_at = static_cast<DuplexTime*>(link.data());
  rig.device->zero(link.data(), link.bytes(), *rig.stream);

  constexpr std::uint64_t kMs = 1000000;
  const auto begin = rig.device->make_event();
  const auto end = rig.device->make_event();
  begin->record(*rig.stream);
  rig.kernels.occupy_link(free_at, {20 * kMs, 0}, *rig.stream);
  const auto first = download<DuplexTime>(*rig.device, *rig.stream, link.data(), 1).front();
  rig.kernels.occupy_link(free_at, {10 * kMs, 5 * kMs}, *rig.stream);
  end->record(*rig.stream);
  const auto second = download<DuplexTime>(*rig.device, *rig.stream, link.data(), 1).front();
  CHECK(first.receive == 0);
  CHECK(second.send >= first.send + 10 * kMs);
  CHECK(second.send == second.receive + 5 * kMs);  // both ways were free
  CHECK(end->milliseconds_since(*begin) >= 29.9);
}

TEST_CASE("the host does not wait for ever for a device", "[kernels]") {
  if (!test::has(BackendKind::gpu)) return;
  const auto device = gpu::make_device(test::session().local_rank(), 0.05);
  const auto stream = device->make_stream();
  const auto end = device->make_event();
  const Buffer link(*device, sizeof(DuplexTime));
  auto* const free_at = static_cast<DuplexTime*>(link.data());
  device->zero(link.data(), link.bytes(), *stream);
  stream->synchronize();

  constexpr std::uint64_t kMs = 1000000;
  device->kernels().occupy_link(free_at, {500 * kMs, 0}, *stream);
  end->record(*stream);
  const auto late = ContainsSubstring("within 0.05 s (--timeout): it hangs");
  CHECK_THROWS_WITH(stream->synchronize(), late);
  CHECK_THROWS_WITH(end->synchronize(), late);
  CHECK_THROWS_WITH(download<DuplexTime>(*device, *stream, link.data(), 1), late);
  while (!end->done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  stream->synchronize();
}

TEST_CASE("a link that is not free yet is waited for", "[kernels]") {
  Rig rig(GENERATE(from_range(test::backends())));
  const Buffer link(*rig.device, sizeof(DuplexTime));
  auto* const free_at = static_cast<DuplexTime*>(link.data());
  rig.device->zero(link.data(), link.bytes(), *rig.stream);
  constexpr std::uint64_t kMs = 1000000;
  rig.kernels.occupy_link(free_at, {1 * kMs, 0}, *rig.stream);
  DuplexTime later = download<DuplexTime>(*rig.device, *rig.stream, link.data(), 1).front();
  later.send += 50 * kMs;  // as by another stream
  upload<DuplexTime>(*rig.device, *rig.stream, link.data(), std::span(&later, 1));
  rig.kernels.occupy_link(free_at, {10 * kMs, 0}, *rig.stream);
  const auto until = download<DuplexTime>(*rig.device, *rig.stream, link.data(), 1).front();
  CHECK(until.send == later.send + 10 * kMs);
}

}  // namespace shakedown

// The elementwise kernels of every backend against plain arithmetic.
#include "common/kernels.hpp"

#include "common/half.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown {
namespace {

struct Rig {
  explicit Rig(BackendKind kind)
      : device(test::open_device(kind)),
        stream(device->make_stream()),
        kernels(device->kernels()),
        scalars(*device, sizeof(StepScalars)) {}

  std::vector<float> floats(const Buffer& buffer, std::size_t count) {
    return download<float>(*device, *stream, buffer.data(), count);
  }
  Buffer of(const std::vector<float>& values) { return test::to_device(*device, *stream, values); }
  void set(const StepScalars& values) {
    upload<StepScalars>(*device, *stream, scalars.data(), std::span(&values, 1));
  }
  StepScalars get() { return download<StepScalars>(*device, *stream, scalars.data(), 1).front(); }
  StepScalars* on_device() { return static_cast<StepScalars*>(scalars.data()); }

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  const Kernels& kernels;
  Buffer scalars;
};

/// What the optimiser kernels work on, as plain vectors.
struct Weights {
  std::vector<float> w, g, a, b;
  explicit Weights(std::size_t count)
      : w(test::random_values(count, 1)),
        g(test::random_values(count, 2)),
        a(test::random_values(count, 3)),
        b(test::random_values(count, 4, 0, 1)) {}
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
  rig.set({});
  rig.kernels.check_finite(rig.of(x).view(DataType::float32), rig.on_device(), *rig.stream);
  CHECK(rig.get().finite == 1);
  x[where] = bad;
  const Buffer dirty = rig.of(x);
  rig.kernels.check_finite(dirty.view(DataType::float32), rig.on_device(), *rig.stream);
  CHECK(rig.get().finite == 0);
  rig.set({});
  const Buffer half(*rig.device, count * 2);
  rig.kernels.convert(dirty.view(DataType::float32), half.view(DataType::float16), *rig.stream);
  rig.kernels.check_finite(half.view(DataType::float16), rig.on_device(), *rig.stream);
  CHECK(rig.get().finite == 0);
}

TEST_CASE("optimisers follow PyTorch's formulas", "[kernels]") {
  Rig rig(GENERATE(from_range(test::backends())));
  const std::string optimizer = GENERATE("sgd", "nesterov", "adam", "adamw");
  const bool masked = GENERATE(false, true);
  const std::size_t count = 300;
  Weights h(count);
  const Buffer w = rig.of(h.w);
  const Buffer g = rig.of(h.g);
  const Buffer a = rig.of(h.a);
  const Buffer b = rig.of(h.b);
  const Buffer mask = test::to_device<std::uint8_t>(*rig.device, *rig.stream, {1, 0, 1, 0, 1});
  UpdateRange range;
  range.master = static_cast<float*>(w.data());
  range.gradient = g.data();
  range.state_a = static_cast<float*>(a.data());
  range.state_b = static_cast<float*>(b.data());
  if (masked) range.decayed = static_cast<const std::uint8_t*>(mask.data());
  range.count = count;
  StepScalars scalars;
  scalars.learning_rate = 0.1F;
  scalars.loss_scale = 4;
  scalars.updates = 6;
  rig.set(scalars);

  const double decay = 0.05;
  const bool is_sgd = optimizer == "sgd" || optimizer == "nesterov";
  if (is_sgd)
    rig.kernels.sgd(range, {0.9F, static_cast<float>(decay), optimizer == "nesterov"},
                    rig.on_device(), *rig.stream);
  else
    rig.kernels.adam(range, {0.9, 0.999, 1e-8F, static_cast<float>(decay), optimizer == "adamw"},
                     rig.on_device(), *rig.stream);

  std::vector<double> wanted;
  for (std::size_t i = 0; i < count; ++i) {
    const double wd = masked && i / kFlatAlignment % 2 == 1 ? 0 : decay;
    double weight = h.w[i];
    double gradient = h.g[i] / 4.0;
    if (optimizer == "adamw")
      weight -= 0.1 * wd * weight;
    else
      gradient += wd * weight;
    if (is_sgd) {
      const double m = 0.9 * h.a[i] + gradient;
      weight -= 0.1 * (optimizer == "nesterov" ? gradient + 0.9 * m : m);
    } else {
      const double m = 0.9 * h.a[i] + 0.1 * gradient;
      const double v = 0.999 * h.b[i] + 0.001 * gradient * gradient;
      weight -=
          0.1 * (m / (1 - std::pow(0.9, 7))) / (std::sqrt(v / (1 - std::pow(0.999, 7))) + 1e-8);
    }
    wanted.push_back(weight);
  }
  CHECK(test::relative_error(rig.floats(w, count), wanted) < 1e-6);

  // a step with a non-finite gradient changes nothing
  scalars.finite = 0;
  rig.set(scalars);
  const auto before = rig.floats(w, count);
  const auto momentum = rig.floats(a, count);
  if (is_sgd)
    rig.kernels.sgd(range, {}, rig.on_device(), *rig.stream);
  else
    rig.kernels.adam(range, {}, rig.on_device(), *rig.stream);
  CHECK(rig.floats(w, count) == before);
  CHECK(rig.floats(a, count) == momentum);
}

// Gradients that were exchanged in another type than they, and the weights' copy, are computed in.
TEST_CASE("optimisers accept gradients of any type with a copy of any other", "[kernels]") {
  Rig rig(GENERATE(from_range(test::backends())));
  const bool sgd = GENERATE(true, false);
  const DataType type = GENERATE(DataType::float32, DataType::float16, DataType::bfloat16);
  CAPTURE(name_of(rig.device->kind()), sgd, name_of(type));
  const std::size_t count = 300;
  const Weights h(count);
  const auto update = [&](ConstView gradient, View copy) {
    const Buffer w = rig.of(h.w);
    const Buffer a = rig.of(h.a);
    const Buffer b = rig.of(h.b);
    rig.set({.learning_rate = 0.1F, .loss_scale = 4});
    UpdateRange range;
    range.master = static_cast<float*>(w.data());
    range.compute = copy.data;
    range.compute_type = copy.type;
    range.gradient = gradient.data;
    range.gradient_type = gradient.type;
    range.state_a = static_cast<float*>(a.data());
    range.state_b = static_cast<float*>(b.data());
    range.count = count;
    if (sgd)
      rig.kernels.sgd(range, {}, rig.on_device(), *rig.stream);
    else
      rig.kernels.adam(range, {}, rig.on_device(), *rig.stream);
    return rig.floats(w, count);
  };

  const Buffer narrow(*rig.device, count * size_of(type));
  const Buffer wide(*rig.device, count * sizeof(float));
  const View rounded = wide.view(DataType::float32);
  rig.kernels.convert(rig.of(h.g).view(DataType::float32), narrow.view(type), *rig.stream);
  rig.kernels.convert(narrow.view(type), rounded, *rig.stream);
  const std::vector<float> wanted = update(rounded, {});
  CHECK(update(narrow.view(type), {}) == wanted);
  if (rig.device->kind() == BackendKind::cpu) return;  // it computes with the weights themselves
  for (DataType copied : {DataType::float32, DataType::float16, DataType::bfloat16}) {
    CAPTURE(name_of(copied));
    const Buffer copy(*rig.device, count * size_of(copied));
    CHECK(update(narrow.view(type), copy.view(copied)) == wanted);
    const Buffer expected(*rig.device, copy.bytes());
    rig.kernels.convert(rig.of(wanted).view(DataType::float32), expected.view(copied), *rig.stream);
    CHECK(download<std::byte>(*rig.device, *rig.stream, copy.data(), copy.bytes()) ==
          download<std::byte>(*rig.device, *rig.stream, expected.data(), copy.bytes()));
  }
}

TEST_CASE("the loss scale halves on a skip and doubles after 2000 steps", "[kernels]") {
  Rig rig(GENERATE(from_range(test::backends())));
  StepScalars scalars;
  scalars.loss_scale = 1024;
  scalars.since_rescale = 1998;
  rig.set(scalars);
  rig.kernels.finish_update(rig.on_device(), true, *rig.stream);
  CHECK(rig.get().loss_scale == 1024);
  rig.kernels.finish_update(rig.on_device(), true, *rig.stream);
  CHECK(rig.get().loss_scale == 2048);
  CHECK(rig.get().updates == 2);
  scalars = rig.get();
  scalars.finite = 0;
  rig.set(scalars);
  rig.kernels.finish_update(rig.on_device(), true, *rig.stream);
  scalars = rig.get();
  CHECK(scalars.loss_scale == 1024);
  CHECK(scalars.skipped == 1);
  CHECK(scalars.updates == 2);
  CHECK(scalars.finite == 1);
  scalars.loss_scale = 0x1p127F;  // the next power of two is infinity
  scalars.since_rescale = 1999;
  rig.set(scalars);
  rig.kernels.finish_update(rig.on_device(), true, *rig.stream);
  CHECK(rig.get().loss_scale == 0x1p127F);
  rig.kernels.set_learning_rate(rig.on_device(), 0.125F, *rig.stream);
  CHECK(rig.get().learning_rate == 0.125F);
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

// What tests share: the session, the backends that this machine can run, seeded numbers.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/device.hpp"
#include "common/hash.hpp"
#include "common/kernels.hpp"

namespace shakedown {

class MpiSession;
struct UsageError;  // common/usage_error.hpp, for those that use error_of

namespace test {

/// The session of this test program.
MpiSession& session();

/// The backends that are built and have a device here: `GENERATE(from_range(backends()))`.
std::vector<BackendKind> backends();
bool has(BackendKind kind);
std::unique_ptr<Device> open_device(BackendKind kind);
/// The backend with the communicators of this program's ranks.
Backend open_backend_of(BackendKind kind);

/// Uniform in [low, high).
std::vector<float> random_values(std::size_t count, std::uint64_t seed, double low = -1,
                                 double high = 1);

template <class T>
std::vector<double> widen(const std::vector<T>& values) {
  return {values.begin(), values.end()};
}

/// |a - b| / |b| in the Euclidean norm; infinity when a has a NaN.
template <class A, class B>
double relative_error(const A& a, const B& b) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  if (std::isnan(difference) || a.size() != b.size()) return INFINITY;
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

template <class T>
Buffer to_device(Device& device, Stream& stream, const std::vector<T>& values) {
  Buffer buffer(device, values.size() * sizeof(T));
  upload<T>(device, stream, buffer.data(), values);
  return buffer;
}

/// A device, a stream of it, and values there.
struct DeviceRig {
  explicit DeviceRig(BackendKind kind) : device(open_device(kind)), stream(device->make_stream()) {}

  template <class T>
  Buffer of(const std::vector<T>& values) {
    return to_device(*device, *stream, values);
  }
  std::vector<float> floats(const Buffer& buffer, std::size_t count) {
    return download<float>(*device, *stream, buffer.data(), count);
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
};

/// What `call` throws as an Error of this class, or "no error".
template <class Thrown = UsageError, class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Thrown& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace test
}  // namespace shakedown

/// The expression throws this class of Error, whose text matches.
#define CHECK_ERROR(Thrown, expression, matcher) \
  CHECK_THAT(shakedown::test::error_of<Thrown>([&] { static_cast<void>(expression); }), matcher)

// A case for one backend, skipped where that is not built or has no device.
#define GPU_TEST_CASE(...) SHAKEDOWN_CASE(gpu, "no GPU", CATCH_UNIQUE(on_gpu_), __VA_ARGS__)
#define CPU_TEST_CASE(...) SHAKEDOWN_CASE(cpu, "no cpu backend", CATCH_UNIQUE(on_cpu_), __VA_ARGS__)
#define CATCH_UNIQUE(name) INTERNAL_CATCH_UNIQUE_NAME(name)
#define SHAKEDOWN_CASE(kind, why, body, ...)                            \
  static void body();                                                   \
  TEST_CASE(__VA_ARGS__) {                                              \
    if (!shakedown::test::has(shakedown::BackendKind::kind)) SKIP(why); \
    body();                                                             \
  }                                                                     \
  static void body()

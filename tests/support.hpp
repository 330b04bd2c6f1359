// What tests share: the session, the backends that this machine can run, seeded numbers.
#pragma once

#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/device.hpp"
#include "common/hash.hpp"
#include "common/kernels.hpp"

namespace shakedown {

class MpiSession;

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

}  // namespace test
}  // namespace shakedown

// A communicator of all ranks, and buffers of any type.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>

#include "common/communicator.hpp"
#include "common/numbers.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown {

struct Transport {
  BackendKind backend;
  bool host_mpi;  // MPI although the memory is a GPU's
};

inline std::vector<Transport> transports() {
  std::vector<Transport> list;
  for (BackendKind kind : test::backends()) {
    list.push_back({kind, false});
    if (kind == BackendKind::gpu) list.push_back({kind, true});
  }
  return list;
}

inline void store(std::vector<std::byte>& bytes, std::size_t i, DataType type, double value) {
  auto put = [&](auto typed) {
    std::memcpy(bytes.data() + i * sizeof(typed), &typed, sizeof(typed));
  };
  switch (type) {
    case DataType::float64: return put(value);
    case DataType::float32: return put(static_cast<float>(value));
    case DataType::float16: return put(float_to_float16(static_cast<float>(value)));
    case DataType::bfloat16: return put(float_to_bfloat16(static_cast<float>(value)));
    case DataType::int64: return put(static_cast<std::int64_t>(value));
    case DataType::int32: return put(static_cast<std::int32_t>(value));
    case DataType::int8: return put(static_cast<std::int8_t>(value));
    case DataType::uint64: return put(static_cast<std::uint64_t>(value));
    case DataType::uint32: return put(static_cast<std::uint32_t>(value));
    case DataType::uint8: return put(static_cast<std::uint8_t>(value));
    default: FAIL("8-bit floating point is tested with the collectives");
  }
}

inline double fetch(const std::vector<std::byte>& bytes, std::size_t i, DataType type) {
  auto get = [&](auto typed) {
    std::memcpy(&typed, bytes.data() + i * sizeof(typed), sizeof(typed));
    return typed;
  };
  switch (type) {
    case DataType::float64: return get(double{});
    case DataType::float32: return get(float{});
    case DataType::float16: return float16_to_float(get(std::uint16_t{}));
    case DataType::bfloat16: return bfloat16_to_float(get(std::uint16_t{}));
    case DataType::int64: return static_cast<double>(get(std::int64_t{}));
    case DataType::int32: return get(std::int32_t{});
    case DataType::int8: return get(std::int8_t{});
    case DataType::uint64: return static_cast<double>(get(std::uint64_t{}));
    case DataType::uint32: return get(std::uint32_t{});
    case DataType::uint8: return get(std::uint8_t{});
    default: return NAN;
  }
}

/// A communicator of all ranks and buffers on its device.
class CommunicatorRig {
 public:
  explicit CommunicatorRig(Transport t)
      : backend(test::open_backend_of(t.backend)),
        comm(t.host_mpi ? *backend.host : *backend.world),
        stream(backend.device->make_stream()),
        n(static_cast<std::size_t>(comm.size())),
        rank(static_cast<std::size_t>(comm.rank())) {}

  using Values = std::function<double(std::size_t index)>;

  Buffer filled(std::size_t count, DataType type, const Values& value) {
    std::vector<std::byte> bytes(count * size_of(type));
    for (std::size_t i = 0; i < count; ++i) store(bytes, i, type, value(i));
    Buffer buffer(*backend.device, bytes.size());
    upload<std::byte>(*backend.device, *stream, buffer.data(), bytes);
    return buffer;
  }
  Buffer blank(std::size_t count, DataType type) {
    return filled(count, type, [](std::size_t) { return 99; });
  }
  /// The number of elements that differ from what is expected.
  int wrong(const Buffer& buffer, std::size_t count, DataType type, const Values& expected) {
    finish();
    const auto bytes =
        download<std::byte>(*backend.device, *stream, buffer.data(), count * size_of(type));
    int differ = 0;
    for (std::size_t i = 0; i < count; ++i) differ += fetch(bytes, i, type) != expected(i) ? 1 : 0;
    return differ;
  }
  void finish() {
    const auto event = backend.device->make_event();
    event->record(*stream);
    comm.wait(*event, HostWait::polite);
  }

  Backend backend;
  Communicator& comm;
  std::unique_ptr<Stream> stream;
  std::size_t n;
  std::size_t rank;
};

}  // namespace shakedown

// A device without a backend, in host memory: a test overrides what it watches, slows down or
// breaks.
#pragma once

#include <cstring>
#include <memory>
#include <new>

#include "common/device.hpp"
#include "common/error.hpp"

namespace shakedown::test {

class FakeDevice : public Device {
 public:
  struct IdleStream : Stream {
    void wait(const Event&) override {}
    void synchronize() override {}
    bool done() const override { return true; }
  };
  BackendKind kind() const override { return BackendKind::cpu; }
  DeviceIdentity identity() const override { return {}; }
  MemoryInfo memory() const override { return {}; }
  const Kernels& kernels() const override { throw InternalError("no kernels"); }
  std::unique_ptr<Stream> make_stream(StreamPriority) override {
    return std::make_unique<IdleStream>();
  }
  std::unique_ptr<Event> make_event() override { return nullptr; }
  void copy(void* to, const void* from, std::size_t bytes, Stream&) override {
    std::memcpy(to, from, bytes);
  }
  void zero(void* to, std::size_t bytes, Stream&) override { std::memset(to, 0, bytes); }

 protected:
  void* allocate(std::size_t bytes, Place) override {
    return std::memset(::operator new(bytes), 0xEE, bytes);  // nothing starts as zero by chance
  }
  void release(void* memory, Place) noexcept override { ::operator delete(memory); }
};

}  // namespace shakedown::test

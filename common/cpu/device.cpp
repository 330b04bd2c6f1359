// The cpu backend's device: host memory, and streams on which work has run when the call returns.
#include <fmt/format.h>
#include <omp.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <fstream>

#include "common/backend.hpp"
#include "common/device.hpp"
#include "common/host.hpp"
#include "common/kernels.hpp"
#include "common/usage_error.hpp"

namespace shakedown::cpu {
namespace {

using Clock = std::chrono::steady_clock;

class CpuStream final : public Stream {
 public:
  void wait(const Event&) override {}
  void synchronize() override {}
  bool done() const override { return true; }
};

class CpuEvent final : public Event {
 public:
  void record(Stream&) override { time_ = Clock::now(); }
  bool done() const override { return true; }
  void synchronize() const override {}
  double milliseconds_since(const Event& start) const override {
    const auto& other = static_cast<const CpuEvent&>(start);
    return std::chrono::duration<double, std::milli>(time_ - other.time_).count();
  }

 private:
  Clock::time_point time_;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads) : threads_(threads) { omp_set_num_threads(threads); }

  BackendKind kind() const override { return BackendKind::cpu; }
  DeviceIdentity identity() const override { return {processor_model(), "", "", threads_}; }
  MemoryInfo memory() const override { return host_memory(); }
  const Kernels& kernels() const override { return cpu::kernels(); }

  std::unique_ptr<Stream> make_stream(StreamPriority) override {
    return std::make_unique<CpuStream>();
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CpuEvent>(); }

  void copy(void* to, const void* from, std::size_t bytes, Stream&) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void zero(void* to, std::size_t bytes, Stream&) override {
    if (bytes > 0) std::memset(to, 0, bytes);
  }

 protected:
  void* allocate(std::size_t bytes, Place) override {
    // Large pages spare most of the faults of first use; a page boundary suits every vector unit.
    constexpr std::size_t kLargePage = std::size_t{2} << 20;
    const std::size_t alignment = bytes >= kLargePage ? kLargePage : 4096;
    const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    void* memory = std::aligned_alloc(alignment, rounded);
    if (memory == nullptr)
      throw OutOfMemory(fmt::format("out of memory: {} more needed, {} free", readable_bytes(bytes),
                                    readable_bytes(this->memory().free_bytes)));
    if (alignment == kLargePage) madvise(memory, rounded, MADV_HUGEPAGE);
    return memory;
  }
  void release(void* memory, Place) noexcept override { std::free(memory); }

 private:
  int threads_;
};

}  // namespace

bool built() { return true; }

std::unique_ptr<Device> make_device(int threads) { return std::make_unique<CpuDevice>(threads); }

std::vector<Library> libraries() {
  return {{"onednn", fmt::format("libdnnl.so.{}", DNNL_VERSION_MAJOR), "dnnl_version",
           fmt::format("{}.{}.{}", DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH),
           [](void* function) {
             const auto* v = reinterpret_cast<decltype(dnnl_version)*>(function)();
             return fmt::format("{}.{}.{}", v->major, v->minor, v->patch);
           }}};
}

}  // namespace shakedown::cpu

// The gpu backend's device: one CUDA device of this process.
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <fmt/format.h>
#include <nccl.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// Header only; the CUDA of some machines comes without it.
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define SHAKEDOWN_NVTX(call) call
#else
#define SHAKEDOWN_NVTX(call) static_cast<void>(0)
#endif

#include "common/backend.hpp"
#include "common/device.hpp"
#include "common/error.hpp"
#include "common/gpu/native.hpp"
#include "common/kernels.hpp"
#include "common/watch.hpp"

namespace shakedown::gpu {

void throw_cuda_error(cudaError_t status, const char* expression, const char* file, int line) {
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // the error is not sticky
    throw OutOfMemory(fmt::format("out of GPU memory: {}", expression));
  }
  throw_library_error("CUDA", expression, file, line,
                      fmt::format("{}: {}", cudaGetErrorName(status), cudaGetErrorString(status)));
}

namespace {

/// The id of the capture that the stream takes part in; 0: it is not being captured.
unsigned long long capture_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  CHECK_CUDA(cudaStreamGetCaptureInfo(stream, &status, &id));
  return status == cudaStreamCaptureStatusActive ? id : 0;
}

constexpr auto kGrace = std::chrono::seconds(10);

/// Ends the process where the device still hangs in kGrace: then the error that is thrown gets
/// nowhere, because calls that free memory wait for the device as well.
void end_if_it_hangs(const std::string& reason) {
  int device = 0;
  cudaGetDevice(&device);
  start_detached<void>([reason, device] {
    const auto finished = start_detached<void>([device] {
      cudaSetDevice(device);
      cudaDeviceSynchronize();
    });
    if (finished.wait_for(kGrace) == std::future_status::ready) return;
    std::fprintf(stderr, "error: %s\n", reason.c_str());
    std::_Exit(static_cast<int>(ExitCode::inconclusive));
  });
}

/// As cudaStreamSynchronize and cudaEventSynchronize, which wait for ever.
template <class Done>
void wait_for_device(Done&& done, double timeout_s) {
  constexpr double kSpin_s = 0.1;
  try {
    wait_until(
        done, timeout_s, kSpin_s, [] {}, "it hangs, or the work is too large");
  } catch (const TimeoutError& error) {
    end_if_it_hangs(error.what());
    throw;
  }
}

bool is_done(cudaError_t status) {
  if (status == cudaErrorNotReady) return false;
  CHECK_CUDA(status);
  return true;
}

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(double timeout_s) : timeout_s_(timeout_s) {
    CHECK_CUDA(cudaEventCreate(&event_));
  }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  ~CudaEvent() override { cudaEventDestroy(event_); }

  void record(Stream& stream) override {
    capture_ = capture_of(native(stream));
    CHECK_CUDA(cudaEventRecord(event_, native(stream)));
  }
  void record_time(Stream& stream) override {
    const bool capturing = capture_of(native(stream)) != 0;
    CHECK_CUDA(cudaEventRecordWithFlags(
        event_, native(stream), capturing ? cudaEventRecordExternal : cudaEventRecordDefault));
  }
  bool done() const override { return is_done(cudaEventQuery(event_)); }
  void synchronize() const override {
    wait_for_device([this] { return done(); }, timeout_s_);
  }
  double milliseconds_since(const Event& start) const override {
    float milliseconds = 0;
    CHECK_CUDA(cudaEventElapsedTime(&milliseconds, native(start), event_));
    return milliseconds;
  }
  cudaEvent_t get() const { return event_; }
  /// It was last recorded in; 0: in none.
  unsigned long long capture() const { return capture_; }

 private:
  double timeout_s_;
  cudaEvent_t event_ = nullptr;
  unsigned long long capture_ = 0;
};

class CudaStream final : public Stream {
 public:
  /// `capture`: the one in progress, or 0.
  CudaStream(StreamPriority priority, double timeout_s, const unsigned long long& capture)
      : timeout_s_(timeout_s), capture_(capture) {
    int lowest = 0;
    int highest = 0;
    CHECK_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CHECK_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                            priority == StreamPriority::high ? highest : lowest));
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  ~CudaStream() override { cudaStreamDestroy(stream_); }

  void wait(const Event& event) override {
    const unsigned long long recorded = static_cast<const CudaEvent&>(event).capture();
    const unsigned long long here = capture_of(stream_);
    const bool joins = here == 0 && recorded == capture_;
    if (recorded == here || joins) CHECK_CUDA(cudaStreamWaitEvent(stream_, native(event), 0));
  }
  bool done() const override { return is_done(cudaStreamQuery(stream_)); }
  void synchronize() override {
    wait_for_device([this] { return done(); }, timeout_s_);
  }
  cudaStream_t get() const { return stream_; }

 private:
  double timeout_s_;
  const unsigned long long& capture_;
  cudaStream_t stream_ = nullptr;
};

class CudaGraph final : public Graph {
 public:
  CudaGraph(cudaGraph_t captured, cudaStream_t stream) {
    const cudaError_t status =
        cudaGraphInstantiate(&graph_, captured, cudaGraphInstantiateFlagUseNodePriority);
    cudaGraphDestroy(captured);
    CHECK_CUDA(status);
    CHECK_CUDA(cudaGraphUpload(graph_, stream));  // else the first launch does it
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  ~CudaGraph() override { cudaGraphExecDestroy(graph_); }

  void launch(Stream& stream) override { CHECK_CUDA(cudaGraphLaunch(graph_, native(stream))); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

/// As NVML has it. That of a MIG instance, whose name is "NVIDIA H200 MIG 1g.18gb", is its own.
std::string uuid_text(const cudaDeviceProp& properties) {
  std::string text = std::strstr(properties.name, " MIG ") != nullptr ? "MIG-" : "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(properties.uuid.bytes[i]));
  }
  return text;
}

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, double timeout_s) : index_(index), timeout_s_(timeout_s) {
    CHECK_CUDA(cudaSetDevice(index));
    CHECK_CUDA(cudaGetDeviceProperties(&properties_, index));
  }

  BackendKind kind() const override { return BackendKind::gpu; }
  DeviceIdentity identity() const override {
    std::array<char, 32> pci{};
    CHECK_CUDA(cudaDeviceGetPCIBusId(pci.data(), pci.size(), index_));
    return {properties_.name, uuid_text(properties_), pci.data(), properties_.multiProcessorCount,
            fmt::format("{}.{}", properties_.major, properties_.minor)};
  }
  MemoryInfo memory() const override {
    MemoryInfo info;
    CHECK_CUDA(cudaMemGetInfo(&info.free_bytes, &info.total_bytes));
    return info;
  }
  const Kernels& kernels() const override { return gpu::kernels(); }

  void use_on_this_thread() override { CHECK_CUDA(cudaSetDevice(index_)); }

  std::unique_ptr<Stream> make_stream(StreamPriority priority) override {
    return std::make_unique<CudaStream>(priority, timeout_s_, capture_);
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CudaEvent>(timeout_s_); }

  bool has_graphs() const override { return true; }
  std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& body) override {
    // Thread-local: NCCL allocates while it connects peers, other threads may too.
    CHECK_CUDA(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal));
    cudaGraph_t captured = nullptr;
    try {
      capture_ = capture_of(native(stream));
      body();
    } catch (...) {
      end_capture(stream, captured);
      if (captured != nullptr) cudaGraphDestroy(captured);
      throw;
    }
    CHECK_CUDA(end_capture(stream, captured));
    return std::make_unique<CudaGraph>(captured, native(stream));
  }

  void begin_range(const std::string& name) override {
    SHAKEDOWN_NVTX(nvtxRangePushA(name.c_str()));
  }
  void end_range() override { SHAKEDOWN_NVTX(nvtxRangePop()); }

  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    if (bytes == 0) return;
    CHECK_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, native(stream)));
  }
  void zero(void* to, std::size_t bytes, Stream& stream) override {
    if (bytes > 0) CHECK_CUDA(cudaMemsetAsync(to, 0, bytes, native(stream)));
  }

 protected:
  void* allocate(std::size_t bytes, Place place) override {
    void* memory = nullptr;
    const cudaError_t status =
        place == Place::device ? cudaMalloc(&memory, bytes) : cudaMallocHost(&memory, bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // the error is not sticky
      throw OutOfMemory(
          fmt::format("out of {} memory: {} more needed, {} free",
                      place == Place::device ? "GPU" : "pinned host",
                      readable_bytes(static_cast<double>(bytes)),
                      readable_bytes(static_cast<double>(this->memory().free_bytes))));
    }
    CHECK_CUDA(status);
    return memory;
  }
  void release(void* memory, Place place) noexcept override {
    if (place == Place::device)
      cudaFree(memory);
    else
      cudaFreeHost(memory);
  }

 private:
  /// Also of the streams that joined it.
  cudaError_t end_capture(Stream& stream, cudaGraph_t& captured) noexcept {
    capture_ = 0;
    const cudaError_t status = cudaStreamEndCapture(native(stream), &captured);
    cudaGetLastError();  // else the next call would report the error of the capture
    return status;
  }

  int index_;
  double timeout_s_;
  unsigned long long capture_ = 0;  // in progress
  cudaDeviceProp properties_{};
};

}  // namespace

cudaStream_t native(const Stream& stream) { return static_cast<const CudaStream&>(stream).get(); }
cudaEvent_t native(const Event& event) { return static_cast<const CudaEvent&>(event).get(); }

bool built() { return true; }

std::vector<std::string> visible_devices(std::string& problem) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    cudaGetLastError();
    int driver = 0;  // stays so where there is none
    cudaDriverGetVersion(&driver);
    problem = driver == 0 ? "no NVIDIA driver" : cudaGetErrorString(status);
    return {};
  }
  std::vector<std::string> uuids;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    CHECK_CUDA(cudaGetDeviceProperties(&properties, i));
    uuids.push_back(uuid_text(properties));
  }
  if (uuids.empty()) problem = "CUDA sees no device; CUDA_VISIBLE_DEVICES may hide them";
  return uuids;
}

std::unique_ptr<Device> make_device(int index, double timeout_s) {
  return std::make_unique<CudaDevice>(index, timeout_s);
}

// Of their headers alone: no program links a library because of its version.
namespace {

std::string cuda(int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); }

/// cuDNN's digits, and NCCL's.
std::string dotted(std::size_t v) {
  return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

template <class Function>
Function* as(void* function) {
  return reinterpret_cast<Function*>(function);
}

}  // namespace

std::vector<Library> libraries() {
  return {{"cuda", fmt::format("libcudart.so.{}", CUDART_VERSION / 1000), "cudaRuntimeGetVersion",
           cuda(CUDART_VERSION),
           [](void* function) {
             int version = 0;
             as<decltype(cudaRuntimeGetVersion)>(function)(&version);
             return cuda(version);
           }},
          {"cudnn", fmt::format("libcudnn.so.{}", CUDNN_MAJOR), "cudnnGetVersion",
           dotted(CUDNN_VERSION),
           [](void* function) { return dotted(as<decltype(cudnnGetVersion)>(function)()); }},
          {"cublas", fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR), "cublasLtGetProperty",
           fmt::format("{}.{}.{}", CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_PATCH),
           [](void* function) {
             int parts[3] = {};
             for (const auto part : {MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL})
               as<decltype(cublasLtGetProperty)>(function)(part, &parts[part]);
             return fmt::format("{}.{}.{}", parts[0], parts[1], parts[2]);
           }},
          {"nccl", fmt::format("libnccl.so.{}", NCCL_MAJOR), "ncclGetVersion",
           dotted(NCCL_VERSION_CODE), [](void* function) {
             int version = 0;
             as<decltype(ncclGetVersion)>(function)(&version);
             return dotted(static_cast<std::size_t>(version));
           }}};
}

}  // namespace shakedown::gpu

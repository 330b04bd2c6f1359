#include "common/gpu/nccl.hpp"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <future>

#include "common/detached.hpp"
#include "common/error.hpp"
#include "common/gpu/check.hpp"

namespace shakedown::gpu {
namespace {

/// NCCL reports memory that it does not get as any error of CUDA: throws InconclusiveError where so
/// little is free that a communicator hardly fits.
void check_memory_for_nccl() {
  constexpr std::size_t kLeast = std::size_t{1} << 30;
  std::size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess || free >= kLeast) return;
  throw InconclusiveError(fmt::format(
      "NCCL does not start with {} of {} GPU memory free; nvidia-smi shows which processes "
      "have the rest in use",
      readable_bytes(static_cast<double>(free)), readable_bytes(static_cast<double>(total))));
}

class NcclMemory final : public TransportMemory {
 public:
  NcclMemory(ncclComm_t comm, std::size_t bytes, Registration registration) : comm_(comm) {
    CHECK_NCCL(ncclMemAlloc(&data_, bytes), comm);
    if (registration == Registration::local)
      CHECK_NCCL(ncclCommRegister(comm, data_, bytes, &handle_), comm);
    if (registration == Registration::symmetric) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
      CHECK_NCCL(ncclCommWindowRegister(comm, data_, bytes, &window_, NCCL_WIN_COLL_SYMMETRIC),
                 comm);
      if (window_ == nullptr)
        throw UsageError("symmetric windows: NCCL has none between these GPUs");
#else
      throw UsageError(
          fmt::format("symmetric windows: built with NCCL {}.{}, 2.27 or newer is required",
                      NCCL_MAJOR, NCCL_MINOR));
#endif
    }
  }
  NcclMemory(const NcclMemory&) = delete;
  NcclMemory& operator=(const NcclMemory&) = delete;
  ~NcclMemory() override {
    if (std::uncaught_exceptions() > exceptions_) return;  // the job ends, and peers may hang
    if (handle_ != nullptr) ncclCommDeregister(comm_, handle_);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    if (window_ != nullptr) ncclCommWindowDeregister(comm_, window_);
#endif
    ncclMemFree(data_);
  }
  void* data() const override { return data_; }
  Place place() const override { return Place::device; }

 private:
  ncclComm_t comm_;
  void* data_ = nullptr;
  void* handle_ = nullptr;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  ncclWindow_t window_ = nullptr;
#endif
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace

void check_nccl(ncclResult_t status, const char* expression, const char* file, int line,
                ncclComm_t comm) {
  if (status == ncclSuccess || status == ncclInProgress) return;
  // A system error is a lost connection as well as a full /dev/shm: its text says which.
  if (status == ncclRemoteError || status == ncclSystemError)
    throw InconclusiveError(fmt::format(
        "{}: {} ({})", status == ncclRemoteError ? "NCCL lost a peer" : "NCCL met a system error",
        ncclGetErrorString(status), ncclGetLastError(comm)));
  throw_library_error("NCCL", expression, file, line,
                      fmt::format("{} ({})", ncclGetErrorString(status), ncclGetLastError(comm)));
}

ncclDataType_t nccl_type(DataType type) {
  switch (type) {
    case DataType::float64: return ncclFloat64;
    case DataType::float32: return ncclFloat32;
    case DataType::float16: return ncclFloat16;
    case DataType::bfloat16: return ncclBfloat16;
    case DataType::int64: return ncclInt64;
    case DataType::int32: return ncclInt32;
    case DataType::int8: return ncclInt8;
    case DataType::uint64: return ncclUint64;
    case DataType::uint32: return ncclUint32;
    case DataType::uint8: return ncclUint8;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
    case DataType::float8_e4m3: return ncclFloat8e4m3;
    case DataType::float8_e5m2: return ncclFloat8e5m2;
#else
    case DataType::float8_e4m3:
    case DataType::float8_e5m2:
      throw UsageError(fmt::format("{}: built with NCCL {}.{}, 2.24 or newer is required",
                                   name_of(type), NCCL_MAJOR, NCCL_MINOR));
#endif
  }
  throw InternalError("unknown data type");
}

ncclRedOp_t nccl_operation(Reduction op) {
  switch (op) {
    case Reduction::sum: return ncclSum;
    case Reduction::prod: return ncclProd;
    case Reduction::min: return ncclMin;
    case Reduction::max: return ncclMax;
    case Reduction::avg: return ncclAvg;
  }
  throw InternalError("unknown reduction");
}

ncclComm_t init_rank(ncclUniqueId id, int ranks, int rank, int ctas, double timeout_s) {
  int device = 0;
  CHECK_CUDA(cudaGetDevice(&device));
  std::future<ncclComm_t> comm = start_detached<ncclComm_t>([=] {
    CHECK_CUDA(cudaSetDevice(device));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (ctas > 0) config.minCTAs = config.maxCTAs = ctas;
    ncclComm_t comm = nullptr;
    const ncclResult_t status = ncclCommInitRankConfig(&comm, ranks, id, rank, &config);
    if (status == ncclUnhandledCudaError) check_memory_for_nccl();
    check_nccl(status, "ncclCommInitRankConfig", __FILE__, __LINE__, nullptr);
    return comm;
  });
  const auto start = std::chrono::steady_clock::now();
  while (comm.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) {
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    if (waited.count() > timeout_s)
      throw TimeoutError(fmt::format(
          "NCCL did not connect {} ranks within {:g} s (--timeout): another rank has stopped, died "
          "or fallen behind, or a firewall blocks the interface NCCL chose (NCCL_DEBUG=INFO shows "
          "it, NCCL_SOCKET_IFNAME selects another)",
          ranks, timeout_s));
  }
  return comm.get();
}

std::unique_ptr<TransportMemory> allocate_nccl_memory(ncclComm_t comm, std::size_t bytes,
                                                      Registration registration) {
  return std::make_unique<NcclMemory>(comm, bytes, registration);
}

}  // namespace shakedown::gpu

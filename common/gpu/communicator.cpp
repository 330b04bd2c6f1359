// The gpu backend's communicator: NCCL, bootstrapped over MPI.

#include <fmt/format.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "common/backend.hpp"
#include "common/communicator.hpp"
#include "common/device.hpp"
#include "common/error.hpp"
#include "common/gpu/native.hpp"
#include "common/host.hpp"
#include "common/mpi_session.hpp"
#include "common/types.hpp"
#include "common/watch.hpp"

namespace shakedown::gpu {

namespace {

/// Throws InconclusiveError where a peer is lost or the system failed, InternalError otherwise.
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
#define CHECK_NCCL(expression, comm) \
  check_nccl((expression), #expression, __FILE__, __LINE__, (comm))

/// Throws UsageError where the NCCL that this was built with has no such type.
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

/// ncclMemAlloc reports it the same way. Throws OutOfMemory where less than `bytes` is free.
void check_memory_for(std::size_t bytes) {
  std::size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess || free >= bytes) return;
  throw OutOfMemory(fmt::format("out of GPU memory: {} more needed, {} free",
                                readable_bytes(static_cast<double>(bytes)),
                                readable_bytes(static_cast<double>(free))));
}

/// ncclCommInitRank, in a thread: it has no time-out and waits for every rank for ever.
/// Throws TimeoutError after timeout_s and leaves the thread running, as the job ends then.
/// `ctas`: CTAs per kernel; 0: NCCL's default.
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

/// NCCL's own memory, which peers can map, and its registration.
class NcclMemory final : public TransportMemory {
 public:
  NcclMemory(ncclComm_t comm, std::size_t bytes, Registration registration) : comm_(comm) {
    const ncclResult_t status = ncclMemAlloc(&data_, bytes);
    if (status == ncclUnhandledCudaError) check_memory_for(bytes);
    CHECK_NCCL(status, comm);
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

/// In a communicator, where NCCL connects the ranks that are new to each other first.
#define ENQUEUE(expression) in_time([&] { CHECK_NCCL(expression, comm_); })

template <class Byte>
Byte* part(BasicView<Byte> view, std::size_t index, std::size_t count) {
  return view.slice(index * count, count).data;
}

class NcclCommunicator final : public Communicator {
 public:
  /// `host` spans the same ranks and carries what NCCL does not: the barrier and the bootstrap.
  NcclCommunicator(std::unique_ptr<Communicator> host, Device& device, int ctas, double timeout_s)
      : host_(std::move(host)),
        device_(device),
        ctas_(ctas),
        timeout_s_(timeout_s),
        watch_(timeout_s, [this] { release_call(); }) {
    ncclUniqueId id{};
    if (host_->rank() == 0) CHECK_NCCL(ncclGetUniqueId(&id), nullptr);
    const auto stream = device_.make_stream();
    const View bytes(&id, sizeof(id), DataType::uint8, Place::host);
    host_->broadcast(bytes, bytes, 0, *stream);
    CHECK_CUDA(cudaGetDevice(&index_));
    comm_ = init_rank(id, host_->size(), host_->rank(), ctas_, timeout_s_);
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  ~NcclCommunicator() override {
    if (comm_ == nullptr) return;
    if (std::uncaught_exceptions() > exceptions_) {
      abort();
    } else {
      drop_graphs();
      const auto end = watch("ncclCommDestroy", timeout_s_, "another rank does not end");
      ncclCommDestroy(comm_);
    }
  }

  const char* transport() const override { return "nccl"; }
  bool capturable() const override { return true; }
  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  bool supports(DataType type) const override {
    if (!is_float8(type)) return true;
    if (size() == 1) return false;  // NCCL's kernels for one rank lack them
    int major = 0;
    CHECK_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index_));
    return NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0) && major >= 9;
  }

  std::unique_ptr<TransportMemory> allocate(std::size_t bytes, Registration registration) override {
    std::unique_ptr<TransportMemory> memory;
    in_time([&] { memory = std::make_unique<NcclMemory>(comm_, bytes, registration); });
    return memory;
  }

  void barrier() override {
    abort_on_error([&] { host_->barrier(); });
  }
  void notify(int peer, int value) override {
    abort_on_error([&] { host_->notify(peer, value); });
  }
  Notice next_notice() override {
    Notice notice;
    abort_on_error([&] { notice = host_->next_notice(); });
    return notice;
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<NcclCommunicator>(host_->split(color, key), device_, ctas_, timeout_s_);
  }

  void wait_until(const std::function<bool()>& done, HostWait how) override {
    abort_on_error([&] {
      wait_for_ranks(done, timeout_s_, spin_seconds(how), [this] {
        ncclResult_t asynchronous = ncclSuccess;
        CHECK_NCCL(ncclCommGetAsyncError(comm_, &asynchronous), comm_);
        CHECK_NCCL(asynchronous, comm_);
      });
      if (peers_) peers_->check();
    });
  }

  Peers& peers() override {
    if (!peers_) peers_ = make_peers(*host_, device_, timeout_s_);
    return *peers_;
  }

 protected:
  void begin_group() override { CHECK_NCCL(ncclGroupStart(), comm_); }
  void end_group() override { ENQUEUE(ncclGroupEnd()); }

  void enqueue(const Exchange& x, Stream& stream) override {
    const void* const from = x.from.data;
    void* const to = x.to.data;
    const cudaStream_t on = native(stream);
    const auto sent = [&] { return nccl_type(x.from.type); };
    const auto received = [&] { return nccl_type(x.to.type); };
    switch (x.kind) {
      case Exchange::all_reduce:
        return ENQUEUE(
            ncclAllReduce(from, to, x.to.count, received(), nccl_operation(x.op), comm_, on));
      case Exchange::reduce:
        return ENQUEUE(
            ncclReduce(from, to, x.from.count, sent(), nccl_operation(x.op), x.peer, comm_, on));
      case Exchange::broadcast:
        return ENQUEUE(ncclBroadcast(from, to, x.to.count, received(), x.peer, comm_, on));
      case Exchange::all_gather:
        return ENQUEUE(ncclAllGather(from, to, x.from.count, sent(), comm_, on));
      case Exchange::reduce_scatter:
        return ENQUEUE(
            ncclReduceScatter(from, to, x.to.count, received(), nccl_operation(x.op), comm_, on));
      case Exchange::send: return send_to(from, x.from, x.peer, on);
      case Exchange::recv: return recv_from(to, x.to, x.peer, on);
      default: return enqueue_by_messages(x, on);
    }
  }

 private:
  /// Past an error the job ends: kernels that wait for a peer must end too, so that memory can be
  /// freed.
  template <class Body>
  void abort_on_error(Body&& body) {
    try {
      body();
    } catch (...) {
      abort();
      throw;
    }
  }

  /// For a call that enqueues: NCCL first connects ranks that are new to each other, and would wait
  /// for them for ever. Throws TimeoutError after the timeout.
  template <class Call>
  void in_time(Call&& call) {
    try {
      watch_.during(call);
    } catch (const Error&) {
      if (!watch_.was_late()) throw;
    }
    if (!watch_.was_late()) return;
    while (comm_ != nullptr) std::this_thread::yield();  // the watch aborts it
    abort();
    throw TimeoutError(lateness());
  }
  std::string lateness() const {
    return fmt::format(
        "a call of NCCL did not return within {:g} s (--timeout): "
        "another rank has stopped, died or fallen behind",
        timeout_s_);
  }

  /// In the watch's thread: the abort has the call return. Where it does not, the process ends.
  void release_call() {
    constexpr auto kGrace = std::chrono::seconds(10);
    start_abort();
    const auto end = std::chrono::steady_clock::now() + kGrace;
    while (watch_.is_calling()) {
      if (std::chrono::steady_clock::now() > end) {
        std::fprintf(stderr, "error: rank %d on %s: %s\n", rank(), host_name().c_str(),
                     lateness().c_str());
        std::_Exit(static_cast<int>(ExitCode::inconclusive));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  /// Has kernels that wait for other ranks end.
  void abort() {
    if (peers_) peers_->abort();
    const std::future<void> aborted = start_abort();
    drop_graphs();
    if (aborted.valid()) aborted.wait_for(std::chrono::seconds(2));
  }

  /// ncclCommAbort also waits: for the graphs that hold kernels, and, as a job with a stopped rank
  /// showed, for more that may never come. So it runs in a thread, which is given up after a while.
  /// No future where no thread can be started.
  std::future<void> start_abort() try {
    return start_detached<void>([device = index_, comm = comm_.exchange(nullptr)] {
      cudaSetDevice(device);
      ncclCommAbort(comm);
    });
  } catch (const std::system_error&) {
    return {};
  }

  std::size_t ranks() const { return static_cast<std::size_t>(size()); }

  /// What NCCL has functions for since 2.28.
  void enqueue_by_messages(const Exchange& x, cudaStream_t on) {
    const std::size_t each = x.from.count / ranks();  // of all_to_all
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    if (x.kind == Exchange::gather)
      ENQUEUE(ncclGather(x.from.data, x.to.data, x.from.count, nccl_type(x.from.type), x.peer,
                         comm_, on));
    else if (x.kind == Exchange::scatter)
      ENQUEUE(
          ncclScatter(x.from.data, x.to.data, x.to.count, nccl_type(x.to.type), x.peer, comm_, on));
    else
      ENQUEUE(ncclAlltoAll(x.from.data, x.to.data, each, nccl_type(x.from.type), comm_, on));
#else
    const bool gathers = x.kind == Exchange::gather;
    const bool scatters = x.kind == Exchange::scatter;
    const bool is_root = rank() == x.peer;
    const ConstView sent = gathers ? x.from : scatters ? ConstView(x.to) : x.from.slice(0, each);
    group([&] {
      for (std::size_t r = 0; r < ranks(); ++r) {
        const auto peer = static_cast<int>(r);
        if (scatters ? is_root : !gathers) send_to(part(x.from, r, sent.count), sent, peer, on);
        if (gathers ? is_root : !scatters) recv_from(part(x.to, r, sent.count), sent, peer, on);
      }
      if (gathers) send_to(x.from.data, sent, x.peer, on);
      if (scatters) recv_from(x.to.data, sent, x.peer, on);
    });
#endif
  }

  void send_to(const void* data, ConstView like, int peer, cudaStream_t on) {
    ENQUEUE(ncclSend(data, like.count, nccl_type(like.type), peer, comm_, on));
  }
  void recv_from(void* data, ConstView like, int peer, cudaStream_t on) {
    ENQUEUE(ncclRecv(data, like.count, nccl_type(like.type), peer, comm_, on));
  }

  std::unique_ptr<Communicator> host_;
  Device& device_;
  int ctas_;
  double timeout_s_;
  int index_ = 0;                           // CUDA's of the device
  std::atomic<ncclComm_t> comm_ = nullptr;  // null once it is aborted
  std::unique_ptr<Peers> peers_;
  int exceptions_ = std::uncaught_exceptions();
  CallWatch watch_;
};

}  // namespace

std::unique_ptr<Communicator> make_communicator(const MpiSession& session, Device& device,
                                                int ctas) {
  return std::make_unique<NcclCommunicator>(make_mpi_communicator(session, device), device, ctas,
                                            session.timeout_s());
}

}  // namespace shakedown::gpu

// The gpu backend's communicator: NCCL, bootstrapped over MPI.
#include "common/communicator.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
#include <system_error>
#include <thread>
#include <utility>

#include "common/backend.hpp"
#include "common/call_watch.hpp"
#include "common/detached.hpp"
#include "common/gpu/check.hpp"
#include "common/gpu/native.hpp"
#include "common/gpu/nccl.hpp"
#include "common/host_name.hpp"
#include "common/mpi_communicator.hpp"
#include "common/mpi_session.hpp"
#include "common/peers.hpp"
#include "common/wait.hpp"
#include "common/watchdog.hpp"

namespace shakedown::gpu {
namespace {

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

  void all_reduce(ConstView send, View recv, Reduction op, Stream& stream) override {
    count_ring(recv.bytes(), 2);
    ENQUEUE(ncclAllReduce(send.data, recv.data, recv.count, nccl_type(recv.type),
                          nccl_operation(op), comm_, native(stream)));
  }
  void reduce(ConstView send, View recv, Reduction op, int root, Stream& stream) override {
    count_reduce(send.bytes(), root);
    ENQUEUE(ncclReduce(send.data, recv.data, send.count, nccl_type(send.type), nccl_operation(op),
                       root, comm_, native(stream)));
  }
  void broadcast(ConstView send, View recv, int root, Stream& stream) override {
    count_broadcast(recv.bytes(), root);
    ENQUEUE(ncclBroadcast(send.data, recv.data, recv.count, nccl_type(recv.type), root, comm_,
                          native(stream)));
  }
  void all_gather(ConstView send, View recv, Stream& stream) override {
    ENSURE(recv.count == send.count * ranks(), "all_gather counts");
    count_ring(recv.bytes(), 1);
    ENQUEUE(ncclAllGather(send.data, recv.data, send.count, nccl_type(send.type), comm_,
                          native(stream)));
  }
  void reduce_scatter(ConstView send, View recv, Reduction op, Stream& stream) override {
    ENSURE(send.count == recv.count * ranks(), "reduce_scatter counts");
    count_ring(send.bytes(), 1);
    ENQUEUE(ncclReduceScatter(send.data, recv.data, recv.count, nccl_type(recv.type),
                              nccl_operation(op), comm_, native(stream)));
  }
  void gather(ConstView send, View recv, int root, Stream& stream) override {
    count_gather(send.bytes(), root);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    ENQUEUE(ncclGather(send.data, recv.data, send.count, nccl_type(send.type), root, comm_,
                       native(stream)));
#else
    group([&] {
      if (rank() == root)
        for (std::size_t r = 0; r < ranks(); ++r)
          recv_from(part(recv, r, send.count), send, static_cast<int>(r), stream);
      send_to(send.data, send, root, stream);
    });
#endif
  }
  void scatter(ConstView send, View recv, int root, Stream& stream) override {
    count_scatter(recv.bytes(), root);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    ENQUEUE(ncclScatter(send.data, recv.data, recv.count, nccl_type(recv.type), root, comm_,
                        native(stream)));
#else
    group([&] {
      if (rank() == root)
        for (std::size_t r = 0; r < ranks(); ++r)
          send_to(part(send, r, recv.count), recv, static_cast<int>(r), stream);
      recv_from(recv.data, recv, root, stream);
    });
#endif
  }
  void all_to_all(ConstView send, View recv, Stream& stream) override {
    const std::size_t each = send.count / ranks();
    ENSURE(each * ranks() == send.count && send.count == recv.count, "all_to_all counts");
    count_ring(send.bytes(), 1);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    ENQUEUE(ncclAlltoAll(send.data, recv.data, each, nccl_type(send.type), comm_, native(stream)));
#else
    group([&] {
      for (std::size_t r = 0; r < ranks(); ++r) {
        send_to(part(send, r, each), send.slice(0, each), static_cast<int>(r), stream);
        recv_from(part(recv, r, each), recv.slice(0, each), static_cast<int>(r), stream);
      }
    });
#endif
  }
  void send(ConstView view, int peer, Stream& stream) override {
    count(view.bytes(), 1, 0);
    send_to(view.data, view, peer, stream);
  }
  void recv(View view, int peer, Stream& stream) override {
    count(view.bytes(), 0, 1);
    recv_from(view.data, view, peer, stream);
  }

  std::unique_ptr<TransportMemory> allocate(std::size_t bytes, Registration registration) override {
    std::unique_ptr<TransportMemory> memory;
    in_time([&] { memory = allocate_nccl_memory(comm_, bytes, registration); });
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

  void wait(const Event& event, HostWait how) override {
    abort_on_error([&] {
      wait_until_done(event, timeout_s_, spin_seconds(how), [this] {
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

  void send_to(const void* data, ConstView like, int peer, Stream& stream) {
    ENQUEUE(ncclSend(data, like.count, nccl_type(like.type), peer, comm_, native(stream)));
  }
  void recv_from(void* data, ConstView like, int peer, Stream& stream) {
    ENQUEUE(ncclRecv(data, like.count, nccl_type(like.type), peer, comm_, native(stream)));
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

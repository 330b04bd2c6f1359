// The gpu backend's communicator: NCCL, bootstrapped over MPI.
#include "common/communicator.hpp"

#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <exception>

#include "common/backend.hpp"
#include "common/gpu/native.hpp"
#include "common/mpi_communicator.hpp"
#include "common/mpi_session.hpp"
#include "common/wait.hpp"

namespace shakedown::gpu {
namespace {

void check_nccl(ncclResult_t status, const char* expression, const char* file, int line,
                ncclComm_t comm) {
  if (status == ncclSuccess || status == ncclInProgress) return;
  throw_library_error("NCCL", expression, file, line,
                      fmt::format("{} ({})", ncclGetErrorString(status), ncclGetLastError(comm)));
}
#define CHECK_NCCL(expression, comm) \
  check_nccl((expression), #expression, __FILE__, __LINE__, (comm))

ncclDataType_t nccl_type(DataType type) {
  switch (type) {
    case DataType::float64: return ncclFloat64;
    case DataType::float32: return ncclFloat32;
    case DataType::float16: return ncclFloat16;
    case DataType::bfloat16: return ncclBfloat16;
    case DataType::int64: return ncclInt64;
    case DataType::int32: return ncclInt32;
    case DataType::int8: return ncclInt8;
    case DataType::uint8: return ncclUint8;
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

template <class Byte>
Byte* part(BasicView<Byte> view, std::size_t index, std::size_t count) {
  return view.slice(index * count, count).data;
}

class NcclCommunicator final : public Communicator {
 public:
  /// `host` spans the same ranks and carries what NCCL does not: the barrier and the bootstrap.
  NcclCommunicator(std::unique_ptr<Communicator> host, Device& device, double timeout_s)
      : host_(std::move(host)), device_(device), timeout_s_(timeout_s) {
    ncclUniqueId id{};
    if (host_->rank() == 0) CHECK_NCCL(ncclGetUniqueId(&id), nullptr);
    const auto stream = device_.make_stream();
    const View bytes(&id, sizeof(id), DataType::uint8, Place::host);
    host_->broadcast(bytes, bytes, 0, *stream);
    CHECK_NCCL(ncclCommInitRank(&comm_, host_->size(), id, host_->rank()), nullptr);
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  ~NcclCommunicator() override {
    if (comm_ == nullptr) return;
    // While an exception unwinds, peers may never answer again: do not wait for them.
    if (std::uncaught_exceptions() > exceptions_)
      ncclCommAbort(comm_);
    else
      ncclCommDestroy(comm_);
  }

  const char* transport() const override { return "nccl"; }
  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  void all_reduce(ConstView send, View recv, Reduction op, Stream& stream) override {
    count(send, recv);
    CHECK_NCCL(ncclAllReduce(send.data, recv.data, recv.count, nccl_type(recv.type),
                             nccl_operation(op), comm_, native(stream)),
               comm_);
  }
  void reduce(ConstView send, View recv, Reduction op, int root, Stream& stream) override {
    count(send, recv);
    CHECK_NCCL(ncclReduce(send.data, recv.data, send.count, nccl_type(send.type),
                          nccl_operation(op), root, comm_, native(stream)),
               comm_);
  }
  void broadcast(ConstView send, View recv, int root, Stream& stream) override {
    count(send, recv);
    CHECK_NCCL(ncclBroadcast(send.data, recv.data, recv.count, nccl_type(recv.type), root, comm_,
                             native(stream)),
               comm_);
  }
  void all_gather(ConstView send, View recv, Stream& stream) override {
    ENSURE(recv.count == send.count * ranks(), "all_gather counts");
    count(send, recv);
    CHECK_NCCL(ncclAllGather(send.data, recv.data, send.count, nccl_type(send.type), comm_,
                             native(stream)),
               comm_);
  }
  void reduce_scatter(ConstView send, View recv, Reduction op, Stream& stream) override {
    ENSURE(send.count == recv.count * ranks(), "reduce_scatter counts");
    count(send, recv);
    CHECK_NCCL(ncclReduceScatter(send.data, recv.data, recv.count, nccl_type(recv.type),
                                 nccl_operation(op), comm_, native(stream)),
               comm_);
  }
  void gather(ConstView send, View recv, int root, Stream& stream) override {
    count(send, recv);
    group([&] {
      if (rank() == root)
        for (std::size_t r = 0; r < ranks(); ++r)
          recv_from(part(recv, r, send.count), send, static_cast<int>(r), stream);
      send_to(send.data, send, root, stream);
    });
  }
  void scatter(ConstView send, View recv, int root, Stream& stream) override {
    count(send, recv);
    group([&] {
      if (rank() == root)
        for (std::size_t r = 0; r < ranks(); ++r)
          send_to(part(send, r, recv.count), recv, static_cast<int>(r), stream);
      recv_from(recv.data, recv, root, stream);
    });
  }
  void all_to_all(ConstView send, View recv, Stream& stream) override {
    const std::size_t each = send.count / ranks();
    ENSURE(each * ranks() == send.count && send.count == recv.count, "all_to_all counts");
    count(send, recv);
    group([&] {
      for (std::size_t r = 0; r < ranks(); ++r) {
        send_to(part(send, r, each), send.slice(0, each), static_cast<int>(r), stream);
        recv_from(part(recv, r, each), recv.slice(0, each), static_cast<int>(r), stream);
      }
    });
  }
  void send(ConstView view, int peer, Stream& stream) override {
    count(view, View());
    send_to(view.data, view, peer, stream);
  }
  void recv(View view, int peer, Stream& stream) override {
    count(ConstView(), view);
    recv_from(view.data, view, peer, stream);
  }

  void barrier() override { host_->barrier(); }

  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<NcclCommunicator>(host_->split(color, key), device_, timeout_s_);
  }

  void wait(const Event& event) override {
    try {
      wait_until_done(event, timeout_s_, [this] {
        ncclResult_t asynchronous = ncclSuccess;
        CHECK_NCCL(ncclCommGetAsyncError(comm_, &asynchronous), comm_);
        CHECK_NCCL(asynchronous, comm_);
      });
    } catch (...) {
      ncclCommAbort(
          comm_);  // lets the kernels that wait for a peer end, so that memory can be freed
      comm_ = nullptr;
      throw;
    }
  }

 protected:
  void begin_group() override { CHECK_NCCL(ncclGroupStart(), comm_); }
  void end_group() override { CHECK_NCCL(ncclGroupEnd(), comm_); }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }

  void count(ConstView send, ConstView recv) {
    ++traffic_.operations;
    traffic_.bytes += std::max(send.bytes(), recv.bytes());
  }
  void send_to(const void* data, ConstView like, int peer, Stream& stream) {
    CHECK_NCCL(ncclSend(data, like.count, nccl_type(like.type), peer, comm_, native(stream)),
               comm_);
  }
  void recv_from(void* data, ConstView like, int peer, Stream& stream) {
    CHECK_NCCL(ncclRecv(data, like.count, nccl_type(like.type), peer, comm_, native(stream)),
               comm_);
  }

  std::unique_ptr<Communicator> host_;
  Device& device_;
  double timeout_s_;
  ncclComm_t comm_ = nullptr;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace

std::unique_ptr<Communicator> make_communicator(const MpiSession& session, Device& device) {
  return std::make_unique<NcclCommunicator>(make_mpi_communicator(session, device), device,
                                            session.timeout_s());
}

}  // namespace shakedown::gpu

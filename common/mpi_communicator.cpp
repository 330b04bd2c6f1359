#include "common/mpi_communicator.hpp"

#include <fmt/format.h>

#include <array>
#include <climits>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "common/device.hpp"
#include "common/error.hpp"
#include "common/mpi_exchange.hpp"
#include "common/mpi_handle.hpp"
#include "common/mpi_session.hpp"
#include "common/types.hpp"

namespace shakedown {

namespace {

/// Throws UsageError for the 8-bit floating-point types, which MPI cannot reduce.
MPI_Datatype mpi_type(DataType type) {
  switch (type) {
    case DataType::float64: return MPI_DOUBLE;
    case DataType::float32: return MPI_FLOAT;
    case DataType::float16:
    case DataType::bfloat16: return MPI_UINT16_T;
    case DataType::int64: return MPI_INT64_T;
    case DataType::int32: return MPI_INT32_T;
    case DataType::int8: return MPI_INT8_T;
    case DataType::uint64: return MPI_UINT64_T;
    case DataType::uint32: return MPI_UINT32_T;
    case DataType::uint8: return MPI_UINT8_T;
    default:
      throw UsageError(fmt::format("{}: MPI has no such type, NCCL on GPUs does", name_of(type)));
  }
}

/// Elements as MPI counts them, in 32 bits.
int count_of(std::size_t count) {
  ENSURE(count <= INT_MAX, fmt::format("{} elements: MPI counts are 32-bit", count));
  return static_cast<int>(count);
}

template <DataType type, Reduction op>
void reduce_half(void* in, void* inout, int* count, MPI_Datatype*) {
  const std::array<const void*, 2> inputs{in, inout};
  reduce_elements(op, inputs, {inout, static_cast<std::size_t>(*count), type, Place::host});
}

/// An MPI operation for each type and reduction; `avg` is a sum, to be divided.
class MpiOperations {
 public:
  MpiOperations() {
    add_all<DataType::float16>();
    add_all<DataType::bfloat16>();
  }
  MpiOperations(const MpiOperations&) = delete;
  MpiOperations& operator=(const MpiOperations&) = delete;
  ~MpiOperations() {
    for (Half& half : halves_) MPI_Op_free(&half.op);
  }

  MPI_Op of(DataType type, Reduction reduction) const {
    const Reduction known = reduction == Reduction::avg ? Reduction::sum : reduction;
    for (const Half& half : halves_)
      if (half.type == type && half.reduction == known) return half.op;
    switch (known) {
      case Reduction::prod: return MPI_PROD;
      case Reduction::min: return MPI_MIN;
      case Reduction::max: return MPI_MAX;
      default: return MPI_SUM;
    }
  }

 private:
  template <DataType type, Reduction op>
  void add() {
    MPI_Op made = MPI_OP_NULL;
    CHECK_MPI(MPI_Op_create(reduce_half<type, op>, 1, &made));
    halves_.push_back({type, op, made});
  }
  template <DataType type>
  void add_all() {
    add<type, Reduction::sum>();
    add<type, Reduction::prod>();
    add<type, Reduction::min>();
    add<type, Reduction::max>();
  }

  struct Half {
    DataType type;
    Reduction reduction;
    MPI_Op op;
  };
  std::vector<Half> halves_;  // MPI has no 16-bit floating-point types
};

bool overlap(ConstView a, ConstView b) {
  const auto* a_begin = static_cast<const std::byte*>(a.data);
  const auto* b_begin = static_cast<const std::byte*>(b.data);
  return a_begin < b_begin + b.bytes() && b_begin < a_begin + a.bytes();
}

class HostMemory final : public TransportMemory {
 public:
  HostMemory(Device& device, std::size_t bytes) : buffer_(device, bytes, Place::host) {}
  void* data() const override { return buffer_.data(); }
  Place place() const override { return Place::host; }

 private:
  Buffer buffer_;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MPI_Comm comm, Device& device, MpiAlgorithm algorithm, double timeout_s)
      : handles_(std::make_unique<Handles>(comm)),
        comm_(comm),
        device_(device),
        algorithm_(algorithm),
        timeout_s_(timeout_s),
        large_(comm, device) {
    CHECK_MPI(MPI_Comm_rank(comm_, &rank_));
    CHECK_MPI(MPI_Comm_size(comm_, &size_));
  }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;
  ~MpiCommunicator() override {
    if (timed_out_) handles_.release();  // what is under way still needs them
  }

  const char* transport() const override { return "mpi"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool supports(DataType type) const override { return !is_float8(type); }

  void all_reduce(ConstView send, View recv, Reduction op, Stream& stream) override {
    count_ring(recv.bytes(), 2);
    const Own own = own_if(large_.suits_all_reduce(send.bytes()), &MpiExchange::all_reduce);
    Exchange x(*this, {"all_reduce", op, own}, send, recv, stream);
    if (own == nullptr)
      CHECK_MPI(MPI_Iallreduce(x.in_place ? MPI_IN_PLACE : x.send.data, x.recv.data,
                               count_of(recv.count), mpi_type(recv.type), mpi_op(recv.type, op),
                               comm_, &x.request));
    start(x);
  }

  void reduce(ConstView send, View recv, Reduction op, int root, Stream& stream) override {
    count_reduce(send.bytes(), root);
    Exchange x(*this, {"reduce", op}, send, rank_ == root ? recv : View(), stream);
    CHECK_MPI(MPI_Ireduce(x.in_place ? MPI_IN_PLACE : x.send.data, x.recv.data,
                          count_of(send.count), mpi_type(send.type), mpi_op(send.type, op), root,
                          comm_, &x.request));
    start(x);
  }

  void broadcast(ConstView send, View recv, int root, Stream& stream) override {
    count_broadcast(recv.bytes(), root);
    Exchange x(*this, {"broadcast"}, rank_ == root ? send : ConstView(), recv, stream);
    if (rank_ == root && !x.in_place) std::memcpy(x.recv.data, x.send.data, x.recv.bytes());
    CHECK_MPI(MPI_Ibcast(x.recv.data, count_of(recv.count), mpi_type(recv.type), root, comm_,
                         &x.request));
    start(x);
  }

  void all_gather(ConstView send, View recv, Stream& stream) override {
    ENSURE(recv.count == send.count * static_cast<std::size_t>(size_), "all_gather counts");
    count_ring(recv.bytes(), 1);
    const View mine = recv.slice(static_cast<std::size_t>(rank_) * send.count, send.count);
    const bool in_place = send.data == mine.data && reachable(recv);
    Exchange x(*this, {"all_gather"}, in_place ? ConstView() : send, recv, stream);
    CHECK_MPI(MPI_Iallgather(in_place ? MPI_IN_PLACE : x.send.data, count_of(send.count),
                             mpi_type(send.type), x.recv.data, count_of(send.count),
                             mpi_type(send.type), comm_, &x.request));
    start(x);
  }

  void reduce_scatter(ConstView send, View recv, Reduction op, Stream& stream) override {
    ENSURE(send.count == recv.count * static_cast<std::size_t>(size_), "reduce_scatter counts");
    count_ring(send.bytes(), 1);
    const Own own = own_if(large_.suits_reduce_scatter(send.bytes()), &MpiExchange::reduce_scatter);
    Exchange x(*this, {"reduce_scatter", op, own}, send, recv, stream);
    if (own == nullptr)
      CHECK_MPI(MPI_Ireduce_scatter_block(x.send.data, x.recv.data, count_of(recv.count),
                                          mpi_type(recv.type), mpi_op(recv.type, op), comm_,
                                          &x.request));
    start(x);
  }

  void gather(ConstView send, View recv, int root, Stream& stream) override {
    count_gather(send.bytes(), root);
    Exchange x(*this, {"gather"}, send, rank_ == root ? recv : View(), stream);
    CHECK_MPI(MPI_Igather(x.send.data, count_of(send.count), mpi_type(send.type), x.recv.data,
                          count_of(send.count), mpi_type(send.type), root, comm_, &x.request));
    start(x);
  }

  void scatter(ConstView send, View recv, int root, Stream& stream) override {
    count_scatter(recv.bytes(), root);
    Exchange x(*this, {"scatter"}, rank_ == root ? send : ConstView(), recv, stream);
    CHECK_MPI(MPI_Iscatter(x.send.data, count_of(recv.count), mpi_type(recv.type), x.recv.data,
                           count_of(recv.count), mpi_type(recv.type), root, comm_, &x.request));
    start(x);
  }

  void all_to_all(ConstView send, View recv, Stream& stream) override {
    const std::size_t part = send.count / static_cast<std::size_t>(size_);
    ENSURE(part * static_cast<std::size_t>(size_) == send.count && send.count == recv.count,
           "all_to_all counts");
    count_ring(send.bytes(), 1);
    Exchange x(*this, {"all_to_all"}, send, recv, stream);
    CHECK_MPI(MPI_Ialltoall(x.send.data, count_of(part), mpi_type(send.type), x.recv.data,
                            count_of(part), mpi_type(send.type), comm_, &x.request));
    start(x);
  }

  void send(ConstView view, int peer, Stream& stream) override {
    count(view.bytes(), 1, 0);
    Exchange x(*this, {"send"}, view, View(), stream);
    CHECK_MPI(MPI_Isend(x.send.data, count_of(view.count), mpi_type(view.type), peer, kMessageTag,
                        comm_, &x.request));
    start(x);
  }

  void recv(View view, int peer, Stream& stream) override {
    count(view.bytes(), 0, 1);
    Exchange x(*this, {"recv"}, ConstView(), view, stream);
    CHECK_MPI(MPI_Irecv(x.recv.data, count_of(view.count), mpi_type(view.type), peer, kMessageTag,
                        comm_, &x.request));
    start(x);
  }

  void barrier() override {
    MpiOperation operation;
    CHECK_MPI(MPI_Ibarrier(comm_, operation.request()));
    complete(operation, "barrier");
  }

  void notify(int peer, int value) override {
    MpiOperation operation;
    const auto& notice = operation.keep(std::array{rank_, value});
    CHECK_MPI(MPI_Isend(notice.data(), 2, MPI_INT, peer, kNoticeTag, comm_, operation.request()));
    complete(operation, "a notice");
  }

  Notice next_notice() override {
    MpiOperation operation;
    auto& notice = operation.keep(std::array<int, 2>());
    CHECK_MPI(MPI_Irecv(notice.data(), 2, MPI_INT, MPI_ANY_SOURCE, kNoticeTag, comm_,
                        operation.request()));
    complete(operation, "waiting for a notice of any rank");
    return {notice[0], notice[1]};
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    MPI_Comm part = MPI_COMM_NULL;
    wait_for_all(comm_, timeout_s_);
    CHECK_MPI(MPI_Comm_split(comm_, color, key, &part));
    CHECK_MPI(MPI_Comm_set_errhandler(part, MPI_ERRORS_RETURN));
    return std::make_unique<MpiCommunicator>(part, device_, algorithm_, timeout_s_);
  }

  void wait(const Event& event, HostWait how) override {
    wait_until_done(event, timeout_s_, spin_seconds(how), [] {});
  }

  std::unique_ptr<TransportMemory> allocate(std::size_t bytes, Registration registration) override {
    if (registration != Registration::none)
      throw UsageError("buffers are registered with NCCL, not with MPI");
    return std::make_unique<HostMemory>(device_, bytes);
  }

 protected:
  void begin_group() override { ++groups_; }
  void end_group() override {
    if (--groups_ == 0) complete();
  }

 private:
  /// The MPI resources of operations that are under way.
  struct Handles {
    explicit Handles(MPI_Comm comm) : comm(comm) {}
    Handles(const Handles&) = delete;
    Handles& operator=(const Handles&) = delete;
    ~Handles() { MPI_Comm_free(&comm); }
    MPI_Comm comm;
    MpiOperations operations;
  };

  /// MpiExchange's way to do an operation; null: the library's.
  using Own = bool (MpiExchange::*)(ConstView, View, Reduction, MpiDeadline&);

  struct Operation {
    const char* name;
    Reduction op = Reduction::sum;
    Own own = nullptr;
  };

  /// One operation, the host memory that it works on, and what is to be done when it has finished.
  struct Exchange {
    Exchange(MpiCommunicator& owner, Operation what, ConstView from, View to, Stream& stream)
        : operation(what), destination(to), stream(&stream) {
      stream.synchronize();  // MPI reads and writes outside the stream's order
      in_place = from.data == to.data && from.count == to.count;
      recv = owner.reachable(to) ? to : owner.staging(to);
      if (in_place) {
        if (recv.data != to.data) owner.stage_in(from, recv, stream);
        send = recv;
      } else {
        // MPI forbids buffers that overlap; NCCL's in-place forms do
        send = from;
        if (!owner.reachable(from) || (what.own == nullptr && overlap(from, to))) {
          const View host = owner.staging(from);
          owner.stage_in(from, host, stream);
          send = host;
        }
      }
    }

    Operation operation;
    ConstView send;
    View recv;
    View destination;
    Stream* stream;
    bool in_place = false;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  bool on_device(ConstView view) const {
    return view.place == Place::device && device_.kind() == BackendKind::gpu;
  }
  /// Whether MPI may use the memory itself: host memory that lives on past a time-out.
  bool reachable(ConstView view) const {
    return view.count == 0 || (!on_device(view) && device_.owns(view.data));
  }

  View staging(ConstView like) {
    if (staging_used_ == staging_.size()) staging_.emplace_back();
    Buffer& buffer = staging_[staging_used_++];
    if (buffer.bytes() < like.bytes()) buffer = Buffer(device_, like.bytes(), Place::host);
    return {buffer.data(), like.count, like.type, Place::host};
  }

  void stage_in(ConstView from, View host, Stream& stream) {
    device_.copy(host.data, from.data, from.bytes(), stream);
    stream.synchronize();
    if (on_device(from)) traffic_.staged_bytes += from.bytes();
  }

  void stage_out(const Exchange& x) {
    device_.copy(x.destination.data, x.recv.data, x.destination.bytes(), *x.stream);
    x.stream->synchronize();
    if (on_device(x.destination)) traffic_.staged_bytes += x.destination.bytes();
  }

  MPI_Op mpi_op(DataType type, Reduction op) const { return handles_->operations.of(type, op); }

  Own own_if(bool suits, Own own) const {
    return algorithm_ == MpiAlgorithm::own && suits ? own : nullptr;
  }

  void start(const Exchange& exchange) {
    pending_.push_back(exchange);
    if (groups_ == 0) complete();
  }

  /// Own operations run here, in their order: it is that of all ranks. Others are under way.
  void complete() {
    if (pending_.empty()) return;
    MpiDeadline deadline(timeout_s_);
    std::vector<MPI_Request> requests;
    for (const Exchange& x : pending_) {
      const auto& [name, op, own] = x.operation;
      if (own == nullptr)
        requests.push_back(x.request);
      else if (!(large_.*own)(x.send, x.recv, op, deadline))
        give_up(deadline.error(describe(x)));
    }
    if (!deadline.wait(requests)) give_up(deadline.error(describe(pending_.front())));
    for (const Exchange& x : pending_) {
      const auto& [name, op, own] = x.operation;
      if (op == Reduction::avg && own == nullptr) divide_elements(x.recv, size_);
      if (x.recv.data != x.destination.data) stage_out(x);
    }
    pending_.clear();
    staging_used_ = 0;
  }

  void complete(MpiOperation& operation, const char* what) {
    try {
      operation.wait(timeout_s_, what);
    } catch (const TimeoutError& error) {
      give_up(error);
    }
  }

  /// A rank that is late still completes what is under way.
  [[noreturn]] void give_up(const TimeoutError& error) {
    timed_out_ = true;
    device_.keep_memory();
    pending_.clear();
    throw error;
  }

  std::string describe(const Exchange& x) const {
    const ConstView view = x.send.count > 0 ? x.send : ConstView(x.destination);
    return fmt::format("{} of {} {}", x.operation.name,
                       readable_bytes(static_cast<double>(view.bytes())), name_of(view.type));
  }

  static constexpr int kMessageTag = 0;  // MpiExchange has 2 and 3
  static constexpr int kNoticeTag = 1;

  std::unique_ptr<Handles> handles_;
  MPI_Comm comm_;
  Device& device_;
  MpiAlgorithm algorithm_;
  double timeout_s_;
  MpiExchange large_;
  int rank_ = 0;
  int size_ = 1;
  int groups_ = 0;  // one within another
  bool timed_out_ = false;
  std::vector<Exchange> pending_;
  std::deque<Buffer> staging_;  // stable while a group adds to it; reused afterwards
  std::size_t staging_used_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(const MpiSession& session, Device& device,
                                                    MpiAlgorithm algorithm) {
  MPI_Comm comm = MPI_COMM_NULL;
  wait_for_all(session.handle().comm, session.timeout_s());
  CHECK_MPI(MPI_Comm_dup(session.handle().comm, &comm));
  CHECK_MPI(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
  return std::make_unique<MpiCommunicator>(comm, device, algorithm, session.timeout_s());
}

}  // namespace shakedown

#include "common/communicator.hpp"

#include <fmt/format.h>

#include <array>
#include <climits>
#include <cstring>
#include <deque>
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

  void wait_until(const std::function<bool()>& done, HostWait how) override {
    wait_for_ranks(done, timeout_s_, spin_seconds(how), [] {});
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
  void enqueue(const Exchange& exchange, Stream& stream) override {
    Work work(*this, exchange, stream);
    if (work.own == nullptr) start(work);
    pending_.push_back(work);
    if (groups_ == 0) complete();
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

  Own own_way(const Exchange& x) const {
    if (algorithm_ != MpiAlgorithm::own) return nullptr;
    if (x.kind == Exchange::all_reduce && large_.suits_all_reduce(x.from.bytes()))
      return &MpiExchange::all_reduce;
    if (x.kind == Exchange::reduce_scatter && large_.suits_reduce_scatter(x.from.bytes()))
      return &MpiExchange::reduce_scatter;
    return nullptr;
  }

  /// An exchange, the host memory that it works on, and what is to be done when it has finished.
  struct Work {
    Work(MpiCommunicator& owner, const Exchange& x, Stream& on)
        : exchange(x), own(owner.own_way(x)), stream(&on) {
      on.synchronize();  // MPI reads and writes outside the stream's order
      owner.forget_unused(exchange);
      const ConstView from = exchange.from;
      const View to = exchange.to;
      in_place = from.data == to.data && from.count == to.count;
      recv = owner.reachable(to) ? to : owner.staging(to);
      send = from;
      if (in_place) {
        if (recv.data != to.data) owner.stage_in(from, recv, on);
        send = recv;
      } else if (!owner.reachable(from) || (own == nullptr && overlap(from, to))) {
        // MPI forbids buffers that overlap; NCCL's in-place forms do
        const View host = owner.staging(from);
        owner.stage_in(from, host, on);
        send = host;
      }
    }

    Exchange exchange;
    Own own;
    ConstView send;
    View recv;
    Stream* stream;
    bool in_place = false;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  /// Views that this rank does not use: all but the root some, all ranks an all_gather's in place,
  /// which is sent from where it is received.
  void forget_unused(Exchange& x) const {
    const bool is_root = rank_ == x.peer;
    if (!is_root && (x.kind == Exchange::reduce || x.kind == Exchange::gather)) x.to = View();
    if (!is_root && (x.kind == Exchange::broadcast || x.kind == Exchange::scatter))
      x.from = ConstView();
    const auto before = static_cast<std::size_t>(rank_) * x.from.count;
    if (x.kind == Exchange::all_gather && reachable(x.to) &&
        x.from.data == x.to.slice(before, x.from.count).data)
      x.from = ConstView();
  }

  /// By the library's own algorithm.
  void start(Work& w) {
    const Exchange& x = w.exchange;
    const void* const from = w.in_place ? MPI_IN_PLACE : w.send.data;
    void* const to = w.recv.data;
    const MPI_Datatype type = mpi_type(x.to.count > 0 ? x.to.type : x.from.type);
    const auto ranks = static_cast<std::size_t>(size_);
    switch (x.kind) {
      case Exchange::all_reduce:
        CHECK_MPI(
            MPI_Iallreduce(from, to, count_of(x.to.count), type, mpi_op(x), comm_, &w.request));
        return;
      case Exchange::reduce:
        CHECK_MPI(MPI_Ireduce(from, to, count_of(x.from.count), type, mpi_op(x), x.peer, comm_,
                              &w.request));
        return;
      case Exchange::broadcast:
        if (rank_ == x.peer && !w.in_place) std::memcpy(to, from, w.recv.bytes());
        CHECK_MPI(MPI_Ibcast(to, count_of(x.to.count), type, x.peer, comm_, &w.request));
        return;
      case Exchange::all_gather: {
        const int part = count_of(x.to.count / ranks);
        CHECK_MPI(MPI_Iallgather(x.from.count == 0 ? MPI_IN_PLACE : w.send.data, part, type, to,
                                 part, type, comm_, &w.request));
        return;
      }
      case Exchange::reduce_scatter:
        CHECK_MPI(MPI_Ireduce_scatter_block(w.send.data, to, count_of(x.to.count), type, mpi_op(x),
                                            comm_, &w.request));
        return;
      case Exchange::gather:
        CHECK_MPI(MPI_Igather(w.send.data, count_of(x.from.count), type, to, count_of(x.from.count),
                              type, x.peer, comm_, &w.request));
        return;
      case Exchange::scatter:
        CHECK_MPI(MPI_Iscatter(w.send.data, count_of(x.to.count), type, to, count_of(x.to.count),
                               type, x.peer, comm_, &w.request));
        return;
      case Exchange::all_to_all: {
        const int part = count_of(x.from.count / ranks);
        CHECK_MPI(MPI_Ialltoall(w.send.data, part, type, to, part, type, comm_, &w.request));
        return;
      }
      case Exchange::send:
        CHECK_MPI(MPI_Isend(w.send.data, count_of(x.from.count), type, x.peer, kMessageTag, comm_,
                            &w.request));
        return;
      case Exchange::recv:
        CHECK_MPI(
            MPI_Irecv(to, count_of(x.to.count), type, x.peer, kMessageTag, comm_, &w.request));
    }
  }

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

  void stage_out(const Work& w) {
    const View to = w.exchange.to;
    device_.copy(to.data, w.recv.data, to.bytes(), *w.stream);
    w.stream->synchronize();
    if (on_device(to)) traffic_.staged_bytes += to.bytes();
  }

  MPI_Op mpi_op(const Exchange& x) const {
    return handles_->operations.of(x.to.count > 0 ? x.to.type : x.from.type, x.op);
  }

  /// Own operations run here, in their order: it is that of all ranks. Others are under way.
  void complete() {
    if (pending_.empty()) return;
    MpiDeadline deadline(timeout_s_);
    std::vector<MPI_Request> requests;
    for (const Work& w : pending_) {
      if (w.own == nullptr)
        requests.push_back(w.request);
      else if (!(large_.*w.own)(w.send, w.recv, w.exchange.op, deadline))
        give_up(deadline.error(describe(w)));
    }
    if (!deadline.wait(requests)) give_up(deadline.error(describe(pending_.front())));
    for (const Work& w : pending_) {
      if (w.exchange.op == Reduction::avg && w.own == nullptr) divide_elements(w.recv, size_);
      if (w.recv.data != w.exchange.to.data) stage_out(w);
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

  std::string describe(const Work& w) const {
    const ConstView view = w.send.count > 0 ? w.send : ConstView(w.exchange.to);
    return fmt::format("{} of {} {}", w.exchange.name(),
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
  std::vector<Work> pending_;
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

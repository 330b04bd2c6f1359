#include "common/mpi_communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <deque>
#include <functional>
#include <utility>

#include "common/half.hpp"
#include "common/mpi_handle.hpp"
#include "common/mpi_session.hpp"
#include "common/wait.hpp"

namespace shakedown {
namespace {

float to_float(DataType type, std::uint16_t bits) {
  return type == DataType::float16 ? float16_to_float(bits) : bfloat16_to_float(bits);
}
std::uint16_t from_float(DataType type, float value) {
  return type == DataType::float16 ? float_to_float16(value) : float_to_bfloat16(value);
}

template <class T>
T combine(Reduction op, T a, T b) {
  switch (op) {
    case Reduction::prod: return a * b;
    case Reduction::min: return std::min(a, b);
    case Reduction::max: return std::max(a, b);
    default: return a + b;
  }
}

/// MPI has no 16-bit floating types: an MPI_User_function each.
template <DataType type, Reduction op>
void reduce_half(void* in, void* inout, int* count, MPI_Datatype*) {
  const auto* a = static_cast<const std::uint16_t*>(in);
  auto* b = static_cast<std::uint16_t*>(inout);
  for (int i = 0; i < *count; ++i)
    b[i] = from_float(type, combine(op, to_float(type, a[i]), to_float(type, b[i])));
}

/// Owns the MPI operations of one 16-bit type.
class HalfOperations {
 public:
  template <DataType type>
  static HalfOperations make() {
    HalfOperations made;
    made.create(Reduction::sum, reduce_half<type, Reduction::sum>);
    made.create(Reduction::prod, reduce_half<type, Reduction::prod>);
    made.create(Reduction::min, reduce_half<type, Reduction::min>);
    made.create(Reduction::max, reduce_half<type, Reduction::max>);
    return made;
  }
  HalfOperations(HalfOperations&&) = default;
  HalfOperations& operator=(HalfOperations&&) = delete;
  HalfOperations(const HalfOperations&) = delete;
  HalfOperations& operator=(const HalfOperations&) = delete;
  ~HalfOperations() {
    for (auto& [reduction, op] : operations_) MPI_Op_free(&op);
  }

  MPI_Op of(Reduction reduction) const {
    for (const auto& [known, op] : operations_)
      if (known == reduction) return op;
    return operations_.front().second;  // avg is a sum, divided afterwards
  }

 private:
  HalfOperations() = default;
  void create(Reduction reduction, MPI_User_function* function) {
    MPI_Op op = MPI_OP_NULL;
    CHECK_MPI(MPI_Op_create(function, 1, &op));
    operations_.emplace_back(reduction, op);
  }
  std::vector<std::pair<Reduction, MPI_Op>> operations_;
};

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
    case DataType::float8_e4m3:
    case DataType::float8_e5m2:
      throw UsageError(fmt::format("{}: MPI has no such type, NCCL on GPUs does", name_of(type)));
  }
  throw InternalError("unknown data type");
}

MPI_Op builtin_operation(Reduction op) {
  switch (op) {
    case Reduction::prod: return MPI_PROD;
    case Reduction::min: return MPI_MIN;
    case Reduction::max: return MPI_MAX;
    default: return MPI_SUM;
  }
}

template <class T>
void divide_all(View view, T divisor) {
  auto* x = static_cast<T*>(view.data);
  for (std::size_t i = 0; i < view.count; ++i) x[i] = static_cast<T>(x[i] / divisor);
}

/// Host memory; integers truncate toward zero.
void divide(View view, int n) {
  switch (view.type) {
    case DataType::float64: return divide_all<double>(view, n);
    case DataType::float32: return divide_all<float>(view, static_cast<float>(n));
    case DataType::int64: return divide_all<std::int64_t>(view, n);
    case DataType::int32: return divide_all<std::int32_t>(view, n);
    case DataType::uint64: return divide_all<std::uint64_t>(view, static_cast<std::uint64_t>(n));
    case DataType::uint32: return divide_all<std::uint32_t>(view, static_cast<std::uint32_t>(n));
    case DataType::float16:
    case DataType::bfloat16: {
      auto* x = static_cast<std::uint16_t*>(view.data);
      for (std::size_t i = 0; i < view.count; ++i)
        x[i] = from_float(view.type, to_float(view.type, x[i]) / static_cast<float>(n));
      return;
    }
    case DataType::int8:
    case DataType::uint8: {
      ENSURE(n <= 127, "the average of 8-bit integers is for at most 127 ranks");
      if (view.type == DataType::int8)
        return divide_all<std::int8_t>(view, static_cast<std::int8_t>(n));
      return divide_all<std::uint8_t>(view, static_cast<std::uint8_t>(n));
    }
    case DataType::float8_e4m3:
    case DataType::float8_e5m2: break;  // refused by mpi_type
  }
}

bool overlap(ConstView a, ConstView b) {
  const auto* a_begin = static_cast<const std::byte*>(a.data);
  const auto* b_begin = static_cast<const std::byte*>(b.data);
  return a_begin < b_begin + b.bytes() && b_begin < a_begin + a.bytes();
}

int count_of(std::size_t count) {
  ENSURE(count <= INT_MAX, fmt::format("{} elements: MPI counts are 32-bit", count));
  return static_cast<int>(count);
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
  MpiCommunicator(MPI_Comm comm, Device& device, double timeout_s)
      : comm_(comm), device_(device), timeout_s_(timeout_s) {
    CHECK_MPI(MPI_Comm_rank(comm_, &rank_));
    CHECK_MPI(MPI_Comm_size(comm_, &size_));
  }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;
  ~MpiCommunicator() override { MPI_Comm_free(&comm_); }

  const char* transport() const override { return "mpi"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool supports(DataType type) const override { return !is_float8(type); }

  void all_reduce(ConstView send, View recv, Reduction op, Stream& stream) override {
    count_ring(recv.bytes(), 2);
    Exchange x(*this, "all_reduce", send, recv, stream);
    CHECK_MPI(MPI_Iallreduce(x.in_place ? MPI_IN_PLACE : x.send.data, x.recv.data,
                             count_of(recv.count), mpi_type(recv.type), operation(recv.type, op),
                             comm_, &x.request));
    finish(x, op);
  }

  void reduce(ConstView send, View recv, Reduction op, int root, Stream& stream) override {
    const bool at_root = rank_ == root;
    count_reduce(send.bytes(), root);
    Exchange x(*this, "reduce", send, at_root ? recv : View(), stream);
    CHECK_MPI(MPI_Ireduce(x.in_place ? MPI_IN_PLACE : x.send.data, x.recv.data,
                          count_of(send.count), mpi_type(send.type), operation(send.type, op), root,
                          comm_, &x.request));
    finish(x, op);
  }

  void broadcast(ConstView send, View recv, int root, Stream& stream) override {
    count_broadcast(recv.bytes(), root);
    Exchange x(*this, "broadcast", rank_ == root ? send : ConstView(), recv, stream);
    if (rank_ == root && !x.in_place) std::memcpy(x.recv.data, x.send.data, x.recv.bytes());
    CHECK_MPI(MPI_Ibcast(x.recv.data, count_of(recv.count), mpi_type(recv.type), root, comm_,
                         &x.request));
    finish(x);
  }

  void all_gather(ConstView send, View recv, Stream& stream) override {
    ENSURE(recv.count == send.count * static_cast<std::size_t>(size_), "all_gather counts");
    count_ring(recv.bytes(), 1);
    Exchange x(*this, "all_gather", send, recv, stream);
    CHECK_MPI(MPI_Iallgather(x.send.data, count_of(send.count), mpi_type(send.type), x.recv.data,
                             count_of(send.count), mpi_type(send.type), comm_, &x.request));
    finish(x);
  }

  void reduce_scatter(ConstView send, View recv, Reduction op, Stream& stream) override {
    ENSURE(send.count == recv.count * static_cast<std::size_t>(size_), "reduce_scatter counts");
    count_ring(send.bytes(), 1);
    Exchange x(*this, "reduce_scatter", send, recv, stream);
    CHECK_MPI(MPI_Ireduce_scatter_block(x.send.data, x.recv.data, count_of(recv.count),
                                        mpi_type(recv.type), operation(recv.type, op), comm_,
                                        &x.request));
    finish(x, op);
  }

  void gather(ConstView send, View recv, int root, Stream& stream) override {
    count_gather(send.bytes(), root);
    Exchange x(*this, "gather", send, rank_ == root ? recv : View(), stream);
    CHECK_MPI(MPI_Igather(x.send.data, count_of(send.count), mpi_type(send.type), x.recv.data,
                          count_of(send.count), mpi_type(send.type), root, comm_, &x.request));
    finish(x);
  }

  void scatter(ConstView send, View recv, int root, Stream& stream) override {
    count_scatter(recv.bytes(), root);
    Exchange x(*this, "scatter", rank_ == root ? send : ConstView(), recv, stream);
    CHECK_MPI(MPI_Iscatter(x.send.data, count_of(recv.count), mpi_type(recv.type), x.recv.data,
                           count_of(recv.count), mpi_type(recv.type), root, comm_, &x.request));
    finish(x);
  }

  void all_to_all(ConstView send, View recv, Stream& stream) override {
    const std::size_t part = send.count / static_cast<std::size_t>(size_);
    ENSURE(part * static_cast<std::size_t>(size_) == send.count && send.count == recv.count,
           "all_to_all counts");
    count_ring(send.bytes(), 1);
    Exchange x(*this, "all_to_all", send, recv, stream);
    CHECK_MPI(MPI_Ialltoall(x.send.data, count_of(part), mpi_type(send.type), x.recv.data,
                            count_of(part), mpi_type(send.type), comm_, &x.request));
    finish(x);
  }

  void send(ConstView view, int peer, Stream& stream) override {
    count(view.bytes(), 1, 0);
    Exchange x(*this, "send", view, View(), stream);
    CHECK_MPI(MPI_Isend(x.send.data, count_of(view.count), mpi_type(view.type), peer, 0, comm_,
                        &x.request));
    finish(x);
  }

  void recv(View view, int peer, Stream& stream) override {
    count(view.bytes(), 0, 1);
    Exchange x(*this, "recv", ConstView(), view, stream);
    CHECK_MPI(MPI_Irecv(x.recv.data, count_of(view.count), mpi_type(view.type), peer, 0, comm_,
                        &x.request));
    finish(x);
  }

  void barrier() override {
    std::vector<MPI_Request> request(1);
    CHECK_MPI(MPI_Ibarrier(comm_, request.data()));
    wait_for(request, timeout_s_, "barrier");
  }

  void notify(int peer, int value) override {
    const std::array<int, 2> notice{rank_, value};
    std::vector<MPI_Request> request(1);
    CHECK_MPI(MPI_Isend(notice.data(), 2, MPI_INT, peer, kNoticeTag, comm_, request.data()));
    wait_for(request, timeout_s_, "a notice");
  }

  Notice next_notice() override {
    std::array<int, 2> notice{};
    std::vector<MPI_Request> request(1);
    CHECK_MPI(
        MPI_Irecv(notice.data(), 2, MPI_INT, MPI_ANY_SOURCE, kNoticeTag, comm_, request.data()));
    wait_for(request, timeout_s_, "waiting for a notice of any rank");
    return {notice[0], notice[1]};
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    MPI_Comm part = MPI_COMM_NULL;
    CHECK_MPI(MPI_Comm_split(comm_, color, key, &part));
    CHECK_MPI(MPI_Comm_set_errhandler(part, MPI_ERRORS_RETURN));
    return std::make_unique<MpiCommunicator>(part, device_, timeout_s_);
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
  /// One operation: the host memory that MPI sees and what is to be done when it has finished.
  struct Exchange {
    Exchange(MpiCommunicator& owner, const char* operation, ConstView from, View to, Stream& stream)
        : name(operation), destination(to), stream(&stream) {
      stream.synchronize();  // MPI reads and writes outside the stream's order
      in_place = from.data == to.data && from.count == to.count;
      recv = to.place == Place::device && owner.stages() ? owner.staging(to) : to;
      if (in_place) {
        if (recv.data != to.data) owner.stage_in(from, recv, stream);
        send = recv;
      } else {
        // MPI forbids buffers that overlap; NCCL's in-place forms do
        const bool device = from.place == Place::device && owner.stages();
        send = from;
        if (device || overlap(from, to)) {
          const View host = owner.staging(from);
          owner.stage_in(from, host, stream);
          send = host;
        }
      }
    }

    const char* name;
    ConstView send;
    View recv;
    View destination;
    Stream* stream;
    bool in_place = false;
    bool divide = false;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  bool stages() const { return device_.kind() == BackendKind::gpu; }

  View staging(ConstView like) {
    if (staging_used_ == staging_.size()) staging_.emplace_back();
    Buffer& buffer = staging_[staging_used_++];
    if (buffer.bytes() < like.bytes()) buffer = Buffer(device_, like.bytes(), Place::host);
    return {buffer.data(), like.count, like.type, Place::host};
  }

  void stage_in(ConstView from, View host, Stream& stream) {
    device_.copy(host.data, from.data, from.bytes(), stream);
    stream.synchronize();
    if (from.place == Place::device && stages()) traffic_.staged_bytes += from.bytes();
  }

  MPI_Op operation(DataType type, Reduction op) const {
    if (type == DataType::float16) return float16_operations_.of(op);
    if (type == DataType::bfloat16) return bfloat16_operations_.of(op);
    return builtin_operation(op);
  }

  void finish(const Exchange& exchange, Reduction op = Reduction::sum) {
    pending_.push_back(exchange);
    pending_.back().divide = op == Reduction::avg;
    if (groups_ == 0) complete();
  }

  void complete() {
    std::vector<MPI_Request> requests;
    for (const Exchange& x : pending_) requests.push_back(x.request);
    if (!pending_.empty()) wait_for(requests, timeout_s_, describe(pending_.front()));
    for (Exchange& x : pending_) {
      if (x.divide) divide(x.recv, size_);
      if (x.recv.data == x.destination.data) continue;
      device_.copy(x.destination.data, x.recv.data, x.destination.bytes(), *x.stream);
      x.stream->synchronize();
      traffic_.staged_bytes += x.destination.bytes();
    }
    pending_.clear();
    staging_used_ = 0;
  }

  std::string describe(const Exchange& x) const {
    const ConstView view = x.send.count > 0 ? x.send : ConstView(x.destination);
    return fmt::format("{} of {} {}", x.name, readable_bytes(static_cast<double>(view.bytes())),
                       name_of(view.type));
  }

  static constexpr int kNoticeTag = 1;  // messages have 0

  MPI_Comm comm_;
  Device& device_;
  double timeout_s_;
  int rank_ = 0;
  int size_ = 1;
  int groups_ = 0;  // one within another
  std::vector<Exchange> pending_;
  std::deque<Buffer> staging_;  // stable while a group adds to it; reused afterwards
  std::size_t staging_used_ = 0;
  HalfOperations float16_operations_ = HalfOperations::make<DataType::float16>();
  HalfOperations bfloat16_operations_ = HalfOperations::make<DataType::bfloat16>();
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(const MpiSession& session, Device& device) {
  MPI_Comm comm = MPI_COMM_NULL;
  CHECK_MPI(MPI_Comm_dup(session.handle().comm, &comm));
  CHECK_MPI(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
  return std::make_unique<MpiCommunicator>(comm, device, session.timeout_s());
}

}  // namespace shakedown

#include "common/mpi_exchange.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "common/error.hpp"
#include "common/numbers.hpp"

namespace shakedown {
namespace {

constexpr std::size_t kSlots = 4;                             // segments under way
constexpr std::size_t kReceivedBytes = std::size_t{2} << 20;  // of all of them, in the cache
constexpr std::size_t kLeastSegment = std::size_t{32} << 10;  // of many ranks
constexpr std::size_t kAlignment = 64;
constexpr int kScatterTag = 2;  // the communicator's own messages have 0 and 1
constexpr int kShareTag = 3;

std::size_t segment_bytes(int ranks) {
  const std::size_t fits = kReceivedBytes / kSlots / static_cast<std::size_t>(ranks);
  return std::max(fits, kLeastSegment) / kAlignment * kAlignment;
}

}  // namespace

struct MpiExchange::Job {
  ConstView send;
  View recv;
  Reduction op;
  bool shares;  // recv is the whole buffer, of which each rank gets what the others combine
  int size;
  std::size_t segment_bytes;

  std::size_t begin_of(int rank) const {
    return send.count * static_cast<std::size_t>(rank) / static_cast<std::size_t>(size);
  }
  std::size_t segment_count() const { return segment_bytes / size_of(send.type); }
  /// Number of segments of the longest part; shorter ones end with an empty segment.
  std::size_t segments() const {
    const auto ranks = static_cast<std::size_t>(size);
    const std::size_t longest = (send.count + ranks - 1) / ranks;
    return (longest + segment_count() - 1) / segment_count();
  }
  /// A segment of a rank's part, in a view of the whole buffer.
  template <class Whole>
  Whole segment_of(const Whole& whole, int rank, std::size_t segment) const {
    const std::size_t end = begin_of(rank + 1);
    const std::size_t begin = std::min(begin_of(rank) + segment * segment_count(), end);
    return whole.slice(begin, std::min(segment_count(), end - begin));
  }
  View result(int rank, std::size_t segment) const {
    if (shares) return segment_of(recv, rank, segment);
    const std::size_t begin = segment * segment_count();
    return recv.slice(begin, std::min(segment_count(), recv.count - begin));
  }
};

MpiExchange::MpiExchange(MPI_Comm comm, Device& device)
    : comm_(comm), device_(device), coming_(kSlots), leaving_(kSlots) {
  CHECK_MPI(MPI_Comm_rank(comm_, &rank_));
  CHECK_MPI(MPI_Comm_size(comm_, &size_));
  segment_bytes_ = segment_bytes(size_);
}

bool MpiExchange::all_reduce(ConstView send, View recv, Reduction op, MpiDeadline& deadline) {
  return run({send, recv, op, true, size_, segment_bytes_}, deadline);
}

bool MpiExchange::reduce_scatter(ConstView send, View recv, Reduction op, MpiDeadline& deadline) {
  return run({send, recv, op, false, size_, segment_bytes_}, deadline);
}

bool MpiExchange::run(const Job& job, MpiDeadline& deadline) {
  if (size_ == 1) {  // any reduction of one input
    if (job.recv.data != job.send.data) std::memcpy(job.recv.data, job.send.data, job.recv.bytes());
    return true;
  }
  const std::size_t bytes = kSlots * static_cast<std::size_t>(size_) * segment_bytes_;
  if (received_.bytes() < bytes) received_ = Buffer(device_, bytes, Place::host);
  const std::size_t segments = job.segments();
  for (std::size_t s = 0; s < std::min(kSlots, segments); ++s) scatter(job, s);

  // In place, a segment is received where it was sent from: only when it has left.
  const auto retire = [&](std::size_t s) {
    if (!deadline.wait(leaving_[s % kSlots])) return false;
    if (job.shares) collect(job, s);
    if (s + kSlots < segments) scatter(job, s + kSlots);
    return true;
  };
  for (std::size_t s = 0; s < segments; ++s) {
    if (!deadline.wait(coming_[s % kSlots])) return false;
    combine(job, s);
    if (job.shares) share(job, s);
    if (s > 0 && !retire(s - 1)) return false;
  }
  return (segments == 0 || retire(segments - 1)) && deadline.wait(shared_);
}

View MpiExchange::place_for(const Job& job, std::size_t segment, int from) const {
  const std::size_t place =
      segment % kSlots * static_cast<std::size_t>(size_) + static_cast<std::size_t>(from);
  return {static_cast<std::byte*>(received_.data()) + place * segment_bytes_,
          job.result(rank_, segment).count, job.send.type, Place::host};
}

void MpiExchange::scatter(const Job& job, std::size_t segment) {
  for (int step = 1; step < size_; ++step) {
    const int from = (rank_ + size_ - step) % size_;
    const int to = (rank_ + step) % size_;
    start_recv(place_for(job, segment, from), from, kScatterTag, comm_, coming_[segment % kSlots]);
    start_send(job.segment_of(job.send, to, segment), to, kScatterTag, comm_,
               leaving_[segment % kSlots]);
  }
}

void MpiExchange::combine(const Job& job, std::size_t segment) const {
  std::vector<const void*> inputs;
  for (int rank = 0; rank < size_; ++rank)
    inputs.push_back(rank == rank_ ? job.segment_of(job.send, rank, segment).data
                                   : place_for(job, segment, rank).data);
  reduce_elements(job.op, inputs, job.result(rank_, segment));
}

void MpiExchange::share(const Job& job, std::size_t segment) {
  for (int step = 1; step < size_; ++step)
    start_send(job.result(rank_, segment), (rank_ + step) % size_, kShareTag, comm_, shared_);
}

void MpiExchange::collect(const Job& job, std::size_t segment) {
  for (int step = 1; step < size_; ++step) {
    const int from = (rank_ + size_ - step) % size_;
    start_recv(job.result(from, segment), from, kShareTag, comm_, shared_);
  }
}

namespace {

/// Elements that are computed at a time: their sums stay in the first-level cache.
constexpr std::size_t kBlock = 1024;

using number_format::Bfloat16;
using number_format::Float16;
using number_format::load;
using number_format::store;

/// Calls body with an element of `type`.
template <class Body>
void with_element(DataType type, Body&& body) {
  switch (type) {
    case DataType::float64: return body(double{});
    case DataType::float32: return body(float{});
    case DataType::float16: return body(Float16{});
    case DataType::bfloat16: return body(Bfloat16{});
    case DataType::int64: return body(std::int64_t{});
    case DataType::int32: return body(std::int32_t{});
    case DataType::int8: return body(std::int8_t{});
    case DataType::uint64: return body(std::uint64_t{});
    case DataType::uint32: return body(std::uint32_t{});
    case DataType::uint8: return body(std::uint8_t{});
    default: throw InternalError(std::string("a reduction of ") + name_of(type) + " on the host");
  }
}

/// Calls body with a function of two values.
template <class T, class Body>
void with_operation(Reduction op, Body&& body) {
  switch (op) {
    case Reduction::prod: return body([](T a, T b) { return static_cast<T>(a * b); });
    case Reduction::min: return body([](T a, T b) { return b < a ? b : a; });
    case Reduction::max: return body([](T a, T b) { return a < b ? b : a; });
    case Reduction::sum:
    case Reduction::avg: return body([](T a, T b) { return static_cast<T>(a + b); });
  }
}

template <class T>
T divisor_of(std::size_t n) {
  ENSURE(sizeof(T) > 1 || n <= 127, "the average of 8-bit integers is for at most 127 ranks");
  return static_cast<T>(n);
}

}  // namespace

void reduce_elements(Reduction op, std::span<const void* const> inputs, View to) {
  with_element(to.type, [&]<class Stored>(Stored) {
    using T = decltype(load(Stored{}));
    const T divisor = op == Reduction::avg ? divisor_of<T>(inputs.size()) : T(1);
    with_operation<T>(op, [&](auto combine) {
      std::array<T, kBlock> block;
      for (std::size_t begin = 0; begin < to.count; begin += kBlock) {
        const std::size_t count = std::min(kBlock, to.count - begin);
        const auto* first = static_cast<const Stored*>(inputs[0]) + begin;
#pragma omp simd
        for (std::size_t i = 0; i < count; ++i) block[i] = load(first[i]);
        for (const void* input : inputs.subspan(1)) {
          const auto* next = static_cast<const Stored*>(input) + begin;
#pragma omp simd
          for (std::size_t i = 0; i < count; ++i) block[i] = combine(block[i], load(next[i]));
        }
        if (op == Reduction::avg) {
#pragma omp simd
          for (std::size_t i = 0; i < count; ++i) block[i] = static_cast<T>(block[i] / divisor);
        }
        auto* result = static_cast<Stored*>(to.data) + begin;
#pragma omp simd
        for (std::size_t i = 0; i < count; ++i) store(result[i], block[i]);
      }
    });
  });
}

void divide_elements(View x, int n) {
  with_element(x.type, [&]<class Stored>(Stored) {
    using T = decltype(load(Stored{}));
    const T divisor = divisor_of<T>(static_cast<std::size_t>(n));
    auto* element = static_cast<Stored*>(x.data);
#pragma omp simd
    for (std::size_t i = 0; i < x.count; ++i)
      store(element[i], static_cast<T>(load(element[i]) / divisor));
  });
}

}  // namespace shakedown

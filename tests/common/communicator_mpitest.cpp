// Every operation, type and reduction of every communicator, with integer-valued data that differ
// by rank and position, so that results are exact.
#include "common/communicator.hpp"

#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "common/half.hpp"
#include "common/mpi_communicator.hpp"
#include "common/mpi_session.hpp"
#include "common/throttled_communicator.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown {
namespace {

struct Transport {
  BackendKind backend;
  bool host_mpi;  // MPI although the memory is a GPU's
};

std::vector<Transport> transports() {
  std::vector<Transport> list;
  for (BackendKind kind : test::backends()) {
    list.push_back({kind, false});
    if (kind == BackendKind::gpu) list.push_back({kind, true});
  }
  return list;
}

void store(std::vector<std::byte>& bytes, std::size_t i, DataType type, double value) {
  auto put = [&](auto typed) {
    std::memcpy(bytes.data() + i * sizeof(typed), &typed, sizeof(typed));
  };
  switch (type) {
    case DataType::float64: return put(value);
    case DataType::float32: return put(static_cast<float>(value));
    case DataType::float16: return put(float_to_float16(static_cast<float>(value)));
    case DataType::bfloat16: return put(float_to_bfloat16(static_cast<float>(value)));
    case DataType::int64: return put(static_cast<std::int64_t>(value));
    case DataType::int32: return put(static_cast<std::int32_t>(value));
    case DataType::int8: return put(static_cast<std::int8_t>(value));
    case DataType::uint64: return put(static_cast<std::uint64_t>(value));
    case DataType::uint32: return put(static_cast<std::uint32_t>(value));
    case DataType::uint8: return put(static_cast<std::uint8_t>(value));
    default: FAIL("8-bit floating point is tested with the collectives");
  }
}

double fetch(const std::vector<std::byte>& bytes, std::size_t i, DataType type) {
  auto get = [&](auto typed) {
    std::memcpy(&typed, bytes.data() + i * sizeof(typed), sizeof(typed));
    return typed;
  };
  switch (type) {
    case DataType::float64: return get(double{});
    case DataType::float32: return get(float{});
    case DataType::float16: return float16_to_float(get(std::uint16_t{}));
    case DataType::bfloat16: return bfloat16_to_float(get(std::uint16_t{}));
    case DataType::int64: return static_cast<double>(get(std::int64_t{}));
    case DataType::int32: return get(std::int32_t{});
    case DataType::int8: return get(std::int8_t{});
    case DataType::uint64: return static_cast<double>(get(std::uint64_t{}));
    case DataType::uint32: return get(std::uint32_t{});
    case DataType::uint8: return get(std::uint8_t{});
    default: return NAN;
  }
}

/// A communicator of all ranks and buffers on its device.
class Rig {
 public:
  explicit Rig(Transport t)
      : backend(test::open_backend_of(t.backend)),
        comm(t.host_mpi ? *backend.host : *backend.world),
        stream(backend.device->make_stream()),
        n(static_cast<std::size_t>(comm.size())),
        rank(static_cast<std::size_t>(comm.rank())) {}

  using Values = std::function<double(std::size_t index)>;

  Buffer filled(std::size_t count, DataType type, const Values& value) {
    std::vector<std::byte> bytes(count * size_of(type));
    for (std::size_t i = 0; i < count; ++i) store(bytes, i, type, value(i));
    Buffer buffer(*backend.device, bytes.size());
    upload<std::byte>(*backend.device, *stream, buffer.data(), bytes);
    return buffer;
  }
  Buffer blank(std::size_t count, DataType type) {
    return filled(count, type, [](std::size_t) { return 99; });
  }
  /// The number of elements that differ from what is expected.
  int wrong(const Buffer& buffer, std::size_t count, DataType type, const Values& expected) {
    finish();
    const auto bytes =
        download<std::byte>(*backend.device, *stream, buffer.data(), count * size_of(type));
    int differ = 0;
    for (std::size_t i = 0; i < count; ++i) differ += fetch(bytes, i, type) != expected(i) ? 1 : 0;
    return differ;
  }
  void finish() {
    const auto event = backend.device->make_event();
    event->record(*stream);
    comm.wait(*event, HostWait::polite);
  }

  Backend backend;
  Communicator& comm;
  std::unique_ptr<Stream> stream;
  std::size_t n;
  std::size_t rank;
};

/// 1..5, by rank and position: small enough that products and sums are exact in every type.
double data(std::size_t rank, std::size_t index) {
  return static_cast<double>((rank * 3 + index * 7 + index / 5) % 5 + 1);
}

double reduced(Reduction op, std::size_t ranks, std::size_t index, bool integer) {
  double result = data(0, index);
  for (std::size_t r = 1; r < ranks; ++r) {
    const double value = data(r, index);
    switch (op) {
      case Reduction::sum:
      case Reduction::avg: result += value; break;
      case Reduction::prod: result *= value; break;
      case Reduction::min: result = std::min(result, value); break;
      case Reduction::max: result = std::max(result, value); break;
    }
  }
  if (op == Reduction::avg) result /= static_cast<double>(ranks);
  return integer ? std::trunc(result) : result;
}

/// A device whose captures run at once and whose launches do nothing: for what is counted.
class Rehearsing final : public Device {
 public:
  explicit Rehearsing(Device& device) : device_(device) {}
  BackendKind kind() const override { return device_.kind(); }
  DeviceIdentity identity() const override { return device_.identity(); }
  MemoryInfo memory() const override { return device_.memory(); }
  const Kernels& kernels() const override { return device_.kernels(); }
  std::unique_ptr<Stream> make_stream(StreamPriority p) override { return device_.make_stream(p); }
  std::unique_ptr<Event> make_event() override { return device_.make_event(); }
  std::unique_ptr<Graph> capture(Stream&, const std::function<void()>& body) override {
    struct Idle final : Graph {
      void launch(Stream&) override {}
    };
    body();
    return std::make_unique<Idle>();
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    device_.copy(to, from, bytes, stream);
  }
  void zero(void* to, std::size_t bytes, Stream& stream) override {
    device_.zero(to, bytes, stream);
  }

 protected:
  void* allocate(std::size_t, Place) override { return nullptr; }
  void release(void*, Place) noexcept override {}

 private:
  Device& device_;
};

bool is_integer(DataType type) {
  return type == DataType::int64 || type == DataType::int32 || type == DataType::int8 ||
         type == DataType::uint64 || type == DataType::uint32 || type == DataType::uint8;
}

}  // namespace

TEST_CASE("reductions give the exact result in every type", "[communicator]") {
  Rig rig(GENERATE(from_range(transports())));
  const std::size_t count = GENERATE(1, 7, 1003);
  for (DataType type : all_data_types()) {
    if (is_float8(type)) continue;
    for (Reduction op : all_reductions()) {
      // an average that is not a small fraction is rounded: exact only for powers of two
      if (op == Reduction::avg && (rig.n & (rig.n - 1)) != 0) continue;
      if (op == Reduction::prod && (type == DataType::int8 || rig.n > 3)) continue;  // too large
      CAPTURE(rig.comm.transport(), name_of(type), name_of(op), count);
      const auto mine = [&](std::size_t i) { return data(rig.rank, i); };
      const auto all = [&](std::size_t i) { return reduced(op, rig.n, i, is_integer(type)); };

      const Buffer send = rig.filled(count, type, mine);
      const Buffer recv = rig.blank(count, type);
      rig.comm.all_reduce(send.view(type), recv.view(type), op, *rig.stream);
      CHECK(rig.wrong(recv, count, type, all) == 0);
      CHECK(rig.wrong(send, count, type, mine) == 0);
      rig.comm.all_reduce(send.view(type), send.view(type), op, *rig.stream);  // in place
      CHECK(rig.wrong(send, count, type, all) == 0);

      const Buffer part = rig.filled(count, type, mine);
      const int root = static_cast<int>(rig.n) - 1;
      const Buffer sum = rig.blank(count, type);
      rig.comm.reduce(part.view(type), sum.view(type), op, root, *rig.stream);
      if (rig.comm.rank() == root) CHECK(rig.wrong(sum, count, type, all) == 0);

      const Buffer pieces = rig.filled(count * rig.n, type, mine);
      const Buffer piece = rig.blank(count, type);
      rig.comm.reduce_scatter(pieces.view(type), piece.view(type), op, *rig.stream);
      CHECK(rig.wrong(piece, count, type,
                      [&](std::size_t i) { return all(rig.rank * count + i); }) == 0);
    }
  }
}

TEST_CASE("large reductions are the sum in the order of ranks, bit for bit", "[communicator]") {
  Rig rig(GENERATE(from_range(transports())));
  if (!is_mpi(rig.comm)) return;  // NCCL has an order of its own
  const std::size_t part =
      GENERATE(std::size_t{33001}, std::size_t{400000});  // one segment and more
  const std::size_t count = rig.n * part;
  std::vector<float> expected = test::random_values(count, 0);
  for (std::size_t r = 1; r < rig.n; ++r) {
    const std::vector<float> addend = test::random_values(count, r);
    for (std::size_t i = 0; i < count; ++i) expected[i] += addend[i];
  }
  const auto values = test::random_values(count, rig.rank);
  const Buffer send = test::to_device(*rig.backend.device, *rig.stream, values);
  const Buffer recv = rig.blank(count, DataType::float32);
  const auto is_expected = [&](View found, std::size_t from) {
    rig.finish();
    const auto all = download<float>(*rig.backend.device, *rig.stream, found.data, found.count);
    return std::equal(all.begin(), all.end(), expected.begin() + static_cast<std::ptrdiff_t>(from));
  };
  const View in = send.view(DataType::float32);
  const View out = recv.view(DataType::float32);
  CAPTURE(rig.n, part);
  rig.comm.reduce_scatter(in, out.slice(0, part), Reduction::sum, *rig.stream);
  CHECK(is_expected(out.slice(0, part), rig.rank * part));
  // parts of unequal length, and of an odd number of bytes more than whole segments
  const std::size_t odd = count - 1;
  rig.comm.all_reduce(in.slice(0, odd), out.slice(0, odd), Reduction::sum, *rig.stream);
  CHECK(is_expected(out.slice(0, odd), 0));
  const auto unchanged = download<float>(*rig.backend.device, *rig.stream, in.data, count);
  CHECK(unchanged == values);
  const Buffer again = test::to_device(*rig.backend.device, *rig.stream, values);
  rig.comm.all_reduce(in, in, Reduction::sum, *rig.stream);  // in place
  CHECK(is_expected(in, 0));
  const View whole = again.view(DataType::float32);
  const View own = whole.slice(rig.rank * part, part);
  rig.comm.reduce_scatter(whole, own, Reduction::sum, *rig.stream);  // in place as NCCL has it
  CHECK(is_expected(own, rig.rank * part));
}

TEST_CASE("large reductions of other types, grouped with what is small", "[communicator]") {
  Rig rig(GENERATE(from_range(transports())));
  const DataType type = GENERATE(DataType::bfloat16, DataType::int8, DataType::float64);
  const std::size_t count = 140000 * rig.n + 1;  // bytes at least: not what the library does
  const Reduction op = (rig.n & (rig.n - 1)) == 0 ? Reduction::avg : Reduction::max;
  const auto mine = [&](std::size_t i) { return data(rig.rank, i); };
  const auto all = [&](std::size_t i) { return reduced(op, rig.n, i, is_integer(type)); };
  CAPTURE(rig.comm.transport(), name_of(type), rig.n);
  const Buffer large = rig.filled(count, type, mine);
  const Buffer small = rig.filled(100, type, mine);
  rig.comm.group([&] {
    rig.comm.all_reduce(small.view(type), small.view(type), op, *rig.stream);
    rig.comm.all_reduce(large.view(type), large.view(type), op, *rig.stream);
  });
  CHECK(rig.wrong(large, count, type, all) == 0);
  CHECK(rig.wrong(small, 100, type, all) == 0);
}

TEST_CASE("memory that no buffer owns is exchanged as well", "[communicator]") {
  Rig rig(GENERATE(from_range(transports())));
  std::vector<float> mine(20000, 1);
  const Buffer owned = rig.blank(2, DataType::float32);
  CHECK(rig.backend.device->owns(static_cast<std::byte*>(owned.data()) + 7));
  CHECK_FALSE(rig.backend.device->owns(static_cast<std::byte*>(owned.data()) + 8));
  CHECK_FALSE(rig.backend.device->owns(mine.data()));
  const View view{std::span<float>(mine)};
  rig.backend.host->all_reduce(view, view, Reduction::sum, *rig.stream);
  CHECK(mine == std::vector<float>(20000, static_cast<float>(rig.n)));
}

TEST_CASE("moves bring every element to its place", "[communicator]") {
  Rig rig(GENERATE(from_range(transports())));
  const DataType type = GENERATE(DataType::float32, DataType::uint8);
  const std::size_t count = GENERATE(1, 515);
  const int root = static_cast<int>(rig.n) / 2;
  const auto at_root = static_cast<std::size_t>(root);
  CAPTURE(rig.comm.transport(), name_of(type), count);
  const auto from = [&](std::size_t rank, std::size_t i) {
    return static_cast<double>((rank * 41 + i * 7) % 200);
  };
  const auto mine = [&](std::size_t i) { return from(rig.rank, i); };
  const auto by_rank = [&](std::size_t i) { return from(i / count, i % count); };

  const Buffer one = rig.filled(count, type, mine);
  const Buffer all = rig.blank(count * rig.n, type);
  rig.comm.all_gather(one.view(type), all.view(type), *rig.stream);
  CHECK(rig.wrong(all, count * rig.n, type, by_rank) == 0);

  const Buffer gathered = rig.blank(count * rig.n, type);
  rig.comm.gather(one.view(type), gathered.view(type), root, *rig.stream);
  if (rig.rank == at_root) CHECK(rig.wrong(gathered, count * rig.n, type, by_rank) == 0);

  const Buffer given = rig.filled(count * rig.n, type, mine);
  const Buffer scattered = rig.blank(count, type);
  rig.comm.scatter(given.view(type), scattered.view(type), root, *rig.stream);
  CHECK(rig.wrong(scattered, count, type,
                  [&](std::size_t i) { return from(at_root, rig.rank * count + i); }) == 0);

  const Buffer exchanged = rig.blank(count * rig.n, type);
  rig.comm.all_to_all(given.view(type), exchanged.view(type), *rig.stream);
  CHECK(rig.wrong(exchanged, count * rig.n, type, [&](std::size_t i) {
    return from(i / count, rig.rank * count + i % count);
  }) == 0);

  const Buffer copy = rig.blank(count, type);
  rig.comm.broadcast(one.view(type), copy.view(type), root, *rig.stream);
  CHECK(rig.wrong(copy, count, type, [&](std::size_t i) { return from(at_root, i); }) == 0);
  rig.comm.broadcast(one.view(type), one.view(type), root, *rig.stream);  // in place
  CHECK(rig.wrong(one, count, type, [&](std::size_t i) { return from(at_root, i); }) == 0);

  // in place as NCCL has it: a rank's part lies where it belongs
  const Buffer placed = rig.filled(count * rig.n, type, [&](std::size_t i) {
    return i / count == rig.rank ? from(rig.rank, i % count) : 99;
  });
  const View own = placed.view(type).slice(rig.rank * count, count);
  rig.comm.all_gather(own, placed.view(type), *rig.stream);
  CHECK(rig.wrong(placed, count * rig.n, type, by_rank) == 0);
}

TEST_CASE("grouped sends and receives go round a ring", "[communicator]") {
  Rig rig(GENERATE(from_range(transports())));
  const std::size_t count = 100003;  // past any eager limit: ungrouped sends would wait for ever
  const auto n = static_cast<int>(rig.n);
  const Buffer send = rig.filled(count, DataType::int32, [&](std::size_t i) {
    return static_cast<double>(rig.rank * 1000000 + i);
  });
  const Buffer recv = rig.blank(count, DataType::int32);
  rig.comm.group([&] {
    rig.comm.send(send.view(DataType::int32), (rig.comm.rank() + 1) % n, *rig.stream);
    rig.comm.recv(recv.view(DataType::int32), (rig.comm.rank() + n - 1) % n, *rig.stream);
  });
  const std::size_t before = (rig.rank + rig.n - 1) % rig.n;
  CHECK(rig.wrong(recv, count, DataType::int32,
                  [&](std::size_t i) { return static_cast<double>(before * 1000000 + i); }) == 0);
  CHECK(rig.comm.traffic().operations == 2);
  CHECK(rig.comm.traffic().sent_bytes == count * 4);
  CHECK(rig.comm.traffic().received_bytes == count * 4);
}

TEST_CASE("launches of a graph count as traffic, its capture does not", "[communicator]") {
  Rig rig(GENERATE(from_range(transports())));
  const bool throttled = GENERATE(false, true);
  std::unique_ptr<Communicator> comm = rig.comm.split(0, rig.comm.rank());
  if (throttled) comm = make_throttled_communicator(std::move(comm), *rig.backend.device, 1);
  CHECK(comm->capturable() == (comm->transport() == std::string("nccl")));
  const std::size_t count = 1000;
  const Buffer x = rig.filled(count, DataType::float32, [](std::size_t) { return 0; });
  const auto reduce = [&] {
    comm->all_reduce(x.view(DataType::float32), x.view(DataType::float32), Reduction::sum,
                     *rig.stream);
  };
  const double bytes =
      4.0 * count * 2 * static_cast<double>(rig.n - 1) / static_cast<double>(rig.n);
  const auto counted = [&](std::uint64_t times) {
    const Traffic t = comm->traffic();
    return t.operations == times &&
           t.sent_bytes == Approx(static_cast<double>(times) * bytes).margin(1e-6) &&
           t.received_bytes == Approx(static_cast<double>(times) * bytes).margin(1e-6);
  };
  reduce();
  CHECK(counted(1));
  Rehearsing device(*rig.backend.device);
  auto twice = comm->capture(device, *rig.stream, [&] {
    reduce();
    reduce();
  });
  const auto once = comm->capture(device, *rig.stream, reduce);
  CHECK(counted(1));
  twice->launch(*rig.stream);
  once->launch(*rig.stream);
  CHECK(counted(4));
  reduce();
  CHECK(counted(5));
  twice.reset();
  once->launch(*rig.stream);
  CHECK(counted(6));
  rig.finish();
  comm.reset();  // the graph's end, too
  CHECK_THROWS_AS(once->launch(*rig.stream), InternalError);
}

TEST_CASE("split makes communicators of some ranks", "[communicator]") {
  Rig rig(GENERATE(from_range(transports())));
  const int color = rig.comm.rank() % 2;
  const auto part = rig.comm.split(color, -rig.comm.rank());  // in reverse order
  const int members = (rig.comm.size() + 1 - color) / 2;
  CHECK(part->size() == members);
  CHECK(part->rank() == members - 1 - rig.comm.rank() / 2);
  const Buffer one = rig.filled(1, DataType::float32, [](std::size_t) { return 1; });
  const View view = one.view(DataType::float32);
  part->all_reduce(view, view, Reduction::sum, *rig.stream);
  CHECK(rig.wrong(one, 1, DataType::float32, [&](std::size_t) { return members; }) == 0);
  rig.comm.barrier();
}

TEST_CASE("the session gathers numbers and texts of every rank", "[communicator]") {
  const MpiSession& session = test::session();
  const auto numbers = session.all_gather(session.rank() * 1.5);
  const auto texts = session.all_gather(std::string(static_cast<std::size_t>(session.rank()), 'x'));
  REQUIRE(numbers.size() == static_cast<std::size_t>(session.world_size()));
  for (std::size_t r = 0; r < numbers.size(); ++r) {
    CHECK(numbers[r] == static_cast<double>(r) * 1.5);
    CHECK(texts[r] == std::string(r, 'x'));
  }
  CHECK(session.local_size() >= 1);
  CHECK(session.local_rank() < session.local_size());
}

TEST_CASE("a communicator whose kernels may have one block reduces, split or not",
          "[communicator]") {
  const MpiSession& session = test::session();
  for (BackendKind kind : test::backends()) {
    if (kind != BackendKind::gpu) continue;
    const Backend backend = test::open_backend_of(kind);
    const auto few = gpu::make_communicator(session, *backend.device, 1);
    const auto part = few->split(0, session.rank());
    const auto stream = backend.device->make_stream();
    for (Communicator* communicator : {few.get(), part.get()}) {
      const Buffer sum = test::to_device(*backend.device, *stream, std::vector<float>(1 << 20, 1));
      const View view = sum.view(DataType::float32);
      communicator->all_reduce(view, view, Reduction::sum, *stream);
      CHECK(download<float>(*backend.device, *stream, sum.data(), view.count) ==
            std::vector<float>(view.count, static_cast<float>(session.world_size())));
    }
  }
}

}  // namespace shakedown

// Moves, groups, graphs, parts, reductions and time-outs of every communicator.
#include "common/communicator.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "common/error.hpp"
#include "common/mpi_session.hpp"
#include "common/numbers.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/fake_device.hpp"

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

/// A communicator of all ranks and buffers on its device.
class CommunicatorRig {
 public:
  explicit CommunicatorRig(Transport t)
      : backend(test::open_backend_of(t.backend)),
        comm(t.host_mpi ? *backend.host : *backend.world),
        stream(backend.device->make_stream()),
        n(static_cast<std::size_t>(comm.size())),
        rank(static_cast<std::size_t>(comm.rank())) {}

  using Values = std::function<double(std::size_t index)>;

  Buffer filled(std::size_t count, DataType type, const Values& value) {
    std::vector<std::byte> bytes(count * size_of(type));
    for (std::size_t i = 0; i < count; ++i) {
      const number_format::Format format = number_format::format_of(type);
      const auto bits = format.exponent > 0
                            ? number_format::encode(format, value(i))
                            : static_cast<std::uint64_t>(static_cast<std::int64_t>(value(i)));
      std::memcpy(bytes.data() + i * size_of(type), &bits, size_of(type));
    }
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
    for (std::size_t i = 0; i < count; ++i) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, bytes.data() + i * size_of(type), size_of(type));
      differ += number_format::decode(number_format::format_of(type), bits) != expected(i) ? 1 : 0;
    }
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

/// A device whose captures run at once and whose launches do nothing: for what is counted.
struct Rehearsing final : test::FakeDevice {
  std::unique_ptr<Graph> capture(Stream&, const std::function<void()>& body) override {
    struct Idle final : Graph {
      void launch(Stream&) override {}
    };
    body();
    return std::make_unique<Idle>();
  }
};

/// 1..5, by rank and position: sums are exact in every type.
double data(std::size_t rank, std::size_t index) {
  return static_cast<double>((rank * 3 + index * 7 + index / 5) % 5 + 1);
}

/// A communicator whose operations time out soon. Its ranks come to the making of it at the same
/// time: that must end in this time, too.
std::unique_ptr<Communicator> make_impatient(Device& device, MpiAlgorithm algorithm) {
  test::session().barrier();
  test::session().set_timeout(0.3);
  auto communicator = make_mpi_communicator(test::session(), device, algorithm);
  test::session().set_timeout(60);
  return communicator;
}

}  // namespace

// Moves, groups, graphs and parts of every communicator.

TEST_CASE("memory that no buffer owns is exchanged as well", "[communicator]") {
  CommunicatorRig rig(GENERATE(from_range(transports())));
  std::vector<float> mine(20000, 1);
  const Buffer owned = rig.blank(2, DataType::float32);
  CHECK(rig.backend.device->owns(static_cast<std::byte*>(owned.data()) + 7));
  CHECK_FALSE(rig.backend.device->owns(static_cast<std::byte*>(owned.data()) + 8));
  CHECK_FALSE(rig.backend.device->owns(mine.data()));
  const View view{std::span<float>(mine)};
  rig.backend.host->all_reduce(view, view, Reduction::sum, *rig.stream);
  CHECK(mine == std::vector<float>(20000, static_cast<float>(rig.n)));
}

TEST_CASE("grouped sends and receives go round a ring", "[communicator]") {
  CommunicatorRig rig(GENERATE(from_range(transports())));
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
  CommunicatorRig rig(GENERATE(from_range(transports())));
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
  Rehearsing device;
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
  CommunicatorRig rig(GENERATE(from_range(transports())));
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

TEST_CASE("large reductions are the sum in the order of ranks, bit for bit", "[communicator]") {
  CommunicatorRig rig(GENERATE(from_range(transports())));
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
    return std::equal(all.begin(), all.end(), expected.begin() + from);
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
  CommunicatorRig rig(GENERATE(from_range(transports())));
  const DataType type = GENERATE(DataType::bfloat16, DataType::int8, DataType::float64);
  const std::size_t count = 140000 * rig.n + 1;      // bytes at least: not what the library does
  const bool averages = (rig.n & (rig.n - 1)) == 0;  // exactly
  const Reduction op = averages ? Reduction::avg : Reduction::max;
  const auto mine = [&](std::size_t i) { return data(rig.rank, i); };
  const auto all = [&](std::size_t i) {
    double sum = 0, most = 0;
    for (std::size_t r = 0; r < rig.n; ++r) sum += data(r, i), most = std::max(most, data(r, i));
    const double mean = sum / static_cast<double>(rig.n);
    return averages ? (type == DataType::int8 ? std::trunc(mean) : mean) : most;
  };
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

GPU_TEST_CASE("a communicator whose kernels have one block reduces, split or not",
              "[communicator]") {
  const MpiSession& session = test::session();
  const Backend backend = test::open_backend_of(BackendKind::gpu);
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

// Ranks that do not join an operation, or come too late.

TEST_CASE("an operation that a rank never joins times out and says what it was", "[communicator]") {
  const MpiSession& session = test::session();
  if (session.world_size() == 1) return;
  Backend backend = test::open_backend_of(test::backends().front());
  if (backend.kind == BackendKind::gpu) return;  // NCCL's own is tested with the collectives
  const auto impatient = make_impatient(*backend.device, MpiAlgorithm::library);
  const auto stream = backend.device->make_stream();
  Buffer buffer(*backend.device, 4096);
  const View view = buffer.view(DataType::float32);
  if (session.rank() != 0)
    CHECK_THROWS_WITH(
        impatient->recv(view, 0, *stream),
        ContainsSubstring("recv of 4 KiB float32") && ContainsSubstring("within 0.3 s"));
  session.barrier();
  // complete what was left open, so that MPI can finish
  if (session.rank() == 0)
    for (int r = 1; r < session.world_size(); ++r) impatient->send(view, r, *stream);
  session.barrier();
}

TEST_CASE("a rank that comes after the timeout finds the memory of the others", "[communicator]") {
  const MpiSession& session = test::session();
  if (session.world_size() == 1) return;
  const auto algorithm = GENERATE(MpiAlgorithm::library, MpiAlgorithm::own);
  const auto device = test::open_device(test::backends().front());
  const auto stream = device->make_stream();
  auto comm = make_impatient(*device, algorithm);
  const std::size_t bytes = std::size_t{8} << 20;  // of its own pages: freed, they are gone
  const auto reduce = [&] {
    const Buffer buffer(*device, bytes);
    const View view = buffer.view(DataType::float32);
    comm->all_reduce(view, view, Reduction::sum, *stream);
  };
  if (session.rank() != 0) CHECK_THROWS_AS(reduce(), TimeoutError);
  session.barrier();
  if (session.rank() == 0) {
    try {
      reduce();
    } catch (const TimeoutError&) {  // the others do not go on with their part
    }
  }
  session.barrier();
  comm.reset();
  session.barrier();
}

GPU_TEST_CASE("NCCL does not wait for ever for a rank that never joins", "[communicator]") {
  const MpiSession& session = test::session();
  if (session.world_size() == 1) return;
  Backend backend = test::open_backend_of(BackendKind::gpu);
  test::session().set_timeout(1);
  if (session.rank() == 0)
    CHECK_THROWS_WITH(gpu::make_communicator(session, *backend.device),
                      ContainsSubstring("did not connect") && ContainsSubstring("within 1 s"));
  else
    make_mpi_communicator(session, *backend.device);  // joins what precedes NCCL
  test::session().set_timeout(60);
  session.barrier();
}

}  // namespace shakedown

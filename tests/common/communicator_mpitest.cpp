// Moves, groups, graphs and parts of every communicator.
#include "common/communicator.hpp"

#include "common/error.hpp"
#include "common/mpi_session.hpp"
#include "tests/common/communicator_rig.hpp"

namespace shakedown {
namespace {

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

}  // namespace

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

TEST_CASE("moves bring every element to its place", "[communicator]") {
  CommunicatorRig rig(GENERATE(from_range(transports())));
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

TEST_CASE("the session gathers numbers and texts of every rank", "[communicator]") {
  const MpiSession& session = test::session();
  const auto numbers = session.all_gather(session.rank() * 1.5);
  const auto texts = session.all_gather(std::string(static_cast<std::size_t>(session.rank()), 'x'));
  REQUIRE(numbers.size() == static_cast<std::size_t>(session.world_size()));
  for (std::size_t r = 0; r < numbers.size(); ++r) {
    CHECK(numbers[r] == static_cast<double>(r) * 1.5);
    CHECK(texts[r] == std::string(r, 'x'));
  }
  CHECK(session.gather(texts[static_cast<std::size_t>(session.rank())]) ==
        (session.is_root() ? texts : std::vector<std::string>{}));
  CHECK(session.local_size() >= 1);
  CHECK(session.local_rank() < session.local_size());
}

}  // namespace shakedown

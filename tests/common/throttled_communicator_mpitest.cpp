// Throttled operations: as right as those they stand before, and no faster than the rate. Nothing
// is said of how much slower: the machine may be busy.
#include "common/communicator.hpp"

#include <chrono>
#include <functional>

#include "common/mpi_session.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown {
namespace {

constexpr std::size_t kValues = 1 << 16;
constexpr double kBytes = kValues * sizeof(float);
constexpr double kRate = 0.01;                       // GB/s
constexpr double kMessage_s = kBytes / kRate / 1e9;  // 26 ms

/// All ranks on links of kRate.
struct Rig {
  explicit Rig(BackendKind kind)
      : backend(test::open_backend_of(kind)),
        world(make_throttled_communicator(std::move(backend.world), *backend.device, kRate)),
        stream(backend.device->make_stream()),
        rank(world->rank()),
        n(world->size()) {}

  Buffer of(float value) {
    return test::to_device(*backend.device, *stream, std::vector<float>(kValues, value));
  }
  bool holds(const Buffer& buffer, float value) {
    return download<float>(*backend.device, *stream, buffer.data(), kValues) ==
           std::vector<float>(kValues, value);
  }
  /// Whether what `body` enqueues takes that long, but for the device's clock ticking in
  /// microseconds. From before the barrier on: a rank that leaves it late starts later than the
  /// others, and its share of their time would be short.
  bool takes(double seconds, const std::function<void()>& body) {
    stream->synchronize();
    const auto start = std::chrono::steady_clock::now();
    world->barrier();
    body();
    const auto end = backend.device->make_event();
    end->record(*stream);
    world->wait(*end, HostWait::polite);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return took.count() >= 0.999 * seconds;
  }

  Backend backend;
  std::unique_ptr<Communicator> world;
  std::unique_ptr<Stream> stream;
  int rank;
  int n;
};

View floats(const Buffer& buffer) { return buffer.view(DataType::float32); }

}  // namespace

TEST_CASE("a throttled collective takes what it sends or receives, over the rate", "[throttle]") {
  Rig rig(GENERATE(from_range(test::backends())));
  const double ring_s = kMessage_s * (rig.n - 1) / rig.n;
  const Buffer x = rig.of(1);
  CHECK(rig.takes(2 * ring_s, [&] {
    rig.world->all_reduce(floats(x), floats(x), Reduction::sum, *rig.stream);
  }));
  CHECK(rig.holds(x, static_cast<float>(rig.n)));
  CHECK(rig.world->traffic().operations == 1);
  CHECK(rig.world->traffic().sent_bytes == kBytes * 2 * (rig.n - 1) / rig.n);
  CHECK(rig.world->traffic().received_bytes == rig.world->traffic().sent_bytes);

  // along a chain: an end of it only sends, or only receives
  const Buffer y = rig.of(static_cast<float>(rig.rank));
  const int root = rig.n - 1;
  CHECK(rig.takes(rig.n == 1 ? 0 : kMessage_s,
                  [&] { rig.world->broadcast(floats(y), floats(y), root, *rig.stream); }));
  CHECK(rig.holds(y, static_cast<float>(root)));
  const Buffer sum = rig.of(0);
  CHECK(rig.takes(rig.n == 1 ? 0 : kMessage_s, [&] {
    rig.world->reduce(floats(y), floats(sum), Reduction::sum, root, *rig.stream);
  }));
  if (rig.rank == root) CHECK(rig.holds(sum, static_cast<float>(root * rig.n)));
}

TEST_CASE("a throttled group takes its sum each way", "[throttle]") {
  Rig rig(GENERATE(from_range(test::backends())));
  if (rig.n == 1) return;
  std::vector<Buffer> received;
  for (int r = 0; r < rig.n; ++r) received.push_back(rig.of(-1));
  const Buffer x = rig.of(static_cast<float>(rig.rank));

  // a star: the centre receives from everyone, and nobody is done before it could be
  const bool centre = rig.rank == 0;
  CHECK(rig.takes(kMessage_s * (rig.n - 1), [&] {
    rig.world->group([&] {
      if (!centre) return rig.world->send(floats(x), 0, *rig.stream);
      for (int r = 1; r < rig.n; ++r) rig.world->recv(floats(received[r]), r, *rig.stream);
    });
  }));
  for (int r = 1; centre && r < rig.n; ++r) CHECK(rig.holds(received[r], static_cast<float>(r)));

  // round a ring, twice in one group, a group within it
  const int next = (rig.rank + 1) % rig.n;
  const int before = (rig.rank + rig.n - 1) % rig.n;
  CHECK(rig.takes(2 * kMessage_s, [&] {
    rig.world->group([&] {
      for (std::size_t i = 0; i < 2; ++i)
        rig.world->group([&] {
          rig.world->send(floats(x), next, *rig.stream);
          rig.world->recv(floats(received[i]), before, *rig.stream);
        });
    });
  }));
  for (std::size_t i = 0; i < 2; ++i) CHECK(rig.holds(received[i], static_cast<float>(before)));
  // what comes next does not count as the group's
  CHECK(rig.takes(kMessage_s * (rig.n - 1) / rig.n * 2, [&] {
    rig.world->all_reduce(floats(x), floats(x), Reduction::max, *rig.stream);
  }));
}

TEST_CASE("streams share the throttled link, and so do parts of the ranks", "[throttle]") {
  Rig rig(GENERATE(from_range(test::backends())));
  const double ring_s = kMessage_s * 2 * (rig.n - 1) / rig.n;
  const Buffer x = rig.of(1);
  const Buffer y = rig.of(1);
  const auto other = rig.backend.device->make_stream();
  const auto done = rig.backend.device->make_event();
  CHECK(rig.takes(2 * ring_s, [&] {
    rig.world->all_reduce(floats(x), floats(x), Reduction::sum, *rig.stream);
    rig.world->all_reduce(floats(y), floats(y), Reduction::sum, *other);
    done->record(*other);
    rig.stream->wait(*done);
  }));
  CHECK(rig.holds(y, static_cast<float>(rig.n)));

  const auto part = rig.world->split(rig.rank % 2, rig.rank);
  CHECK(part->transport() == std::string(rig.world->transport()));
  const Buffer z = rig.of(1);
  CHECK(rig.takes(kMessage_s * 2 * (part->size() - 1) / part->size(),
                  [&] { part->all_reduce(floats(z), floats(z), Reduction::sum, *rig.stream); }));
  CHECK(rig.holds(z, static_cast<float>(part->size())));
  rig.world->barrier();
}

}  // namespace shakedown

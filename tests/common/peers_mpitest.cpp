// Peers in processes of their own: on a GPU each, or sharing one, which takes turns between them.
#include "common/communicator.hpp"

#include "common/mpi_communicator.hpp"
#include "common/mpi_session.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown {
namespace {

constexpr std::size_t kCount = kFlatAlignment * 1000;
constexpr double kTimeout_s = 30;

std::unique_ptr<Device> device_of_rank() {
  std::string problem;
  const auto gpus = static_cast<int>(gpu::visible_devices(problem).size());
  return gpu::make_device(test::session().local_rank() % gpus);
}

}  // namespace

TEST_CASE("peers of several processes read one another's memory", "[peers]") {
  if (!test::has(BackendKind::gpu)) SKIP("no GPU");
  const MpiSession& session = test::session();
  const auto device = device_of_rank();
  const auto host = make_mpi_communicator(session, *device);
  const auto stream = device->make_stream();
  const int n = session.world_size();
  const auto peers = gpu::make_peers(*host, *device, kTimeout_s);
  const Buffer mine(*device, kCount * sizeof(float));
  const Buffer mean(*device, kCount * sizeof(float));
  const Buffer flag(*device, sizeof(std::int32_t));
  auto* const finite = static_cast<std::int32_t*>(flag.data());
  const View own = mine.view(DataType::float32);
  const auto mapped = peers->map(own);
  for (int round = 0; round < 4; ++round) {
    CAPTURE(round);
    const bool good = round != 2 || !session.is_root();  // one rank's flag is enough
    upload<std::int32_t>(*device, *stream, finite, std::vector<std::int32_t>{good ? 1 : 0});
    device->kernels().fill(own, session.rank() + 10 * round, *stream);
    peers->meet(*stream);
    peers->average(mapped->views(), mean.view(DataType::float32), nullptr, *stream);
    peers->agree(finite, *stream);
    const auto averaged = download<float>(*device, *stream, mean.data(), kCount);
    CHECK(averaged == std::vector<float>(kCount, static_cast<float>(10 * round + (n - 1) / 2.0)));
    CHECK(download<std::int32_t>(*device, *stream, finite, 1)[0] == (round == 2 ? 0 : 1));
    CHECK_NOTHROW(peers->check());
  }
}

TEST_CASE("a rank that stops is named, and no GPU hangs", "[peers]") {
  if (!test::has(BackendKind::gpu)) SKIP("no GPU");
  if (test::session().world_size() == 1) return;
  const auto device = device_of_rank();
  const auto host = make_mpi_communicator(test::session(), *device);
  const auto stream = device->make_stream();
  const auto peers = gpu::make_peers(*host, *device, 0.5);
  const int last = test::session().world_size() - 1;
  if (test::session().rank() != last) {
    peers->meet(*stream);
    stream->synchronize();
    CHECK_THROWS_WITH(peers->check(),
                      ContainsSubstring("rank " + std::to_string(last) + " has stopped"));
  }
  test::session().barrier();  // the last one's memory is mapped until here
}

}  // namespace shakedown

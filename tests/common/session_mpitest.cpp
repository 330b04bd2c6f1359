// Parts of a session, ranks that wait while others work, and peers that read one another's memory.
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>
#include <vector>

#include "common/backend.hpp"
#include "common/communicator.hpp"
#include "common/error.hpp"
#include "common/mpi_session.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "training/measure/breakdown.hpp"

namespace shakedown {
namespace {

void sleep_s(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

std::unique_ptr<Device> device_of_rank() {
  std::string problem;
  const auto gpus = static_cast<int>(gpu::visible_devices(problem).size());
  return gpu::make_device(test::session().local_rank() % gpus);
}

}  // namespace

TEST_CASE("a part of a session counts its own ranks", "[session]") {
  const MpiSession& whole = test::session();
  const int last = whole.world_size() - 1;
  const auto part = whole.split(whole.rank() == last ? 1 : 0);  // all but the last, and it alone
  const bool alone = whole.rank() == last;
  CHECK(part->world_size() == (alone ? 1 : last));
  CHECK(part->rank() == (alone ? 0 : whole.rank()));
  CHECK(part->timeout_s() == whole.timeout_s());
  CHECK(part->hosts().size() == static_cast<std::size_t>(part->world_size()));
  const auto ranks = part->all_gather(static_cast<double>(whole.rank()));
  CHECK(ranks.front() == (alone ? last : 0));
  CHECK(ranks.size() == static_cast<std::size_t>(part->world_size()));
}

TEST_CASE("ranks of one host have one clock", "[session]") {
  // Its error is half of the quickest round trip, which is many time slices where cores are shared;
  // clocks of two hosts differ by the time between their boots.
  CHECK(std::abs(training::seconds_ahead_of_root(test::session())) < 0.5);
}

TEST_CASE("a rank with nothing to do waits while another shows progress", "[session]") {
  const auto session = test::session().split(0);
  session->set_timeout(0.05);
  const auto part = session->split(session->is_root() ? 0 : 1);
  std::vector<int> others(static_cast<std::size_t>(session->world_size() - 1));
  std::iota(others.begin(), others.end(), 1);
  if (session->is_root()) {
    for (int i = 0; i < 80; ++i) {  // longer than anybody waits without
      sleep_s(0.01);
      i < 40 ? part->progress() : session->progress(others);
    }
    session->set_timeout(60);  // the others may have the core
    CHECK_NOTHROW(session->barrier());
  } else {
    CHECK_NOTHROW(session->wait_idle());
  }
  test::session().barrier();
}

TEST_CASE("a rank with nothing to do ends when no other shows progress", "[session]") {
  const auto session = test::session().split(0);
  if (session->world_size() == 1) return;
  session->set_timeout(0.05);
  if (!session->is_root()) {
    CHECK_THROWS_WITH(session->wait_idle(),
                      ContainsSubstring("made no progress within 0.05 s (--timeout)"));
  }
  test::session().barrier();  // which rank 0 has waited in
  session->set_timeout(60);
  if (session->is_root()) session->barrier();
  test::session().barrier();
}

TEST_CASE("a rank that waits answers the probe of another", "[session]") {
  const auto session = test::session().split(0);
  if (session->world_size() == 1) return;
  if (session->is_root()) {
    CHECK(session->silent_ranks(10).empty());
    session->barrier();
  } else {
    CHECK_THROWS_AS(session->wait_idle(), TimeoutError);
    CHECK(session->silent_ranks(10).empty());
  }
  test::session().barrier();
}

TEST_CASE("the peak of memory can be taken anew", "[session]") {
  for (BackendKind kind : test::backends()) {
    const auto device = test::open_device(kind);
    const Buffer kept(*device, 1000);
    { const Buffer passing(*device, 5000); }
    CHECK(device->peak_allocated_bytes() == 6000);
    device->restart_peak();
    CHECK(device->peak_allocated_bytes() == 1000);
    { const Buffer passing(*device, 200); }
    CHECK(device->peak_allocated_bytes() == 1200);
  }
}

// Peers in processes of their own: on a GPU each, or sharing one, which takes turns between them.

GPU_TEST_CASE("a rank that stops is named, and no GPU hangs", "[peers]") {
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

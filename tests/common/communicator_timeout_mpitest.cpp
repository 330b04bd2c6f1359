// Ranks that do not join an operation, or come too late.
#include "common/communicator.hpp"
#include "common/error.hpp"
#include "common/mpi_communicator.hpp"
#include "common/mpi_session.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown {
namespace {

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

TEST_CASE("a rank that comes after the timeout finds the memory that it is to read and write",
          "[communicator]") {
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

TEST_CASE("a rank that never joins NCCL's communicator is not waited for for ever",
          "[communicator]") {
  const MpiSession& session = test::session();
  if (session.world_size() == 1) return;
  if (!test::has(BackendKind::gpu)) SKIP("no GPU");
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

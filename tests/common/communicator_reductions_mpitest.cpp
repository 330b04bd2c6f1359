// Every reduction of every type by every communicator, with integer-valued data that differ by rank
// and position, so that results are exact.
#include <algorithm>
#include <cmath>

#include "common/mpi_session.hpp"
#include "tests/common/communicator_rig.hpp"

namespace shakedown {
namespace {

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

bool is_integer(DataType type) {
  return type == DataType::int64 || type == DataType::int32 || type == DataType::int8 ||
         type == DataType::uint64 || type == DataType::uint32 || type == DataType::uint8;
}

}  // namespace

TEST_CASE("reductions give the exact result in every type", "[communicator]") {
  CommunicatorRig rig(GENERATE(from_range(transports())));
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
  CommunicatorRig rig(GENERATE(from_range(transports())));
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

#include "collectives/operations.hpp"

#include <fmt/format.h>

#include "collectives/traffic.hpp"
#include "collectives/verifier.hpp"
#include "common/usage_error.hpp"

namespace shakedown::collectives {
namespace {

using Ranges = std::vector<SourceRange>;

double all_but_one(double ranks) { return (ranks - 1) / ranks; }
double one(double) { return 1; }
/// A ring sends each byte 2 (n - 1) / n times: reduce-scatter, then all-gather.
double twice_all_but_one(double ranks) { return 2 * all_but_one(ranks); }

Counts undivided(std::size_t elements, std::size_t, std::size_t, std::size_t) {
  return {elements, elements, elements};
}
std::size_t part_of(std::size_t elements, std::size_t ranks, std::size_t align) {
  return elements / ranks / align * align;
}
/// A rank sends its part and receives everybody's.
Counts gathering(std::size_t elements, std::size_t ranks, std::size_t align, std::size_t) {
  const std::size_t part = part_of(elements, ranks, align);
  return {part, part * ranks, part};
}
Counts scattering(std::size_t elements, std::size_t ranks, std::size_t align, std::size_t) {
  const std::size_t part = part_of(elements, ranks, align);
  return {part * ranks, part, part};
}
Counts exchanging(std::size_t elements, std::size_t ranks, std::size_t align, std::size_t) {
  const std::size_t part = part_of(elements, ranks, align);
  return {part * ranks, part * ranks, part};
}

/// The parts of all ranks in rank order, each from `position` on in its rank's send.
Ranges parts_of_all(std::size_t part, int ranks, std::size_t position) {
  Ranges parts;
  for (int r = 0; r < ranks; ++r)
    parts.push_back({static_cast<std::size_t>(r) * part, part, r, position});
  return parts;
}
std::size_t my_part(std::size_t part, Seat seat) {
  return static_cast<std::size_t>(seat.rank) * part;
}

Ranges all_reduced(Counts counts, Seat) { return {{0, counts.recv, kAllRanks, 0}}; }
Ranges all_gathered(Counts counts, Seat seat) { return parts_of_all(counts.send, seat.ranks, 0); }
Ranges reduce_scattered(Counts counts, Seat seat) {
  return {{0, counts.recv, kAllRanks, my_part(counts.recv, seat)}};
}
Ranges broadcast(Counts counts, Seat seat) { return {{0, counts.recv, seat.root, 0}}; }
Ranges reduced(Counts counts, Seat seat) {
  return seat.rank == seat.root ? all_reduced(counts, seat) : Ranges();
}
Ranges exchanged(Counts counts, Seat seat) {
  return parts_of_all(counts.call, seat.ranks, my_part(counts.call, seat));
}
Ranges gathered(Counts counts, Seat seat) {
  return seat.rank == seat.root ? all_gathered(counts, seat) : Ranges();
}
Ranges scattered(Counts counts, Seat seat) {
  return {{0, counts.recv, seat.root, my_part(counts.recv, seat)}};
}
Ranges from_the_rank_before(Counts counts, Seat seat) {
  return {{0, counts.recv, (seat.rank + seat.ranks - 1) % seat.ranks, 0}};
}

// A rank's parts lie in its send by their receivers, in its recv by their senders.
Counts exchanging_traffic(std::size_t elements, std::size_t ranks, std::size_t align,
                          std::size_t width) {
  const Traffic& traffic = Traffic::of_environment();
  const int n = static_cast<int>(ranks);
  const std::size_t share = traffic.is_matrix() ? 0 : part_of(elements, ranks, align);
  return {traffic.most(Traffic::sent, n, share, width),
          traffic.most(Traffic::received, n, share, width), share, width};
}
Ranges traffic_exchanged(Counts counts, Seat seat) {
  const Traffic& traffic = Traffic::of_environment();
  const auto elements = [&](int from, int to) {
    return traffic.elements(from, to, seat.ranks, counts.call, counts.width);
  };
  Ranges parts;
  std::size_t begin = 0;
  for (int from = 0; from < seat.ranks; ++from) {
    std::size_t position = 0;
    for (int to = 0; to < seat.rank; ++to) position += elements(from, to);
    const std::size_t count = elements(from, seat.rank);
    if (count > 0) parts.push_back({begin, count, from, position});
    begin += count;
  }
  return parts;
}
void exchange_traffic(Communicator& c, const Call& call, Stream& stream) {
  const Traffic& traffic = Traffic::of_environment();
  const auto elements = [&](int from, int to) {
    return traffic.elements(from, to, c.size(), call.counts.call, call.counts.width);
  };
  c.group([&] {
    std::size_t sent = 0;
    std::size_t received = 0;
    for (int peer = 0; peer < c.size(); ++peer) {
      const std::size_t out = elements(c.rank(), peer);
      const std::size_t in = elements(peer, c.rank());
      if (out > 0) c.send(call.send.slice(sent, out), peer, stream);
      if (in > 0) c.recv(call.recv.slice(received, in), peer, stream);
      sent += out;
      received += in;
    }
  });
}

/// An all-gather in log2(ranks) exchanges, each with the rank whose number differs in one bit, of
/// everything that both have.
void gather_by_hypercube(Communicator& c, const Call& call, Stream& stream) {
  const std::size_t part = call.counts.call;
  const auto parts_from = [&](int rank, int count) {
    return call.recv.slice(static_cast<std::size_t>(rank) * part,
                           static_cast<std::size_t>(count) * part);
  };
  const View mine = parts_from(c.rank(), 1);
  if (mine.data != call.send.data)
    c.group([&] {
      c.send(call.send, c.rank(), stream);
      c.recv(mine, c.rank(), stream);
    });
  for (int bit = 1; bit < c.size(); bit *= 2) {
    const int first = c.rank() & ~(bit - 1);
    c.group([&] {
      c.send(parts_from(first, bit), c.rank() ^ bit, stream);
      c.recv(parts_from(first ^ bit, bit), c.rank() ^ bit, stream);
    });
  }
}

/// Sends to the next rank and receives from the previous one.
void send_and_recv(Communicator& c, const Call& call, Stream& stream) {
  c.group([&] {
    c.send(call.send, (c.rank() + 1) % c.size(), stream);
    c.recv(call.recv, (c.rank() + c.size() - 1) % c.size(), stream);
  });
}

}  // namespace

const std::vector<Operation>& operations() {
  using C = Communicator;
  // clang-format off
  static const std::vector<Operation> table{
      {.name = "all_reduce", .program_name = "all_reduce_perf",
       .reduces = true, .rooted = false, .in_place = true, .ends_together = true,
       .alg_factor = one, .bus_factor = twice_all_but_one, .counts = undivided, .expected = all_reduced,
       .run = [](C& c, const Call& x, Stream& s) { c.all_reduce(x.send, x.recv, x.reduction, s); }},
      {.name = "all_gather", .program_name = "all_gather_perf",
       .reduces = false, .rooted = false, .in_place = true, .ends_together = true,
       .alg_factor = one, .bus_factor = all_but_one, .counts = gathering, .expected = all_gathered,
       .run = [](C& c, const Call& x, Stream& s) { c.all_gather(x.send, x.recv, s); }},
      {.name = "reduce_scatter", .program_name = "reduce_scatter_perf",
       .reduces = true, .rooted = false, .in_place = true, .ends_together = true,
       .alg_factor = one, .bus_factor = all_but_one, .counts = scattering, .expected = reduce_scattered,
       .run = [](C& c, const Call& x, Stream& s) {
         c.reduce_scatter(x.send, x.recv, x.reduction, s);
       }},
      {.name = "broadcast", .program_name = "broadcast_perf",
       .reduces = false, .rooted = true, .in_place = true, .ends_together = false,
       .alg_factor = one, .bus_factor = one, .counts = undivided, .expected = broadcast,
       .run = [](C& c, const Call& x, Stream& s) { c.broadcast(x.send, x.recv, x.root, s); }},
      {.name = "reduce", .program_name = "reduce_perf",
       .reduces = true, .rooted = true, .in_place = true, .ends_together = false,
       .alg_factor = one, .bus_factor = one, .counts = undivided, .expected = reduced,
       .run = [](C& c, const Call& x, Stream& s) {
         c.reduce(x.send, x.recv, x.reduction, x.root, s);
       }},
      {.name = "all_to_all", .program_name = "alltoall_perf",
       .reduces = false, .rooted = false, .in_place = false, .ends_together = true,
       .alg_factor = one, .bus_factor = all_but_one, .counts = exchanging, .expected = exchanged,
       .run = [](C& c, const Call& x, Stream& s) { c.all_to_all(x.send, x.recv, s); }},
      {.name = "gather", .program_name = "gather_perf",
       .reduces = false, .rooted = true, .in_place = true, .ends_together = false,
       .alg_factor = one, .bus_factor = all_but_one, .counts = gathering, .expected = gathered,
       .run = [](C& c, const Call& x, Stream& s) { c.gather(x.send, x.recv, x.root, s); }},
      {.name = "scatter", .program_name = "scatter_perf",
       .reduces = false, .rooted = true, .in_place = true, .ends_together = false,
       .alg_factor = one, .bus_factor = all_but_one, .counts = scattering, .expected = scattered,
       .run = [](C& c, const Call& x, Stream& s) { c.scatter(x.send, x.recv, x.root, s); }},
      {.name = "send_recv", .program_name = "sendrecv_perf",
       .reduces = false, .rooted = false, .in_place = false, .ends_together = false,
       .alg_factor = one, .bus_factor = one, .counts = undivided, .expected = from_the_rank_before,
       .run = send_and_recv},
      {.name = "all_to_all_v", .program_name = "alltoallv_perf",
       .reduces = false, .rooted = false, .in_place = false, .ends_together = false,
       .alg_factor = one, .bus_factor = all_but_one, .counts = exchanging_traffic,
       .expected = traffic_exchanged, .run = exchange_traffic},
      {.name = "hypercube", .program_name = "hypercube_perf",
       .reduces = false, .rooted = false, .in_place = true, .ends_together = true,
       .power_of_two = true,
       .alg_factor = all_but_one, .bus_factor = one, .counts = gathering, .expected = all_gathered,
       .run = gather_by_hypercube},
  };
  // clang-format on
  return table;
}

const Operation& find_operation(std::string_view name) {
  std::string known;
  for (const Operation& operation : operations()) {
    if (name == operation.name) return operation;
    known += std::string(operation.name) + ", ";
  }
  throw UsageError(fmt::format("--operation {}: must be one of {}all", name, known));
}

}  // namespace shakedown::collectives

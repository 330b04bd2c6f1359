#include "collectives/operation.hpp"
#include "collectives/operations/entries.hpp"

namespace shakedown::collectives {

/// Round a ring: to the next rank, from the one before.
Operation send_recv_operation() {
  return {.name = "send_recv",
          .program_name = "sendrecv_perf",
          .reduces = false,
          .rooted = false,
          .in_place = false,
          .ends_together = false,
          .bus_factor = one,
          .counts = undivided,
          .run =
              [](Communicator& c, const Call& call, Stream& stream) {
                c.group([&] {
                  c.send(call.send, (c.rank() + 1) % c.size(), stream);
                  c.recv(call.recv, (c.rank() + c.size() - 1) % c.size(), stream);
                });
              },
          .expected = [](Counts counts, Seat seat) -> std::vector<SourceRange> {
            return {{0, counts.recv, (seat.rank + seat.ranks - 1) % seat.ranks, 0}};
          }};
}

}  // namespace shakedown::collectives

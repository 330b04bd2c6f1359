#include "collectives/operation.hpp"
#include "collectives/operations/entries.hpp"

namespace shakedown::collectives {

Operation broadcast_operation() {
  return {.name = "broadcast",
          .program_name = "broadcast_perf",
          .reduces = false,
          .rooted = true,
          .in_place = true,
          .ends_together = false,
          .bus_factor = one,
          .counts = undivided,
          .run = [](Communicator& c, const Call& call,
                    Stream& stream) { c.broadcast(call.send, call.recv, call.root, stream); },
          .expected = [](Counts counts, Seat seat) -> std::vector<SourceRange> {
            return {{0, counts.recv, seat.root, 0}};
          }};
}

}  // namespace shakedown::collectives

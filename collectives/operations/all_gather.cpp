#include "collectives/operation.hpp"
#include "collectives/operations/entries.hpp"

namespace shakedown::collectives {

Operation all_gather_operation() {
  return {.name = "all_gather",
          .program_name = "all_gather_perf",
          .reduces = false,
          .rooted = false,
          .in_place = true,
          .ends_together = true,
          .bus_factor = all_but_one,
          .counts = gathering,
          .run = [](Communicator& c, const Call& call,
                    Stream& stream) { c.all_gather(call.send, call.recv, stream); },
          .expected = [](Counts counts,
                         Seat seat) { return parts_of_all(counts.send, seat.ranks, 0); }};
}

}  // namespace shakedown::collectives

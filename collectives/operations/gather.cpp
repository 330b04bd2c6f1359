#include "collectives/operation.hpp"
#include "collectives/operations/entries.hpp"

namespace shakedown::collectives {

Operation gather_operation() {
  return {.name = "gather",
          .program_name = "gather_perf",
          .reduces = false,
          .rooted = true,
          .in_place = true,
          .ends_together = false,
          .bus_factor = all_but_one,
          .counts = gathering,
          .run = [](Communicator& c, const Call& call,
                    Stream& stream) { c.gather(call.send, call.recv, call.root, stream); },
          .expected = [](Counts counts, Seat seat) -> std::vector<SourceRange> {
            if (seat.rank != seat.root) return {};
            return parts_of_all(counts.send, seat.ranks, 0);
          }};
}

}  // namespace shakedown::collectives

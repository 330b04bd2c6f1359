#include "collectives/operation.hpp"
#include "collectives/operations/entries.hpp"
#include "collectives/pattern.hpp"

namespace shakedown::collectives {

Operation reduce_operation() {
  return {.name = "reduce",
          .program_name = "reduce_perf",
          .reduces = true,
          .rooted = true,
          .in_place = true,
          .ends_together = false,
          .bus_factor = one,
          .counts = undivided,
          .run =
              [](Communicator& c, const Call& call, Stream& stream) {
                c.reduce(call.send, call.recv, call.reduction, call.root, stream);
              },
          .expected = [](Counts counts, Seat seat) -> std::vector<SourceRange> {
            if (seat.rank != seat.root) return {};
            return {{0, counts.recv, kAllRanks, 0}};
          }};
}

}  // namespace shakedown::collectives

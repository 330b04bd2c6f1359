#include "collectives/operation.hpp"
#include "collectives/operations/entries.hpp"
#include "collectives/pattern.hpp"

namespace shakedown::collectives {

/// A ring sends each byte 2 (n - 1) / n times: reduce-scatter, then all-gather.
Operation all_reduce_operation() {
  return {.name = "all_reduce",
          .program_name = "all_reduce_perf",
          .reduces = true,
          .rooted = false,
          .in_place = true,
          .ends_together = true,
          .bus_factor = [](double ranks) { return 2 * all_but_one(ranks); },
          .counts = undivided,
          .run = [](Communicator& c, const Call& call,
                    Stream& stream) { c.all_reduce(call.send, call.recv, call.reduction, stream); },
          .expected = [](Counts counts, Seat) -> std::vector<SourceRange> {
            return {{0, counts.recv, kAllRanks, 0}};
          }};
}

}  // namespace shakedown::collectives

#include "collectives/operation.hpp"
#include "collectives/operations/entries.hpp"

namespace shakedown::collectives {

Operation scatter_operation() {
  return {.name = "scatter",
          .program_name = "scatter_perf",
          .reduces = false,
          .rooted = true,
          .in_place = true,
          .ends_together = false,
          .bus_factor = all_but_one,
          .counts = scattering,
          .run = [](Communicator& c, const Call& call,
                    Stream& stream) { c.scatter(call.send, call.recv, call.root, stream); },
          .expected = [](Counts counts, Seat seat) -> std::vector<SourceRange> {
            return {{0, counts.recv, seat.root, static_cast<std::size_t>(seat.rank) * counts.recv}};
          }};
}

}  // namespace shakedown::collectives

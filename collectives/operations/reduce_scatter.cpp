#include "collectives/operation.hpp"
#include "collectives/operations/entries.hpp"
#include "collectives/pattern.hpp"

namespace shakedown::collectives {

Operation reduce_scatter_operation() {
  return {
      .name = "reduce_scatter",
      .program_name = "reduce_scatter_perf",
      .reduces = true,
      .rooted = false,
      .in_place = true,
      .ends_together = true,
      .bus_factor = all_but_one,
      .counts = scattering,
      .run = [](Communicator& c, const Call& call,
                Stream& stream) { c.reduce_scatter(call.send, call.recv, call.reduction, stream); },
      .expected = [](Counts counts, Seat seat) -> std::vector<SourceRange> {
        return {{0, counts.recv, kAllRanks, static_cast<std::size_t>(seat.rank) * counts.recv}};
      }};
}

}  // namespace shakedown::collectives

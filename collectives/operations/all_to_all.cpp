#include "collectives/operation.hpp"
#include "collectives/operations/entries.hpp"

namespace shakedown::collectives {

Operation all_to_all_operation() {
  return {.name = "all_to_all",
          .program_name = "alltoall_perf",
          .reduces = false,
          .rooted = false,
          .in_place = false,
          .ends_together = true,
          .bus_factor = all_but_one,
          .counts =
              [](std::size_t elements, std::size_t ranks, std::size_t align) {
                const std::size_t part = part_of(elements, ranks, align);
                return Counts{part * ranks, part * ranks, part};
              },
          .run = [](Communicator& c, const Call& call,
                    Stream& stream) { c.all_to_all(call.send, call.recv, stream); },
          .expected =
              [](Counts counts, Seat seat) {
                const std::size_t part = counts.send / static_cast<std::size_t>(seat.ranks);
                return parts_of_all(part, seat.ranks, static_cast<std::size_t>(seat.rank) * part);
              }};
}

}  // namespace shakedown::collectives

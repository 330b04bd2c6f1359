#include "collectives/operation.hpp"
#include "collectives/operations/entries.hpp"

namespace shakedown {

Operation all_gather_operation() {
  return {.name = "all_gather",
          .program_name = "all_gather_perf",
          .reduces = false,
          .rooted = false,
          .in_place = true,
          .bus_factor = all_but_one,
          .counts =
              [](std::size_t elements, std::size_t ranks, std::size_t align) {
                const std::size_t part = part_of(elements, ranks, align);
                return Counts{part, part * ranks, part};
              },
          .run = [](Communicator& c, const Call& call,
                    Stream& stream) { c.all_gather(call.send, call.recv, stream); },
          .expected = [](Counts counts,
                         Seat seat) { return parts_of_all(counts.send, seat.ranks, 0); }};
}

}  // namespace shakedown

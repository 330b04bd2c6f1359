// Separates waiting from transfer. An operation in which each rank receives from all ends on all
// ranks together, so the rank that enters it last spends the shortest time in it: the time of the
// transfer. The others waited for the rest of their time.
#pragma once

#include <vector>

namespace shakedown::collectives {

struct WaitingTimes {
  double transfer_us = 0;            // median over iterations of the shortest rank's time
  std::vector<double> wait_us;       // of each rank: median of its time beyond that
  int straggler = -1;                // the rank that all others waited for; -1: none
  double wait_for_straggler_us = 0;  // median of the longest wait
};

/// From iteration_us[rank][iteration], at least one of each. A straggler has the shortest time in
/// most iterations, and the others wait for it for more than a quarter of the transfer and 20 us.
WaitingTimes analyse_waiting(const std::vector<std::vector<double>>& iteration_us);

}  // namespace shakedown::collectives

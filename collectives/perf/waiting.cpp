#include "collectives/perf/waiting.hpp"

#include <algorithm>

#include "common/statistics.hpp"

namespace shakedown::collectives {

WaitingTimes analyse_waiting(const std::vector<std::vector<double>>& iteration_us) {
  constexpr double kShare = 0.25;
  constexpr double kNoise_us = 20;
  const std::size_t ranks = iteration_us.size();
  const std::size_t iterations = iteration_us[0].size();
  std::vector<double> transfer;
  std::vector<double> longest_wait;
  std::vector<std::vector<double>> waits(ranks);
  std::vector<std::size_t> times_last(ranks);
  for (std::size_t i = 0; i < iterations; ++i) {
    std::size_t last = 0;
    double longest = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      if (iteration_us[r][i] < iteration_us[last][i]) last = r;
      longest = std::max(longest, iteration_us[r][i]);
    }
    ++times_last[last];
    transfer.push_back(iteration_us[last][i]);
    longest_wait.push_back(longest - transfer.back());
    for (std::size_t r = 0; r < ranks; ++r)
      waits[r].push_back(iteration_us[r][i] - transfer.back());
  }
  WaitingTimes result;
  result.transfer_us = median_of(transfer);
  result.wait_for_straggler_us = median_of(longest_wait);
  for (const auto& wait : waits) result.wait_us.push_back(median_of(wait));
  const auto most = std::max_element(times_last.begin(), times_last.end());
  if (ranks > 1 && 2 * *most > iterations &&
      result.wait_for_straggler_us > std::max(kShare * result.transfer_us, kNoise_us))
    result.straggler = static_cast<int>(most - times_last.begin());
  return result;
}

}  // namespace shakedown::collectives

#include "launch/node/soak/cpu/processors.hpp"

#include <sched.h>

#include <algorithm>
#include <thread>

#include "common/cores.hpp"

namespace shakedown::node::cpu {

std::vector<int> first_cores(int most) {
  std::vector<int> cores = allowed_cores();
  cores.resize(std::min(cores.size(), static_cast<std::size_t>(most)));
  return cores;
}

std::vector<std::size_t> run_on_cores(std::span<const int> cores,
                                      const std::function<void(std::size_t)>& body) {
  std::vector<char> bound(cores.size());
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < cores.size(); ++i)
    threads.emplace_back([&, i] {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(static_cast<std::size_t>(cores[i]), &set);
      bound[i] = sched_setaffinity(0, sizeof(set), &set) == 0 ? 1 : 0;
      if (bound[i] != 0) body(i);
    });
  threads.clear();  // joins them
  std::vector<std::size_t> done;
  for (std::size_t i = 0; i < cores.size(); ++i)
    if (bound[i] != 0) done.push_back(i);
  return done;
}

}  // namespace shakedown::node::cpu

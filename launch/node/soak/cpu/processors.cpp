#include "launch/node/soak/cpu/processors.hpp"

#include <sched.h>

#include <thread>

namespace shakedown::node::cpu {

std::vector<int> allowed_cores(int most) {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE && static_cast<int>(cores.size()) < most; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

bool run_on_core(int core, const std::function<void()>& body) {
  bool bound = false;
  std::thread([&] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<std::size_t>(core), &set);
    bound = sched_setaffinity(0, sizeof(set), &set) == 0;
    if (bound) body();
  }).join();
  return bound;
}

}  // namespace shakedown::node::cpu

#include "common/cores.hpp"

#include <sched.h>
#include <unistd.h>

namespace shakedown {

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

bool has_other_cores() {
  return static_cast<long>(allowed_cores().size()) < sysconf(_SC_NPROCESSORS_ONLN);
}

}  // namespace shakedown

#include "collectives/perf/relaunch.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "common/mpi_session.hpp"

namespace shakedown::collectives {

void relaunch_for_gpus(const PerfOptions& options, int argc, char** argv) {
  if (options.gpus <= 1 || std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr ||
      !launched_with_others().empty())
    return;
  const std::string ranks = std::to_string(options.gpus);
  const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe").parent_path();
  // bin/all_reduce_perf is a link: its name selects the operation.
  const std::string program = folder / options.program;
  const std::string launcher = folder.parent_path() / "launch/mpi";
  std::vector<const char*> line{launcher.c_str(), "-n", ranks.c_str(), program.c_str()};
  line.insert(line.end(), argv + 1, argv + argc);
  line.insert(line.end(), {"--ngpus", "1", nullptr});  // the last one counts
  execv(launcher.c_str(), const_cast<char* const*>(line.data()));
  std::fprintf(stderr,
               "error: --ngpus %d: %s: %s; in place of a copy of the program use a link to it (ln "
               "-s), or start it "
               "by mpirun -n %d\n",
               options.gpus, launcher.c_str(), std::strerror(errno), options.gpus);
  std::exit(2);
}

}  // namespace shakedown::collectives

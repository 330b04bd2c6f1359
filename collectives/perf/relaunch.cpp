#include "collectives/perf/relaunch.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "common/mpi_session.hpp"

namespace shakedown::collectives {

void relaunch_for_gpus(int gpus, int argc, char** argv) {
  if (gpus <= 1 || std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr ||
      !launched_with_others().empty())
    return;
  const std::string ranks = std::to_string(gpus);
  // bin/all_reduce_perf is a link: its name selects the operation.
  const std::filesystem::path binary = std::filesystem::read_symlink("/proc/self/exe");
  const std::string program =
      (binary.parent_path() / std::filesystem::path(argv[0]).filename()).string();
  const std::string launcher = (binary.parent_path().parent_path() / "launch/mpi").string();
  std::vector<const char*> line{launcher.c_str(), "-n", ranks.c_str(), program.c_str()};
  line.insert(line.end(), argv + 1, argv + argc);
  line.insert(line.end(), {"--ngpus", "1", nullptr});  // the last one counts
  execv(launcher.c_str(), const_cast<char* const*>(line.data()));
  std::perror(launcher.c_str());
  std::exit(2);
}

}  // namespace shakedown::collectives

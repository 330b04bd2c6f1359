#include "collectives/perf/relaunch.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "common/mpi_session.hpp"

namespace shakedown::collectives {
namespace {

/// The value of -g in one argument, or in this one and the next; empty where it is another option.
std::string ngpus_in(std::span<const std::string> arguments, bool& takes_next) {
  const std::string& argument = arguments.front();
  takes_next = false;
  for (const std::string& name : {std::string("--ngpus"), std::string("-g")}) {
    if (argument == name && arguments.size() > 1) {
      takes_next = true;
      return arguments[1];
    }
    if (argument.rfind(name, 0) != 0 || argument == name) continue;
    std::string rest = argument.substr(name.size());
    if (rest[0] == '=') return rest.substr(1);
    if (name == "-g") return rest;
  }
  return "";
}

}  // namespace

GpuRequest requested_gpus(std::span<const std::string> arguments) {
  GpuRequest request;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    bool takes_next = false;
    const std::string value = ngpus_in(arguments.subspan(i), takes_next);
    if (value.empty())
      request.rest.push_back(arguments[i]);
    else
      request.gpus = std::atoi(value.c_str());
    if (takes_next) ++i;
  }
  return request;
}

void relaunch_for_gpus(int argc, char** argv) {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || !launched_with_others().empty()) return;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const GpuRequest request = requested_gpus(arguments);
  if (request.gpus <= 1) return;
  const std::string ranks = std::to_string(request.gpus);
  // bin/all_reduce_perf is a link, and its name selects the operation.
  const std::filesystem::path binary = std::filesystem::read_symlink("/proc/self/exe");
  const std::string program =
      (binary.parent_path() / std::filesystem::path(argv[0]).filename()).string();
  const std::string launcher = (binary.parent_path().parent_path() / "launch/mpi").string();
  std::vector<const char*> line{launcher.c_str(), "-n", ranks.c_str(), program.c_str()};
  for (const std::string& argument : request.rest) line.push_back(argument.c_str());
  line.push_back(nullptr);
  execv(launcher.c_str(), const_cast<char* const*>(line.data()));
  std::perror(launcher.c_str());
  std::exit(2);
}

}  // namespace shakedown::collectives

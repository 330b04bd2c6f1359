#include "common/backend.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "common/communicator.hpp"
#include "common/host.hpp"
#include "common/mpi_session.hpp"
#include "common/options.hpp"
#include "common/usage_error.hpp"

namespace shakedown {
namespace {

template <class T>
std::string join(const std::vector<T>& values) {
  return fmt::format("{}", fmt::join(values, " "));
}

template <class T>
std::vector<T> split(const std::string& text) {
  std::istringstream in(text);
  std::vector<T> values;
  for (T value; in >> value;) values.push_back(value);
  return values;
}

std::vector<RankView> gather_views(const MpiSession& session) {
  std::string problem;
  const std::vector<std::string> mine = gpu::visible_devices(problem);
  const auto& hosts = session.hosts();
  const auto gpus = session.all_gather(join(mine));
  const auto problems = session.all_gather(problem);
  const auto requests =
      session.all_gather(gpu_request([](const char* n) { return std::getenv(n); }));
  std::vector<RankView> views;
  for (std::size_t r = 0; r < hosts.size(); ++r)
    views.push_back({hosts[r], split<std::string>(gpus[r]), problems[r], requests[r]});
  return views;
}

constexpr int kMostThreads = 1024;  // of a hundred thousand the OpenMP library crashes

/// OpenMP's threads of this rank, `requested` above 0, and its cores. Collective.
ThreadChoice threads_of_rank(const MpiSession& session, int requested) {
  std::vector<std::vector<int>> cores;
  for (const std::string& text : session.all_gather(join(allowed_cores())))
    cores.push_back(split<int>(text));
  const char* variable = std::getenv("OMP_NUM_THREADS");
  if (requested == 0 && variable != nullptr) requested = std::atoi(variable);
  if (requested > kMostThreads)
    throw UsageError(
        fmt::format("OMP_NUM_THREADS={}: at most {} threads per rank", variable, kMostThreads));
  return choose_threads(session.hosts(), cores, static_cast<std::size_t>(session.rank()), requested,
                        sysconf(_SC_NPROCESSORS_ONLN));
}

void connect(Backend& backend, const MpiSession& session) {
  backend.session = &session;
  Device& device = *backend.device;
  const std::size_t free_before = device.memory().free_bytes;
  backend.world = backend.kind == BackendKind::gpu
                      ? gpu::make_communicator(session, device, backend.ctas)
                      : make_mpi_communicator(session, device, backend.mpi_algorithm);
  backend.world_bytes =
      static_cast<double>(free_before) - static_cast<double>(device.memory().free_bytes);
  if (backend.throttle_gbs > 0)
    backend.world =
        make_throttled_communicator(std::move(backend.world), device, backend.throttle_gbs);
  backend.host = make_mpi_communicator(session, device, backend.mpi_algorithm);
}

}  // namespace

void declare_options(OptionSet& options, BackendOptions& values) {
  options
      .add("--backend", values.backend,
           "where to compute; auto: the GPU where one is visible or requested (Slurm's variables, "
           "CUDA_VISIBLE_DEVICES), else the CPU")
      .one_of({"auto", "gpu", "cpu"})
      .first();
  options
      .add("--timeout,-T", values.timeout_s,
           "time after which an operation between ranks counts as hung; 0: never")
      .at_least(0)
      .metavar("SECONDS");
}

void set_timeout(MpiSession& session, const BackendOptions& options) {
  session.set_timeout(options.timeout_s > 0 ? options.timeout_s : INFINITY);
}

Backend open_backend(const BackendOptions& options, MpiSession& session) {
  set_timeout(session, options);
  if (const std::string others = launched_with_others();
      session.world_size() == 1 && !others.empty())
    throw UsageError(fmt::format(
        "started as one of several tasks ({}), but MPI sees this process alone: the launcher "
        "belongs to another MPI. Built with {}; start with launch/mpi, its own mpirun, or "
        "srun --mpi=pmix",
        others, MpiSession::build_version()));

  const std::vector<RankView> views = gather_views(session);
  Backend backend;
  backend.kind = choose_backend(options.backend, views, gpu::built());
  backend.remark = fmt::format("{}{}", name_of(backend.kind),
                               options.backend == "auto" ? " (chosen by auto)" : "");
  if (backend.kind == BackendKind::cpu) {
    const std::string no_gpu = "no GPU is visible" + first_problem(views);
    if (!cpu::built())
      throw UsageError(
          fmt::format("--backend {}: built without cpu, and {}", options.backend, no_gpu));
    if (options.backend == "auto" && gpu::built()) backend.remark += ", as " + no_gpu;
  }
  const ThreadChoice choice =
      threads_of_rank(session, backend.kind == BackendKind::cpu ? options.cpu_threads : 0);
  const int threads = choice.threads;
  backend.cores = choice.cores;
  if (backend.kind == BackendKind::gpu) {
    omp_set_num_threads(threads);  // else each rank of a host draws weights on all its cores
    const std::vector<int> devices = place_on_gpus(views);
    const auto me = static_cast<std::size_t>(session.rank());
    backend.device = gpu::make_device(devices[me], options.timeout_s);
    if (session.world_size() == 1 && views[0].gpus.size() > 1)
      backend.remark +=
          fmt::format(", on 1 of {} GPUs{}", views[0].gpus.size(),
                      launched_rank().empty() ? ": start it with launch/mpi to use them all" : "");
  } else {
    if (options.ctas > 0)
      throw UsageError(
          fmt::format("{} {}: the cpu backend has no CTAs, they are "
                      "blocks of NCCL's kernels",
                      options.ctas_option, options.ctas));
    backend.device = cpu::make_device(threads);
    backend.remark += choice.remark;
  }
  backend.ctas = options.ctas;
  backend.mpi_algorithm =
      options.mpi_algorithm == "own" ? MpiAlgorithm::own : MpiAlgorithm::library;
  backend.throttle_gbs = options.throttle_gbs;
  if (options.throttle_gbs > 0)
    backend.remark +=
        fmt::format(", exchange throttled to {:g} GB/s each way", options.throttle_gbs);
  connect(backend, session);
  return backend;
}

Backend open_backend(const Backend& whole, const MpiSession& part) {
  Backend backend;
  backend.kind = whole.kind;
  backend.remark = whole.remark;
  backend.cores = whole.cores;
  backend.device = whole.device;
  backend.ctas = whole.ctas;
  backend.mpi_algorithm = whole.mpi_algorithm;
  backend.throttle_gbs = whole.throttle_gbs;
  connect(backend, part);
  return backend;
}

std::vector<LibraryVersion> library_versions(BackendKind kind, bool load) {
  std::vector<LibraryVersion> versions;
  for (const Library& library : kind == BackendKind::gpu ? gpu::libraries() : cpu::libraries()) {
    void* function = dlsym(RTLD_DEFAULT, library.function);
    if (function == nullptr && !load) continue;
    if (function == nullptr)
      if (void* const opened = dlopen(library.file.c_str(), RTLD_NOW | RTLD_LOCAL))
        function = dlsym(opened, library.function);
    versions.push_back(
        {library.name, library.built, function == nullptr ? "" : library.running(function)});
  }
  return versions;
}

std::map<std::string, std::string> versions_of(BackendKind kind,
                                               std::initializer_list<std::string> libraries) {
  std::map<std::string, std::string> versions;
  for (const LibraryVersion& library : library_versions(kind))
    if (std::ranges::count(libraries, library.name) > 0) versions[library.name] = library.running;
  return versions;
}

}  // namespace shakedown

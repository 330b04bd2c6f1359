#include "common/placement.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "common/error.hpp"
#include "common/options.hpp"

namespace shakedown {
namespace {

/// "rank 0, 1 on n1 and rank 2 on n2": those that see no GPU.
std::string name_blind(const std::vector<RankView>& ranks) {
  std::vector<std::pair<std::string, std::vector<std::size_t>>> blind;  // by host, in rank order
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (!ranks[r].gpus.empty()) continue;
    if (blind.empty() || blind.back().first != ranks[r].host) blind.push_back({ranks[r].host, {}});
    blind.back().second.push_back(r);
  }
  std::vector<std::string> texts;
  for (const auto& [host, numbers] : blind)
    texts.push_back(fmt::format("rank {} on {}", fmt::join(numbers, ", "), host));
  return fmt::format("{}", fmt::join(texts, " and "));
}

/// Whether CUDA_VISIBLE_DEVICES names a GPU: CUDA reads it up to the first that is none, and of a
/// number its digits, as strtoul does.
bool names_a_gpu(const std::string& list) {
  if (list.starts_with("GPU-") || list.starts_with("MIG-")) return true;
  const auto first = list.find_first_not_of(" \t\n\v\f\r");
  const auto digit = first + (first != std::string::npos && list[first] == '+' ? 1 : 0);
  return digit < list.size() && list[digit] >= '0' && list[digit] <= '9';
}

/// Whether a count of Slurm's is above 0: "2", "a100:2" or "a100:1,h100:1".
bool counts_gpus(const std::string& counts) {
  std::istringstream in(counts);
  for (std::string one; std::getline(in, one, ',');)
    if (std::atoi(one.substr(one.rfind(':') + 1).c_str()) > 0) return true;
  return false;
}

}  // namespace

std::string first_problem(const std::vector<RankView>& ranks) {
  for (const RankView& rank : ranks)
    if (!rank.gpu_problem.empty()) return " (" + rank.gpu_problem + ")";
  return "";
}

std::string gpu_request(const std::function<const char*(const char*)>& variable) {
  constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
  if (const char* list = variable(kVisible))
    return names_a_gpu(list) ? fmt::format("{}={}", kVisible, list) : "";
  for (const char* name : {"SLURM_STEP_GPUS", "SLURM_JOB_GPUS"})
    if (const char* list = variable(name); list != nullptr && *list != '\0')
      return fmt::format("{}={}", name, list);
  for (const char* name : {"SLURM_GPUS_ON_NODE", "SLURM_GPUS", "SLURM_GPUS_PER_NODE",
                           "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK"})
    if (const char* counts = variable(name); counts != nullptr && counts_gpus(counts))
      return fmt::format("{}={}", name, counts);
  return "";
}

BackendKind choose_backend(const std::string& option, const std::vector<RankView>& ranks,
                           bool gpu_built) {
  if (option == "cpu") return BackendKind::cpu;
  const auto is_blind = [](const RankView& r) { return r.gpus.empty(); };
  if (std::none_of(ranks.begin(), ranks.end(), is_blind)) return BackendKind::gpu;
  const auto requesting = std::find_if(ranks.begin(), ranks.end(), [&](const RankView& r) {
    return is_blind(r) && !r.gpu_request.empty();
  });
  const bool requested = requesting != ranks.end();
  const bool all_blind = std::all_of(ranks.begin(), ranks.end(), is_blind);
  if (all_blind && option == "auto" && !requested) return BackendKind::cpu;

  const std::string by = requested ? ", though " + requesting->gpu_request + " requests GPUs" : "";
  if (!gpu_built)
    throw UsageError(
        fmt::format("--backend {}: built without gpu{}; make doctor reports what is missing, "
                    "--backend cpu runs "
                    "without GPUs",
                    option, by));
  throw InconclusiveError(fmt::format(
      "--backend {}: no GPU is visible to {}{}{}{}. Check the driver (nvidia-smi), "
      "CUDA_VISIBLE_DEVICES and the scheduler's GPU binding; --backend cpu runs without GPUs",
      option, name_blind(ranks), first_problem(ranks), all_blind ? "" : ", while others see some",
      by));
}

std::vector<int> place_on_gpus(const std::vector<RankView>& ranks) {
  std::map<std::string, std::map<std::string, std::size_t>> taken;  // host -> uuid -> rank
  std::vector<int> devices;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const RankView& rank = ranks[r];
    auto& on_host = taken[rank.host];
    const auto free = std::find_if(rank.gpus.begin(), rank.gpus.end(),
                                   [&](const auto& uuid) { return on_host.count(uuid) == 0; });
    if (free == rank.gpus.end()) {
      const auto ranks_here = std::count_if(ranks.begin(), ranks.end(), [&](const RankView& other) {
        return other.host == rank.host;
      });
      std::set<std::string> gpus_here;
      for (const RankView& other : ranks)
        if (other.host == rank.host) gpus_here.insert(other.gpus.begin(), other.gpus.end());
      const std::string clash = rank.gpus.empty()
                                    ? "it sees none"
                                    : fmt::format("{} is held by rank {} already",
                                                  rank.gpus.front(), on_host.at(rank.gpus.front()));
      throw UsageError(fmt::format(
          "no GPU for rank {} on {}: {} ranks and {} visible GPU{} there, {}. Start at most one "
          "rank per GPU",
          r, rank.host, ranks_here, gpus_here.size(), gpus_here.size() == 1 ? "" : "s", clash));
    }
    on_host[*free] = r;
    devices.push_back(static_cast<int>(free - rank.gpus.begin()));
  }
  return devices;
}

ThreadChoice choose_threads(const std::vector<std::string>& hosts,
                            const std::vector<std::vector<int>>& cores, std::size_t rank,
                            int requested, long online) {
  double share = 0;
  for (const int core : cores[rank]) {
    int sharing = 0;
    for (std::size_t r = 0; r < hosts.size(); ++r)
      sharing += hosts[r] == hosts[rank] && std::ranges::count(cores[r], core) > 0 ? 1 : 0;
    share += 1.0 / sharing;
  }
  const int cores_of_rank = std::max(1, static_cast<int>(share + 1e-9));
  const int threads = requested > 0 ? requested : cores_of_rank;
  std::string remark = fmt::format(", {} thread{} per rank", threads, threads == 1 ? "" : "s");
  if (cores[rank].size() == 1 && online > std::ranges::count(hosts, hosts[rank]))
    remark += fmt::format(
        " (binding left this rank 1 of {} cores: mpirun --bind-to none, or launch/mpi, gives it "
        "its share)",
        online);
  return {threads, remark, cores_of_rank};
}

const std::string& NodeMap::name_of(int rank) const {
  return names[static_cast<std::size_t>(node_of[static_cast<std::size_t>(rank)])];
}

std::vector<int> NodeMap::ranks_per_node() const {
  std::vector<int> ranks(names.size());
  for (int node : node_of) ++ranks[static_cast<std::size_t>(node)];
  return ranks;
}

NodeMap map_nodes(const std::vector<std::string>& hosts) {
  NodeMap map;
  for (const std::string& host : hosts) {
    const auto known = std::find(map.names.begin(), map.names.end(), host);
    const auto node = static_cast<int>(known - map.names.begin());
    if (known == map.names.end()) map.names.push_back(host);
    map.local_rank.push_back(
        static_cast<int>(std::count(map.node_of.begin(), map.node_of.end(), node)));
    map.node_of.push_back(node);
  }
  return map;
}

NodeMap map_nodes(const std::vector<std::string>& hosts, int pretended) {
  if (pretended == 0) return map_nodes(hosts);
  const auto ranks = static_cast<int>(hosts.size());
  if (pretended > ranks)
    throw UsageError(fmt::format("--pretend-nodes {}: this job has only {} rank{}", pretended,
                                 ranks, ranks == 1 ? "" : "s"));
  std::vector<std::string> names;
  for (int rank = 0; rank < ranks; ++rank)
    names.push_back(fmt::format("node{}", rank * pretended / ranks));
  return map_nodes(names);
}

void check_machines(const std::vector<std::string>& hosts, const std::vector<std::string>& boot_ids,
                    const std::vector<int>& local_ranks, int requested) {
  std::map<std::string, std::size_t> first;  // host -> its first rank
  std::vector<std::string> machines;
  std::string twice;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto [known, is_new] = first.emplace(hosts[rank], rank);
    if (is_new)
      machines.push_back(hosts[rank]);
    else if (boot_ids[rank] != boot_ids[known->second])
      throw UsageError(fmt::format(
          "ranks {} and {} are on two machines with the host name {}: give each its own",
          known->second, rank, hosts[rank]));
    else if (local_ranks[rank] == 0)
      twice = hosts[rank];
  }
  if (machines.size() < static_cast<std::size_t>(requested))
    throw InconclusiveError(fmt::format(
        "{} hosts were requested, and {} answered: {}; the names of several lead to one "
        "machine, or containers have one host name",
        requested, machines.size(), fmt::join(machines, ", ")));
  if (!twice.empty())
    throw UsageError(fmt::format(
        "two nodes have the host name {}: give each its own, and name each once", twice));
}

int requested_hosts() {
  const char* text = std::getenv("SHAKEDOWN_HOSTS");
  if (text == nullptr) return 0;
  char* end = nullptr;
  const long hosts = std::strtol(text, &end, 10);
  if (*end != '\0' || hosts < 1 || hosts > 1'000'000)
    throw UsageError(
        fmt::format("SHAKEDOWN_HOSTS={}: is not a number of hosts; launch/mpi sets it", text));
  return static_cast<int>(hosts);
}

void declare_pretended_nodes(OptionSet& options, int& value) {
  options.heading("");
  options.add("--pretend-nodes", value, "treat the ranks as this many nodes").at_least(1);
}

}  // namespace shakedown

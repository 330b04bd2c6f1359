#include "common/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "common/error.hpp"

namespace shakedown {
namespace {

std::string name_ranks(const std::vector<RankView>& ranks, bool with_gpu) {
  std::string text;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    if (ranks[r].gpus.empty() != with_gpu)
      text += fmt::format("{}rank {} on {}", text.empty() ? "" : ", ", r, ranks[r].host);
  return text;
}

}  // namespace

std::string first_problem(const std::vector<RankView>& ranks) {
  for (const RankView& rank : ranks)
    if (!rank.gpu_problem.empty()) return " (" + rank.gpu_problem + ")";
  return "";
}

BackendKind choose_backend(const std::string& option, const std::vector<RankView>& ranks) {
  if (option == "cpu") return BackendKind::cpu;
  const auto with_gpu =
      std::count_if(ranks.begin(), ranks.end(), [](const RankView& r) { return !r.gpus.empty(); });
  if (with_gpu == static_cast<std::ptrdiff_t>(ranks.size())) return BackendKind::gpu;
  if (with_gpu == 0) {
    if (option == "gpu")
      throw UsageError("--backend gpu: no GPU is visible" + first_problem(ranks));
    return BackendKind::cpu;
  }
  throw UsageError(fmt::format(
      "--backend {}: {} see{} no GPU{} while others do. Check CUDA_VISIBLE_DEVICES and the "
      "scheduler's GPU binding, or pass --backend cpu",
      option, name_ranks(ranks, false),
      with_gpu + 1 == static_cast<std::ptrdiff_t>(ranks.size()) ? "s" : "", first_problem(ranks)));
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

int fair_threads(const std::vector<std::vector<int>>& affinities, std::size_t local_rank) {
  double share = 0;
  for (int core : affinities.at(local_rank)) {
    const auto sharing =
        std::count_if(affinities.begin(), affinities.end(), [&](const auto& cores) {
          return std::find(cores.begin(), cores.end(), core) != cores.end();
        });
    share += 1.0 / static_cast<double>(sharing);
  }
  return std::max(1, static_cast<int>(share + 1e-9));
}

}  // namespace shakedown

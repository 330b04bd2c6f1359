// Which GPU each rank uses, and the messages when ranks and GPUs do not match.
#include "common/placement.hpp"

#include <initializer_list>
#include <map>
#include <utility>

#include "common/error.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown {
namespace {

std::vector<RankView> ranks_on(const std::string& host, int count,
                               const std::vector<std::string>& gpus) {
  return std::vector<RankView>(static_cast<std::size_t>(count), {host, gpus, ""});
}

}  // namespace

TEST_CASE("GPUs visible to every rank are assigned by local rank", "[placement]") {
  CHECK(place_on_gpus(ranks_on("a", 3, {"G0", "G1", "G2", "G3"})) == std::vector<int>{0, 1, 2});
}

TEST_CASE("a GPU of its own is every rank's device 0", "[placement]") {
  const std::vector<RankView> ranks{{"a", {"G0"}, ""}, {"a", {"G1"}, ""}, {"b", {"G2"}, ""}};
  CHECK(place_on_gpus(ranks) == std::vector<int>{0, 0, 0});
}

TEST_CASE("GPUs are assigned per host, also when ranks alternate between hosts", "[placement]") {
  std::vector<RankView> ranks;
  for (int i = 0; i < 2; ++i)
    for (const char* host : {"a", "b"}) ranks.push_back({host, {"G0", "G1"}, ""});
  CHECK(place_on_gpus(ranks) == std::vector<int>{0, 0, 1, 1});
}

TEST_CASE("two ranks that see one and the same GPU are named", "[placement]") {
  CHECK_THROWS_WITH(place_on_gpus(ranks_on("node7", 2, {"GPU-abc"})),
                    ContainsSubstring("rank 1 on node7") &&
                        ContainsSubstring("2 ranks and 1 visible GPU") &&
                        ContainsSubstring("GPU-abc is held by rank 0"));
}

TEST_CASE("more ranks than GPUs are counted", "[placement]") {
  CHECK_THROWS_WITH(place_on_gpus(ranks_on("a", 5, {"G0", "G1", "G2", "G3"})),
                    ContainsSubstring("5 ranks and 4 visible GPUs"));
}

TEST_CASE("auto takes the GPU only when every rank has one", "[placement]") {
  const auto choose = [](const char* option, const std::vector<RankView>& ranks) {
    return choose_backend(option, ranks, true);
  };
  CHECK(choose("auto", ranks_on("a", 2, {"G0", "G1"})) == BackendKind::gpu);
  CHECK(choose("auto", ranks_on("a", 2, {})) == BackendKind::cpu);
  CHECK(choose("cpu", ranks_on("a", 2, {"G0", "G1"})) == BackendKind::cpu);
  for (const char* option : {"auto", "gpu"}) {
    std::vector<RankView> ranks = ranks_on("a", 3, {"G0", "G1"});
    ranks[1] = {"b", {}, "no driver"};
    CHECK_THROWS_AS(choose(option, ranks), InconclusiveError);
    CHECK_THROWS_WITH(choose(option, ranks),
                      ContainsSubstring("no GPU is visible to rank 1 on b (no driver), while "
                                        "others see some"));
  }
  std::vector<RankView> blind = ranks_on("a", 2, {});
  blind[0].gpu_problem = "driver too old";
  CHECK_THROWS_AS(choose("gpu", blind), InconclusiveError);
  CHECK_THROWS_WITH(choose("gpu", blind), ContainsSubstring("driver too old"));
}

TEST_CASE("GPUs that were requested and are not visible are no reason for the cpu", "[placement]") {
  std::vector<RankView> ranks = ranks_on("n1", 2, {});
  ranks.push_back({"n2", {}, ""});
  ranks[1].gpu_problem = "no driver";
  for (RankView& rank : ranks) rank.gpu_request = "SLURM_JOB_GPUS=0,1";
  CHECK(choose_backend("cpu", ranks, true) == BackendKind::cpu);
  for (const char* option : {"auto", "gpu"}) {
    CHECK_THROWS_AS(choose_backend(option, ranks, true), InconclusiveError);
    CHECK_THROWS_WITH(choose_backend(option, ranks, true),
                      ContainsSubstring("no GPU is visible to rank 0, 1 on n1 and rank 2 on n2 "
                                        "(no driver), though SLURM_JOB_GPUS=0,1 requests GPUs") &&
                          ContainsSubstring("--backend cpu runs without"));
    CHECK_THROWS_AS(choose_backend(option, ranks, false), UsageError);
    CHECK_THROWS_WITH(choose_backend(option, ranks, false),
                      ContainsSubstring("built without gpu, though SLURM_JOB_GPUS=0,1"));
  }
  ranks[0].gpus = ranks[1].gpus = {"G0", "G1"};  // one node has lost its driver
  CHECK_THROWS_AS(choose_backend("auto", ranks, true), InconclusiveError);
  ranks[2].gpus = {"G2"};
  CHECK(choose_backend("auto", ranks, true) == BackendKind::gpu);
}

TEST_CASE("a request for GPUs is read off the environment", "[placement]") {
  using Environment = std::map<std::string, std::string>;
  const auto request = [](const Environment& environment) {
    return gpu_request([&](const char* name) {
      const auto found = environment.find(name);
      return found == environment.end() ? nullptr : found->second.c_str();
    });
  };
  for (const auto& [name, value] : std::initializer_list<std::pair<std::string, std::string>>{
           {"CUDA_VISIBLE_DEVICES", "0"},
           {"CUDA_VISIBLE_DEVICES", "1,-1,0"},
           {"CUDA_VISIBLE_DEVICES", " +0, 1"},
           {"CUDA_VISIBLE_DEVICES", "1gpu2"},
           {"CUDA_VISIBLE_DEVICES", "GPU-1a,GPU-1b"},
           {"CUDA_VISIBLE_DEVICES", "MIG-1a"},
           {"SLURM_JOB_GPUS", "0"},
           {"SLURM_STEP_GPUS", "0,1"},
           {"SLURM_GPUS", "a100:2"},
           {"SLURM_GPUS_ON_NODE", "1"},
           {"SLURM_GPUS_PER_NODE", "a100:0,h100:4"},
           {"SLURM_GPUS_PER_SOCKET", "2"},
           {"SLURM_GPUS_PER_TASK", "1"}})
    CHECK(request({{name, value}}) == name + "=" + value);
  CHECK(request({}).empty());
  CHECK(request({{"SLURM_GPUS_ON_NODE", "0"}, {"SLURM_GPUS", "h100:0"}, {"SLURM_JOB_GPUS", ""}})
            .empty());
  for (const char* hidden : {"", "-1", "-1,0", "NoDevFiles", " ", "+", " GPU-1a"})
    CHECK(request({{"CUDA_VISIBLE_DEVICES", hidden}, {"SLURM_JOB_GPUS", "0,1"}}).empty());
}

TEST_CASE("cores are shared fairly between the ranks that may use them", "[placement]") {
  using Cores = std::vector<std::vector<int>>;
  CHECK(fair_threads(Cores{{0, 1, 2, 3}}, 0) == 4);
  CHECK(fair_threads(Cores{{0, 1, 2, 3}, {0, 1, 2, 3}}, 0) == 2);
  CHECK(fair_threads(Cores{{0, 1}, {2, 3, 4}}, 1) == 3);       // bound to different cores
  CHECK(fair_threads(Cores{{0, 1}, {0, 1}, {0, 1}}, 2) == 1);  // oversubscribed
  CHECK(fair_threads(Cores{{0, 1, 2, 3}, {0}}, 0) == 3);
}

TEST_CASE("threads are a fair share of the host's cores, or as requested", "[placement]") {
  const std::vector<std::string> hosts{"a", "b", "b"};
  const std::vector<std::vector<int>> cores{{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3}};
  CHECK(choose_threads(hosts, cores, 0, 0, 4).threads == 4);
  CHECK(choose_threads(hosts, cores, 2, 0, 4).threads == 2);
  CHECK(choose_threads(hosts, cores, 2, 0, 4).remark == ", 2 threads per rank");
  CHECK(choose_threads(hosts, cores, 2, 7, 4).threads == 7);
  const ThreadChoice bound = choose_threads({"a"}, {{3}}, 0, 0, 4);
  CHECK(bound.threads == 1);
  CHECK_THAT(bound.remark, ContainsSubstring("binding left this rank 1 of 4 cores"));
}

}  // namespace shakedown

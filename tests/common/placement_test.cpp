// Which GPU each rank uses, the messages when ranks and GPUs do not match, and the nodes of ranks.
#include "common/placement.hpp"

#include <initializer_list>
#include <map>
#include <utility>

#include "common/error.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/files.hpp"

namespace shakedown {
namespace {

std::vector<RankView> ranks_on(const std::string& host, int count,
                               const std::vector<std::string>& gpus) {
  return std::vector<RankView>(static_cast<std::size_t>(count), {host, gpus, ""});
}

}  // namespace

TEST_CASE("each rank has a GPU of those that it sees, by its rank on its host", "[placement]") {
  const std::vector<std::string> two{"G0", "G1"};
  CHECK(place_on_gpus(ranks_on("a", 3, {"G0", "G1", "G2", "G3"})) == std::vector<int>{0, 1, 2});
  CHECK(place_on_gpus({{"a", {"G0"}, ""}, {"a", {"G1"}, ""}, {"b", {"G2"}, ""}}) ==
        std::vector<int>{0, 0, 0});
  CHECK(place_on_gpus({{"a", two, ""}, {"b", two, ""}, {"a", two, ""}, {"b", two, ""}}) ==
        std::vector<int>{0, 0, 1, 1});
  CHECK_THROWS_WITH(place_on_gpus(ranks_on("node7", 2, {"GPU-abc"})),
                    ContainsSubstring("rank 1 on node7") &&
                        ContainsSubstring("2 ranks and 1 visible GPU") &&
                        ContainsSubstring("GPU-abc is held by rank 0"));
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
    CHECK_ERROR(InconclusiveError, choose(option, ranks),
                ContainsSubstring("no GPU is visible to rank 1 on b (no driver), while "
                                  "others see some"));
  }
  std::vector<RankView> blind = ranks_on("a", 2, {});
  blind[0].gpu_problem = "driver too old";
  CHECK_ERROR(InconclusiveError, choose("gpu", blind), ContainsSubstring("driver too old"));
}

TEST_CASE("GPUs that were requested and are not visible are no reason for the cpu", "[placement]") {
  std::vector<RankView> ranks = ranks_on("n1", 2, {});
  ranks.push_back({"n2", {}, ""});
  ranks[1].gpu_problem = "no driver";
  for (RankView& rank : ranks) rank.gpu_request = "SLURM_JOB_GPUS=0,1";
  CHECK(choose_backend("cpu", ranks, true) == BackendKind::cpu);
  for (const char* option : {"auto", "gpu"}) {
    CHECK_ERROR(InconclusiveError, choose_backend(option, ranks, true),
                ContainsSubstring("no GPU is visible to rank 0, 1 on n1 and rank 2 on n2 "
                                  "(no driver), though SLURM_JOB_GPUS=0,1 requests GPUs") &&
                    ContainsSubstring("--backend cpu runs without"));
    CHECK_ERROR(UsageError, choose_backend(option, ranks, false),
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

TEST_CASE("threads are a fair share of the host's cores, or as requested", "[placement]") {
  using Cores = std::vector<std::vector<int>>;
  CHECK(fair_threads(Cores{{0, 1, 2, 3}}, 0) == 4);
  CHECK(fair_threads(Cores{{0, 1, 2, 3}, {0, 1, 2, 3}}, 0) == 2);
  CHECK(fair_threads(Cores{{0, 1}, {2, 3, 4}}, 1) == 3);       // bound to different cores
  CHECK(fair_threads(Cores{{0, 1}, {0, 1}, {0, 1}}, 2) == 1);  // oversubscribed
  CHECK(fair_threads(Cores{{0, 1, 2, 3}, {0}}, 0) == 3);
  const std::vector<std::string> hosts{"a", "b", "b"};
  const Cores cores(3, {0, 1, 2, 3});
  CHECK(choose_threads(hosts, cores, 0, 0, 4).threads == 4);
  CHECK(choose_threads(hosts, cores, 2, 0, 4).threads == 2);
  CHECK(choose_threads(hosts, cores, 2, 0, 4).remark == ", 2 threads per rank");
  CHECK(choose_threads(hosts, cores, 2, 7, 4).threads == 7);
  const ThreadChoice bound = choose_threads({"a"}, {{3}}, 0, 0, 4);
  CHECK(bound.threads == 1);
  CHECK_THAT(bound.remark, ContainsSubstring("binding left this rank 1 of 4 cores"));
}

TEST_CASE("ranks of a node are numbered in order, wherever its ranks are", "[nodes]") {
  const NodeMap map = map_nodes({"b", "a", "b", "a", "c"});
  CHECK(map.names == Texts{"b", "a", "c"});
  CHECK(map.node_of == std::vector<int>{0, 1, 0, 1, 2});
  CHECK(map.local_rank == std::vector<int>{0, 0, 1, 1, 0});
  CHECK(map.name_of(3) == "a");
  CHECK(map.ranks_per_node() == std::vector<int>{2, 2, 1});
}

TEST_CASE("the machines that answered are those that were meant", "[nodes][closed]") {
  const std::vector<std::string> hosts{"a", "a", "b"};
  const std::vector<std::string> boots{"1", "1", "2"};
  CHECK_NOTHROW(check_machines(hosts, boots, {0, 1, 0}, 2));
  CHECK_NOTHROW(check_machines(hosts, boots, {0, 1, 0}, 0));            // not by launch/mpi
  CHECK_NOTHROW(check_machines(hosts, {"1", "1", "1"}, {0, 1, 0}, 2));  // containers of one machine
  CHECK_NOTHROW(check_machines(hosts, {"", "", ""}, {0, 1, 0}, 2));
  CHECK_THROWS_AS(check_machines(hosts, boots, {0, 1, 0}, 3), InconclusiveError);
  CHECK_THROWS_WITH(check_machines({"a", "a"}, {"1", "1"}, {0, 1}, 2),
                    ContainsSubstring("2 hosts were requested, and 1 answered: a;"));
  CHECK_THROWS_AS(check_machines({"a", "b", "a"}, {"1", "2", "3"}, {0, 0, 0}, 2), UsageError);
  CHECK_THROWS_WITH(check_machines({"a", "b", "a"}, {"1", "2", "3"}, {0, 0, 0}, 3),
                    ContainsSubstring("ranks 0 and 2 are on two machines with the host name a"));
  // Two containers, or one machine that was named twice: MPI sees two nodes.
  CHECK_THROWS_AS(check_machines({"a", "a"}, {"1", "1"}, {0, 0}, 2), InconclusiveError);
  CHECK_THROWS_WITH(check_machines({"a", "a"}, {"1", "1"}, {0, 0}, 0),
                    ContainsSubstring("two nodes have the host name a"));
}

TEST_CASE("the number of requested hosts is a number", "[nodes]") {
  unsetenv("SHAKEDOWN_HOSTS");
  CHECK(requested_hosts() == 0);
  const auto requested = [](const char* text) {
    const test::Variable hosts("SHAKEDOWN_HOSTS", text);
    return requested_hosts();
  };
  CHECK(requested("12") == 12);
  for (const char* text : {"", "0", "-1", "2x", "99999999999999999999"})
    CHECK_THROWS_AS(requested(text), UsageError);
}

}  // namespace shakedown

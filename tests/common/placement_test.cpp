// Which GPU each rank takes, and what users are told when ranks and GPUs do not fit together.
#include "common/placement.hpp"

#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown {
namespace {

std::vector<RankView> ranks_on(const std::string& host, int count,
                               const std::vector<std::string>& gpus) {
  return std::vector<RankView>(static_cast<std::size_t>(count), {host, gpus, ""});
}

}  // namespace

TEST_CASE("GPUs visible to every rank are shared out by local rank", "[placement]") {
  CHECK(place_on_gpus(ranks_on("a", 3, {"G0", "G1", "G2", "G3"})) == std::vector<int>{0, 1, 2});
}

TEST_CASE("a GPU of its own is every rank's device 0", "[placement]") {
  const std::vector<RankView> ranks{{"a", {"G0"}, ""}, {"a", {"G1"}, ""}, {"b", {"G2"}, ""}};
  CHECK(place_on_gpus(ranks) == std::vector<int>{0, 0, 0});
}

TEST_CASE("hosts are shared out apart, also when ranks alternate between them", "[placement]") {
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
  CHECK(choose_backend("auto", ranks_on("a", 2, {"G0", "G1"})) == BackendKind::gpu);
  CHECK(choose_backend("auto", ranks_on("a", 2, {})) == BackendKind::cpu);
  CHECK(choose_backend("cpu", ranks_on("a", 2, {"G0", "G1"})) == BackendKind::cpu);
  for (const char* option : {"auto", "gpu"}) {
    std::vector<RankView> ranks = ranks_on("a", 3, {"G0", "G1"});
    ranks[1] = {"b", {}, "no driver"};
    CHECK_THROWS_WITH(choose_backend(option, ranks),
                      ContainsSubstring("rank 1 on b sees no GPU (no driver)"));
  }
  std::vector<RankView> blind = ranks_on("a", 2, {});
  blind[0].gpu_problem = "driver too old";
  CHECK_THROWS_WITH(choose_backend("gpu", blind), ContainsSubstring("driver too old"));
}

TEST_CASE("cores are shared fairly between the ranks that may use them", "[placement]") {
  using Cores = std::vector<std::vector<int>>;
  CHECK(fair_threads(Cores{{0, 1, 2, 3}}, 0) == 4);
  CHECK(fair_threads(Cores{{0, 1, 2, 3}, {0, 1, 2, 3}}, 0) == 2);
  CHECK(fair_threads(Cores{{0, 1}, {2, 3, 4}}, 1) == 3);       // bound apart
  CHECK(fair_threads(Cores{{0, 1}, {0, 1}, {0, 1}}, 2) == 1);  // oversubscribed
  CHECK(fair_threads(Cores{{0, 1, 2, 3}, {0}}, 0) == 3);
}

}  // namespace shakedown

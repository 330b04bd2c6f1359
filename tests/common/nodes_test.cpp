#include "common/nodes.hpp"

#include "tests/catch.hpp"

namespace shakedown {

TEST_CASE("ranks of a node are numbered in order, wherever its ranks are", "[nodes]") {
  const NodeMap map = map_nodes({"b", "a", "b", "a", "c"});
  CHECK(map.names == std::vector<std::string>{"b", "a", "c"});
  CHECK(map.node_of == std::vector<int>{0, 1, 0, 1, 2});
  CHECK(map.local_rank == std::vector<int>{0, 0, 1, 1, 0});
  CHECK(map.name_of(3) == "a");
  CHECK(map.ranks_per_node() == std::vector<int>{2, 2, 1});
}

}  // namespace shakedown

#include "common/placement.hpp"

#include <cstdlib>

#include "common/error.hpp"
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
}

TEST_CASE("two machines with one host name are refused", "[nodes][closed]") {
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
  setenv("SHAKEDOWN_HOSTS", "12", 1);
  CHECK(requested_hosts() == 12);
  for (const char* text : {"", "0", "-1", "2x", "99999999999999999999"}) {
    setenv("SHAKEDOWN_HOSTS", text, 1);
    CHECK_THROWS_AS(requested_hosts(), UsageError);
  }
  unsetenv("SHAKEDOWN_HOSTS");
}

}  // namespace shakedown

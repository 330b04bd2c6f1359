// --version, and hosts whose versions differ.
#include "common/program.hpp"

#include "tests/catch.hpp"

namespace shakedown {

TEST_CASE("--version names the program, its revision and its libraries", "[version]") {
  const std::string text = version_text("train");
  CHECK_THAT(text, Catch::Matchers::StartsWith("train (Shakedown) "));
  for (const std::string word : {"revision ", "backends ", "mpi "})
    CHECK_THAT(text, ContainsSubstring("\n" + word));
  CHECK_THAT(text, ContainsSubstring(git_revision()));
}

TEST_CASE("hosts with other versions are named once, with what differs", "[version]") {
  const Versions usual{{"git_revision", "abc"}, {"driver", "580.65"}, {"versions.nccl", "2.27.3"}};
  Versions old = usual;
  old[1].second = "570.86";
  Versions older = old;
  older[2].second = "2.21.5";
  CHECK(differing_versions({"n1", "n2"}, {usual, usual}).empty());
  CHECK(
      differing_versions({"n1", "n1", "n2", "n2", "n3"}, {usual, usual, old, old, older}) ==
      "versions differ from those of rank 0 on n1: rank 2 on n2 (driver 570.86 instead of 580.65), "
      "rank 4 on n3 (driver 570.86 instead of 580.65, versions.nccl 2.21.5 instead of 2.27.3)");
}

}  // namespace shakedown

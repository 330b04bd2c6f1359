#include "common/ballot.hpp"

#include <string>

#include "tests/catch.hpp"

namespace shakedown {
namespace {

/// A vote per letter; '-' abstains.
Ballot count(const std::string& votes) {
  std::vector<const char*> of_voters;
  for (const char& vote : votes) of_voters.push_back(vote == '-' ? nullptr : &vote);
  return count_votes(of_voters);
}

}  // namespace

TEST_CASE("a majority is more than half of all voters", "[ballot]") {
  CHECK(count("a").majority);
  CHECK(count("aa").majority);
  CHECK_FALSE(count("ab").majority);
  CHECK(count("aba").majority);
  CHECK_FALSE(count("aabb").majority);
  CHECK_FALSE(count("aa--").majority);
  CHECK(count("aa-").majority);
}

TEST_CASE("those that voted otherwise than most are outvoted", "[ballot]") {
  using Voters = std::vector<std::size_t>;
  CHECK(count("aa").unanimous);
  CHECK(count("-a-").unanimous);
  CHECK(count("-a-").leader == 1);
  const Ballot ballot = count("b-aca");
  CHECK(ballot.leader == 2);
  CHECK_FALSE(ballot.unanimous);
  CHECK(ballot.outvoted == Voters{0, 3});
  CHECK(count("baa").outvoted == Voters{0});
}

}  // namespace shakedown

#include "common/ballot.hpp"

#include <string>

#include "tests/catch.hpp"

namespace shakedown {
namespace {

/// A vote per letter; '-' abstains.
Ballot count_letters(const std::string& votes) {
  std::vector<const char*> of_voters;
  for (const char& vote : votes) of_voters.push_back(vote == '-' ? nullptr : &vote);
  return count_votes(of_voters);
}

}  // namespace

TEST_CASE("a majority is more than half of all voters", "[ballot]") {
  CHECK(count_letters("a").majority);
  CHECK(count_letters("aa").majority);
  CHECK_FALSE(count_letters("ab").majority);
  CHECK(count_letters("aba").majority);
  CHECK_FALSE(count_letters("aabb").majority);
  CHECK_FALSE(count_letters("aa--").majority);
  CHECK(count_letters("aa-").majority);
}

TEST_CASE("those that voted otherwise than most are outvoted", "[ballot]") {
  using Voters = std::vector<std::size_t>;
  CHECK(count_letters("aa").unanimous);
  CHECK(count_letters("-a-").unanimous);
  CHECK(count_letters("-a-").leader == 1);
  const Ballot ballot = count_letters("b-aca");
  CHECK(ballot.leader == 2);
  CHECK_FALSE(ballot.unanimous);
  CHECK(ballot.outvoted == Voters{0, 3});
  CHECK(count_letters("baa").outvoted == Voters{0});
}

}  // namespace shakedown

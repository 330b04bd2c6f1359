// The pure parts of the link matrix: who meets whom, who is slow, what a message carries.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "collectives/links/link_messages.hpp"
#include "collectives/links/link_tables.hpp"
#include "collectives/links/link_verdicts.hpp"
#include "collectives/links/links.hpp"
#include "collectives/links/outliers.hpp"
#include "collectives/links/splits.hpp"
#include "common/random.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown::collectives {
namespace {

/// Ordered pairs of `ranks` ranks; `time(from, to)`.
template <class Time>
std::vector<LinkTime> links_between(int ranks, Time&& time) {
  std::vector<LinkTime> links;
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to)
      if (from != to) links.push_back({from, to, time(from, to)});
  return links;
}

/// Within `percent` of 100.
auto noise(Random& random, double percent) {
  return [&random, percent](int, int) { return 100 + percent * (2 * random.uniform() - 1); };
}

Split split_of(const char* scope, const char* name, double busbw_gbs) {
  return {scope, name, 4, 1, busbw_gbs, 0};
}

}  // namespace

TEST_CASE("in a tournament every pair meets once, and each rank once a round", "[links]") {
  for (int ranks = 2; ranks <= 17; ++ranks) {
    CAPTURE(ranks);
    const auto rounds = round_robin(ranks);
    CHECK(static_cast<int>(rounds.size()) == ranks - 1 + ranks % 2);
    std::set<std::pair<int, int>> met;
    for (const auto& round : rounds) {
      CHECK(static_cast<int>(round.size()) == ranks / 2);
      std::set<int> busy;
      for (const RankPair& pair : round) {
        CHECK((0 <= pair.first && pair.first < pair.second && pair.second < ranks));
        CHECK(busy.insert(pair.first).second);
        CHECK(busy.insert(pair.second).second);
        CHECK(met.insert({pair.first, pair.second}).second);
      }
    }
    CHECK(static_cast<int>(met.size()) == ranks * (ranks - 1) / 2);
  }
}

TEST_CASE("noise names nobody", "[links]") {
  Random random(1);
  for (int ranks : {3, 4, 8, 16})
    for (int repeat = 0; repeat < 50; ++repeat) {
      const LinkOutliers found =
          find_outliers(links_between(ranks, noise(random, 4)), OutlierRule());
      CHECK(found.compared);
      CHECK(found.links.empty());
      CHECK(found.ranks.empty());
    }
}

TEST_CASE("a slow link is named, in its direction", "[links]") {
  Random random(2);
  for (int ranks : {4, 8}) {
    auto links = links_between(ranks, noise(random, 2));
    for (LinkTime& link : links)
      if (link.from == 1 && link.to == 3) link.time = 130;
    const LinkOutliers found = find_outliers(links, OutlierRule());
    REQUIRE(found.links.size() == 1);
    CHECK(found.links[0].from == 1);
    CHECK(found.links[0].to == 3);
    CHECK(found.ranks.empty());
    CHECK(found.bar.median == Approx(100).margin(2));
  }
}

TEST_CASE("a slow rank is named instead of its links, from four ranks on", "[links]") {
  Random random(3);
  const int ranks = GENERATE(4, 5, 8, 16);
  const double slow = GENERATE(125., 1e5);
  CAPTURE(ranks, slow);
  auto links = links_between(ranks, noise(random, 2));
  for (LinkTime& link : links)
    if (link.from == 2 || link.to == 2) link.time = slow;
  links.push_back({0, 1, slow});  // and a slow link between others
  const LinkOutliers found = find_outliers(links, OutlierRule());
  REQUIRE(found.ranks.size() == 1);
  CHECK(found.ranks[0].rank == 2);
  CHECK(found.ranks[0].links == 2 * (ranks - 1));
  CHECK(found.ranks[0].slow_links == found.ranks[0].links);
  CHECK(found.ranks[0].median == slow);
  REQUIRE(found.links.size() == 1);
  CHECK(found.links[0].from == 0);
}

TEST_CASE("three quarters of its links make a rank slow, half do not", "[links]") {
  const auto slow_senders = links_between(8, [](int from, int) { return from == 5 ? 150. : 100.; });
  CHECK(find_outliers(slow_senders, OutlierRule()).ranks.empty());
  CHECK(find_outliers(slow_senders, OutlierRule()).links.size() == 7);
  const auto most = links_between(
      9, [](int a, int b) { return (a == 5 && b > 1) || (b == 5 && a > 1) ? 150. : 100.; });
  REQUIRE(find_outliers(most, OutlierRule()).ranks.size() == 1);  // 12 of 16
  CHECK(find_outliers(most, OutlierRule()).ranks[0].slow_links == 12);
}

TEST_CASE("two links cannot be compared", "[links]") {
  const auto links = links_between(2, [](int from, int) { return from == 0 ? 1. : 1000.; });
  CHECK_FALSE(find_outliers(links, OutlierRule()).compared);
}

TEST_CASE("the bar is the wider of MAD and percentage", "[links]") {
  const std::vector<double> spread{90, 95, 100, 105, 110};  // MAD 5
  CHECK(outlier_bar(spread, {5, 10}).limit() == Approx(100 + 5 * 1.4826 * 5));
  CHECK(outlier_bar(spread, {1, 10}).limit() == Approx(110));
  CHECK(outlier_bar(spread, {0, 0}).limit() == 100);
}

TEST_CASE("a slow rail and a slow node are named, and a node without which the others are fast",
          "[links]") {
  const std::vector<Split> healthy{
      split_of("all", "all", 100),       split_of("rail", "0", 50),
      split_of("rail", "1", 51),         split_of("rail", "2", 49),
      split_of("node", "a", 300),        split_of("node", "b", 302),
      split_of("node", "c", 299),        split_of("without_node", "a", 101),
      split_of("without_node", "b", 99), split_of("without_node", "c", 102),
  };
  const auto named = [&](std::size_t changed, double busbw_gbs) {
    std::vector<Split> splits = healthy;
    splits[changed].busbw_gbs = busbw_gbs;
    std::string names;
    for (const Verdict& v : slow_splits(splits, OutlierRule(), Outcome::fail))
      names += fmt::format("{} {};", name_of(v.scope), v.name);
    return names;
  };
  CHECK(named(0, 100).empty());
  CHECK(named(2, 30) == "rail 1;");
  CHECK(named(5, 200) == "node b;");
  CHECK(named(9, 180) == "node c;");
  CHECK(named(0, 50).empty());  // faster without any node: not a node's fault
}

TEST_CASE("a word that is wrong, or of the message before, is found", "[links]") {
  for (BackendKind kind : test::backends()) {
    Backend backend = test::open_backend_of(kind);
    MessageSettings settings{64, 4, 1, 4};
    LinkMessages messages(backend, settings);
    const auto stream = backend.device->make_stream();
    const Pattern pattern{DataType::uint64, false, Reduction::sum, 1, 3};
    messages.fill(pattern, 0);
    const auto arrive = [&](int message) {
      backend.device->copy(messages.incoming(64).data, messages.outgoing(64, message).data, 64 * 8,
                           *stream);
      stream->synchronize();
    };
    std::string complaint;
    arrive(2);
    CHECK(messages.check(pattern, 0, 64, 2, complaint) == 0);
    CHECK(complaint.empty());
    CHECK(messages.check(pattern, 0, 64, 3, complaint) == 64);
    CHECK_THAT(complaint, ContainsSubstring("word 0 of 64 of message 3"));

    complaint.clear();
    const std::uint64_t zero = 0;
    backend.device->copy(static_cast<std::uint64_t*>(messages.incoming(64).data) + 17, &zero, 8,
                         *stream);
    stream->synchronize();
    CHECK(messages.check(pattern, 0, 64, 2, complaint) == 1);
    CHECK_THAT(complaint, ContainsSubstring("word 17 of 64 of message 2"));
    CHECK_THAT(complaint, ContainsSubstring("found 0000000000000000"));
  }
}

TEST_CASE("outliers fail a job where that is requested, limits and corruption always", "[links]") {
  const NodeMap nodes = map_nodes({"a", "a", "a", "a"});
  LinkOptions options;
  options.alone = false;
  LinkResults results;
  for (int from = 0; from < 4; ++from)
    for (int to = 0; to < 4; ++to) {
      if (from == to) continue;
      const double time_us = from == 1 && to == 3 ? 200 : 100;
      results.links.push_back({from, to, false, false, 1e5 / time_us, 10, time_us, 0, 0});
    }
  const auto judged = [&] { return judge_links(options, nodes, 1e8, results); };
  CHECK(judged().job.outcome == Outcome::pass);
  REQUIRE(judged().findings.size() == 1);
  CHECK(judged().findings[0].name == "1->3");
  CHECK(judged().findings[0].outcome == Outcome::inconclusive);
  CHECK_THAT(judged().comparisons, ContainsSubstring("12 links, median 1000"));
  options.fail_on_outlier = true;
  CHECK(judged().job.outcome == Outcome::fail);
  options.fail_on_outlier = false;
  options.min_bandwidth_gbs = 600;
  CHECK(judged().job.cause == "failed: 1; outliers, not judged (--fail-on-outlier): 1");
  options.min_bandwidth_gbs = 0;
  results.corruptions.push_back({Scope::link, "0->1", Outcome::fail, "word 3"});
  CHECK(judged().job.outcome == Outcome::fail);
  results = {};
  CHECK(judged().job.outcome == Outcome::pass);
  CHECK_THAT(judged().job.cause, ContainsSubstring("nothing to compare"));
  options.fail_on_outlier = true;
  CHECK(judged().job.outcome == Outcome::inconclusive);
}

TEST_CASE("what grows with the square of the ranks is announced", "[links]") {
  CHECK(size_remark(64, true).empty());
  const std::string alone = size_remark(512, true);
  CHECK_THAT(alone, ContainsSubstring("130816 pairs"));
  CHECK_THAT(alone, ContainsSubstring("280.7 MiB of record"));
  CHECK_THAT(alone, ContainsSubstring("--alone off"));
  CHECK_THAT(size_remark(512, false), !ContainsSubstring("--alone"));
}

}  // namespace shakedown::collectives

// The pure parts of the link matrix: who meets whom, what a message carries.
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "collectives/links/links.hpp"
#include "collectives/links/splits.hpp"
#include "common/judge/judge.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/files.hpp"

namespace shakedown::collectives {
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

TEST_CASE("each node is left out once, but of hundreds none", "[links]") {
  for (const int count : {2, 3, 64, 65}) {
    NodeMap nodes;
    for (int node = 0; node < count; ++node) {
      nodes.names.push_back(std::to_string(node));
      nodes.node_of.push_back(node);
      nodes.local_rank.push_back(0);
    }
    const auto groupings = groupings_of(nodes);
    CAPTURE(count);
    REQUIRE(groupings.size() == std::size_t(3 + (count == 3 || count == 64 ? count : 0)));
    for (std::size_t i = 3; i < groupings.size(); ++i) {
      CHECK(groupings[i].names == std::vector{std::to_string(i - 3)});
      CHECK(std::count(groupings[i].group_of.begin(), groupings[i].group_of.end(), 1) == 1);
      CHECK(groupings[i].group_of[i - 3] == 1);
    }
  }
}

TEST_CASE("samples are medians of consecutive parts of the messages", "[links]") {
  const MessageTimes times = times_of({1, 3, 2, 2, 5, 7, 9, 9, 4, 100});
  CHECK(times.parts == 5);
  CHECK(times.parts_us == std::array<double, 5>{2, 2, 6, 9, 52});
  CHECK(times.time_us_p50 == 4.5);
  CHECK(times_of({1, 2, 4}).parts == 3);
  CHECK(times_of({1, 2, 4}).parts_us[2] == 4);
}

TEST_CASE("a word that is wrong, or of the message before, is found", "[links]") {
  for (BackendKind kind : test::backends()) {
    Backend backend = test::open_backend_of(kind);
    MessageSettings settings{64, 4, 1, 4};
    LinkMessages messages(backend, settings);
    const auto stream = backend.device->make_stream();
    const Operands sent = operands::make_operands(DataType::uint64, false, Reduction::sum, 1, 3);
    messages.fill(sent, 0);
    const auto arrive = [&](int message) {
      backend.device->copy(messages.incoming(64).data, messages.outgoing(64, message).data, 64 * 8,
                           *stream);
      stream->synchronize();
    };
    WrongWords wrong;
    arrive(2);
    messages.check(sent, 0, 64, 2, wrong);
    CHECK((wrong.words == 0 && wrong.complaint.empty()));
    messages.check(sent, 0, 64, 3, wrong);
    CHECK(wrong.words == 64);
    CHECK_THAT(wrong.complaint, ContainsSubstring("word 0 of 64 of message 3"));
    CHECK_THAT(wrong.complaint, ContainsSubstring("stale result of 1 iteration before"));
    CHECK(wrong.diagnosis.regions(operands::WrongData::stale) == 1);

    wrong = {};
    const std::uint64_t zero = 0;
    backend.device->copy(static_cast<std::uint64_t*>(messages.incoming(64).data) + 17, &zero, 8,
                         *stream);
    stream->synchronize();
    messages.check(sent, 0, 64, 2, wrong);
    CHECK(wrong.words == 1);
    CHECK_THAT(wrong.complaint, ContainsSubstring("word 17 of 64 of message 2"));
    CHECK_THAT(wrong.complaint, ContainsSubstring("found 0000000000000000"));
  }
}

namespace {

/// What link_matrix records of 4,096 healthy GPUs on 512 nodes.
class SimulatedLinks {
 public:
  explicit SimulatedLinks(const std::string& path) : record_(path) {
    for (int node = 0; node < 512; ++node) {
      nodes_.names.push_back(fmt::format("gpu-node-{:04}", node));
      for (int local = 0; local < 8; ++local) {
        Unit& unit = units_.emplace_back();
        unit.rank = 8 * node + local;
        unit.host = nodes_.names.back();
        unit.uuid = fmt::format("GPU-232828b6-8541-6784-201f-{:012x}", random_.below(1ULL << 48));
        unit.board = "NVIDIA H100 80GB HBM3";
        unit.compute_capability = "9.0";
        unit.gpu.serial = std::to_string(1653824000000 + unit.rank);
        unit.gpu.pci_device_id = "10de:2330:10de:16c1";
        unit.gpu.power_limit_w = 700;
        nodes_.node_of.push_back(node);
        nodes_.local_rank.push_back(local);
      }
    }
  }

  /// Of the last nodes: one part of all. Returns the bytes of all.
  std::uintmax_t within_nodes(int parts) {
    const auto first =
        static_cast<int>(units_.size() - units_.size() / static_cast<std::size_t>(parts));
    const std::uintmax_t before = bytes();
    for (auto pairs : judge::rounds_within_nodes(nodes_)) {
      std::erase_if(pairs, [&](const RankPair& pair) { return pair.first < first; });
      links(pairs, 300);
      std::vector<judge::Observation> seen;
      for (const auto& [a, b] : pairs) {
        for (const char* by : {"nccl", "copy_engine", "sm_store", "sm_load"}) {
          seen.push_back(link(fmt::format("{}/one_way", by), a, b));
          seen.push_back(link(fmt::format("{}/one_way", by), b, a));
          seen.push_back(link(fmt::format("{}/both_ways", by), a, b));
        }
        seen.push_back(link("latency", a, b));
      }
      judge::write_table(seen, record_);
      observed_ += seen.size();
    }
    for (auto unit = units_.begin() + first; unit != units_.end(); ++unit) {
      judge::Observation port = shakedown::observed("port/one_way", "GB/s", *unit);
      port.conditions = {{"bytes", "67108864"}, {"transport", "nccl"}};
      for (int round = 0; round < 32; ++round) port.samples.push_back(near(48));
      record_.write("metric", judge::record_of(port));
      ++observed_;
    }
    return (bytes() - before) * static_cast<std::uintmax_t>(parts);
  }

  /// Of some rounds. Returns the bytes of 32 and their shifted ones.
  std::uintmax_t between_nodes(int rounds) {
    const std::uintmax_t before = bytes();
    judge::PairSearch search(nodes_, rounds, 1);
    for (auto pairs = search.next(); !pairs.empty(); pairs = search.next())
      search.add(links(pairs, 48));
    return (bytes() - before) * (32 + 4) / static_cast<std::uintmax_t>(search.planned());
  }

  std::size_t observed() const { return observed_; }

 private:
  std::uintmax_t bytes() const { return std::filesystem::file_size(record_.path()); }
  double near(double value) { return value * (1 + 0.01 * random_.uniform()); }

  std::vector<judge::Visit> links(const std::vector<RankPair>& pairs, double gbs) {
    std::vector<Link> links;
    std::vector<judge::Visit> visits;
    for (const auto& [first, second] : pairs) {
      links.push_back({first, second, false, false, near(gbs), near(10), near(1e3), near(0.1)});
      links.push_back({second, first, false, false, near(gbs), near(10), near(1e3), near(0.1)});
      links.push_back({first, second, true, false, near(2 * gbs), 0, near(1e3), near(0.1)});
      visits.push_back({{first, second}, gbs, false});
    }
    const Json identity{{"backend", "gpu"}, {"transport", "nccl"}, {"world_size", units_.size()}};
    write_links(links, round_++, {std::size_t{8} << 20, 10, 2, 100}, nodes_, identity, record_);
    return visits;
  }

  judge::Observation link(const std::string& metric, int from, int to) {
    judge::Observation seen =
        shakedown::observed("link/" + metric, "GB/s", units_[static_cast<std::size_t>(from)],
                            units_[static_cast<std::size_t>(to)], !metric.ends_with("one_way"));
    seen.conditions = {{"bytes", "67108864"}, {"transport", "nccl"}, {"concurrency", "concurrent"}};
    seen.versions = {{"nccl", "2.28.3"}};
    seen.path_class = "nvswitch";
    const bool both_ways = metric.ends_with("both_ways");
    seen.peak = both_ways ? 900 : 450;
    for (int sample = 0; sample < kLinkSamples; ++sample)
      seen.samples.push_back(near(both_ways ? 600 : 300));
    return seen;
  }

  NodeMap nodes_;
  std::vector<Unit> units_;
  Record record_;
  shakedown::Random random_{1};
  int round_ = 0;
  std::size_t observed_ = 0;
};

}  // namespace

TEST_CASE("a record of 512 nodes of 8 GPUs is below 100 MB and each row of it is read", "[links]") {
  const bool all = std::getenv("SHAKEDOWN_LONG_TESTS") != nullptr;
  const test::TempFolder folder;
  const std::string path = folder / "links.jsonl";
  SimulatedLinks links(path);
  const std::uintmax_t within = links.within_nodes(all ? 1 : 32);
  const std::uintmax_t between = links.between_nodes(all ? 32 : 1);
  INFO(within << " bytes within nodes, " << between << " between");
  CHECK(within + between < 95'000'000);  // the groups, and who they are, add 2 MB
  CHECK(within > 40'000'000);            // else the simulation leaves something out
  CHECK(between > 5'000'000);
  CHECK(links.observed() == (all ? 512 : 16) * (13 * 28 + 8));
  CHECK(judge::read({path}, "").evidence.observations.size() == links.observed());
}

}  // namespace shakedown::collectives

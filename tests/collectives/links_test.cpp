// The pure parts of the link matrix: who meets whom, what a message carries.
#include <array>
#include <set>

#include "collectives/links/links.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

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
    std::string complaint;
    arrive(2);
    CHECK(messages.check(sent, 0, 64, 2, complaint) == 0);
    CHECK(complaint.empty());
    CHECK(messages.check(sent, 0, 64, 3, complaint) == 64);
    CHECK_THAT(complaint, ContainsSubstring("word 0 of 64 of message 3"));
    CHECK_THAT(complaint, ContainsSubstring("stale result of 1 iteration before"));

    complaint.clear();
    const std::uint64_t zero = 0;
    backend.device->copy(static_cast<std::uint64_t*>(messages.incoming(64).data) + 17, &zero, 8,
                         *stream);
    stream->synchronize();
    CHECK(messages.check(sent, 0, 64, 2, complaint) == 1);
    CHECK_THAT(complaint, ContainsSubstring("word 17 of 64 of message 2"));
    CHECK_THAT(complaint, ContainsSubstring("found 0000000000000000"));
  }
}

}  // namespace shakedown::collectives

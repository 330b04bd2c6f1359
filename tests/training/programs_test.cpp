// What bin/train finds before and after it trains: the largest batch, the self-test, logits in
// order.
#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "common/error.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/transcript.hpp"
#include "training/programs/describe.hpp"
#include "training/programs/epochs.hpp"
#include "training/programs/self_test.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {
namespace {

/// The batches whose bytes were requested from a made-up plan.
struct Asked {
  std::vector<int> batches;
  int largest(std::size_t limit, int most, const std::function<std::size_t(int)>& bytes_of) {
    return largest_fitting(limit, most, [&](int batch) {
      REQUIRE(batch >= 1);
      REQUIRE(batch <= most);
      batches.push_back(batch);
      return bytes_of(batch);
    });
  }
};

}  // namespace

TEST_CASE("the largest batch whose bytes fit", "[max_batch]") {
  // a part that does not grow, and steps of workspaces
  const auto bytes_of = [](int batch) {
    const auto n = static_cast<std::size_t>(batch);
    return 1000000 + 700 * n + n / 64 * 5000;
  };
  for (const std::size_t limit :
       {1000700UL, 1001399UL, 1001400UL, 1500000UL, 9876543UL, 40000000UL}) {
    INFO(limit);
    Asked asked;
    const int found = asked.largest(limit, 1 << 20, bytes_of);
    CHECK(bytes_of(found) <= limit);
    CHECK(bytes_of(found + 1) > limit);
    CHECK(asked.batches.size() <= 24);
  }
}

TEST_CASE("no batch fits, or only one, or all that are looked at", "[max_batch]") {
  const auto line = [](int batch) { return static_cast<std::size_t>(batch) * 100; };
  CHECK(Asked().largest(99, 50, line) == 0);
  CHECK(Asked().largest(100, 50, line) == 1);
  CHECK(Asked().largest(199, 50, line) == 1);
  CHECK(Asked().largest(200, 50, line) == 2);
  CHECK(Asked().largest(5000, 50, line) == 50);
  CHECK(Asked().largest(1000000, 50, line) == 50);
  CHECK(Asked().largest(1000000, 1, line) == 1);
  CHECK(Asked().largest(1000000, 0, line) == 0);
}

TEST_CASE("what a plan refuses does not fit, and one image may be refused", "[max_batch]") {
  constexpr std::size_t kRefused = std::numeric_limits<std::size_t>::max();
  const auto up_to_700 = [](int batch) {
    return batch == 1 || batch > 700 ? kRefused : static_cast<std::size_t>(batch);
  };
  Asked asked;
  CHECK(asked.largest(1000000000, 1 << 20, up_to_700) == 700);
  CHECK(asked.batches.size() <= 50);
  CHECK(Asked().largest(10, 50, [](int) { return kRefused; }) == 0);
}

TEST_CASE("a batch that still lacks memory is reduced, and reported", "[max_batch]") {
  std::vector<int> tried;
  std::vector<std::string> printed;
  const auto print = [&](const std::string& text) { printed.push_back(text); };
  const auto fits_up_to = [&](int most) {
    return [&tried, most](int batch) {
      tried.push_back(batch);
      if (batch > most) throw BatchTooLarge("no room");
      return ExitCode::fail;
    };
  };
  CHECK(stepping_down(640, false, fits_up_to(610), print) == ExitCode::fail);
  CHECK(tried == std::vector<int>{640, 620, 601});
  REQUIRE(printed.size() == 2);
  CHECK_THAT(printed[0], ContainsSubstring("640 per rank") && ContainsSubstring("no room") &&
                             ContainsSubstring("now 620"));
  CHECK_THROWS_WITH(stepping_down(3, false, fits_up_to(0), print),
                    ContainsSubstring("not even one image"));

  const auto lacks = [](int batch) -> ExitCode {
    if (batch > 1) throw OutOfMemory("out of memory");
    return ExitCode::pass;
  };
  CHECK(stepping_down(2, true, lacks, print) == ExitCode::pass);
  CHECK_THROWS_WITH(stepping_down(2, false, lacks, print), "out of memory");  // others wait
  CHECK_THROWS_AS(stepping_down(
                      2, true, [](int) -> ExitCode { throw UsageError("else"); }, print),
                  UsageError);
}

TEST_CASE("the batch that an engine finds is the one that it takes", "[max_batch]") {
  const BackendKind kind = GENERATE(from_range(test::backends()));
  Backend backend = test::open_backend_of(kind);
  EngineSettings settings;
  settings.network.architecture = find_architecture("resnet18");
  settings.network.batch_size = 4;
  settings.network.image_size = 32;
  settings.network.classes = 10;
  settings.network.tuning.autotune = false;
  settings.strategy.strategy = "none";
  // in addition to what is reserved for libraries
  const std::size_t limit = std::size_t{kind == BackendKind::gpu ? 768U : 192U} << 20;
  int largest = 0;
  int ranks = 0;  // that would share the device, each with about that
  {
    Engine engine(settings, backend);
    const std::size_t free = backend.device->memory().free_bytes;
    largest =
        largest_batch(engine, 1, 1 << 20, static_cast<double>(limit) / static_cast<double>(free));
    ranks = static_cast<int>(free / limit);
    CHECK(largest_batch(engine, 1, 3, 0.5) == 3);
    CHECK(largest_batch(engine, 1, 1 << 20, 1e-9) == 0);
  }
  CHECK(largest > 10);
  settings.network.batch_size = largest * 3 / 4;  // what is free changes meanwhile
  CHECK_NOTHROW(Engine(settings, backend).allocate(ranks));
  settings.network.batch_size = largest * 4 / 3;
  CHECK_THROWS_AS(Engine(settings, backend).allocate(ranks), BatchTooLarge);

  // and the input's memory counts
  settings.network.batch_size = 4;
  settings.input_bytes = [&](const NetworkSettings& shape) {
    return static_cast<std::size_t>(shape.batch_size) * (limit / 8);
  };
  Engine engine(settings, backend);
  const double free = static_cast<double>(backend.device->memory().free_bytes);
  CHECK(largest_batch(engine, 1, 1 << 20, static_cast<double>(limit) / free) < 8);
  CHECK_THROWS_AS(engine.allocate(2 * ranks), BatchTooLarge);
}

TEST_CASE("what --self-test concludes from what it measured", "[self_test]") {
  test::check_transcript("tests/training/self_test.txt", [](const std::string& given) {
    std::istringstream lines(given);
    SelfTraining trained{{1.4, 0.5}, 1, 0, ""};
    Certificate certificate;
    certificate.reference = "all-reduce";
    certificate.outcome = Outcome::pass;
    certificate.census.ranks = 2;
    std::string unsound, line;
    std::getline(lines, line);
    trained.losses.push_back(std::stod(line));
    while (std::getline(lines >> std::ws, line)) {
      const auto colon = line.find(": ");
      const std::string what = line.substr(0, colon), text = line.substr(colon + 2);
      if (what == "then") trained.losses.push_back(std::stod(text));
      if (what == "skipped") trained.skipped = std::stoi(text);
      if (what == "unsound") unsound = text;
      if (what == "differed") trained.differed = text;
      if (what == "waived") certificate.waived = text;
      if (what == "other weights") certificate.difference.tensor = text;
      if (what == "unclear") certificate.cause = text;
      if (what == "other weights") certificate.outcome = Outcome::fail;
      if (what == "unclear") certificate.outcome = Outcome::inconclusive;
    }
    return line_of(verdict_on_loss(trained)) + "\n" +
           line_of(verdict_on_gradients(find_strategy("ddp"), certificate, trained)) + "\n" +
           line_of(verdict_on_stability(trained, unsound));
  });
}

TEST_CASE("rows of several ranks are put in the order of the images", "[evaluation]") {
  // 5 images of 2 values on 2 ranks: images 0, 2, 4 and 1, 3 and a row of padding
  const std::vector<float> parts{0, 0.5, 2, 2.5, 4, 4.5, 1, 1.5, 3, 3.5, -1, -1};
  CHECK(interleaved(parts, 5, 2, 2) == std::vector<float>{0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5});
  CHECK(interleaved({1, 2, 3}, 3, 1, 1) == std::vector<float>{1, 2, 3});
  CHECK(interleaved({1, 2, 9}, 2, 1, 3) == std::vector<float>{1, 2});  // fewer images than ranks
  CHECK_THROWS_AS(interleaved({1, 2, 3}, 4, 1, 1), InternalError);
}

}  // namespace shakedown::training

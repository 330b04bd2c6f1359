// The options of bin/train and bin/compare: names, defaults, what is refused, recipes.
#include "training/programs/train_options.hpp"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/files.hpp"
#include "tests/support/options.hpp"
#include "tests/support/transcript.hpp"
#include "training/programs/compare_options.hpp"
#include "training/programs/describe.hpp"
#include "training/programs/run.hpp"

namespace shakedown::training {
namespace {

using test::ParsedAs;
using test::Words;
using Parsed = ParsedAs<TrainOptions>;

template <class Options>
std::string answer_of(const Words& words, const std::string& program) {
  const ParsedAs<Options> p(words, program), defaults("", program);
  return test::answer_of(p.set, p.ending, defaults.set);
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size())
    text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("command lines of train and compare come to options or errors", "[options]") {
  const test::TempFolder folder;
  test::check_transcript("tests/training/train_options.txt", [&](const std::string& given) {
    std::istringstream lines(given);
    std::string program, line;
    std::getline(lines >> program, line);
    std::string content = "\n" + std::string(std::istreambuf_iterator<char>(lines), {});
    replace_all(content, "\n  ", "\n");
    const std::string recipe = folder.write("recipe", content.substr(1));
    replace_all(line, "FILE", recipe);
    std::string answer = program == "compare" ? answer_of<CompareOptions>(line, program)
                                              : answer_of<TrainOptions>(line, program);
    replace_all(answer, recipe, "FILE");
    return answer;
  });
}

TEST_CASE("what follows from the options", "[options]") {
  CHECK(workers_of(Parsed("").values.data, 7) == 7);
  CHECK(small_bucket(Parsed("--bucket-order ddp").values.strategy) == SmallBucket::first);
  CHECK(Parsed("--warmup 30").values.timing.warmup_seconds < 0);  // the backend's
  const auto warmup_s = [](const Words& words) {
    return warmup_seconds_of(Parsed(words).values.timing, BackendKind::gpu);
  };
  CHECK(warmup_s("--invariant 4 --data-dir d") == 0);
  CHECK(warmup_s("--invariant 4 --data-dir d --warmup-seconds 1") == 1);
  TrainOptions values = Parsed("--invariant 4 --data-dir d").values;
  divide_shards(values, 2);
  CHECK(values.accumulate == 2);
  CHECK_THROWS_WITH(divide_shards(values, 3),
                    ContainsSubstring("--invariant 4") && ContainsSubstring("3 ranks"));
  CHECK_THROWS_WITH(divide_shards(values, 8), ContainsSubstring("a power of two of ranks up to 4"));
  values = {};
  divide_shards(values, 3);
  CHECK(values.accumulate == 1);
}

TEST_CASE("--help begins with what a first run needs, and has the rest by group", "[options]") {
  const auto check = [](const OptionSet& set) {
    const std::string first = set.help();
    CHECK(std::count(first.begin(), first.end(), '\n') <= 60);
    const auto json = nlohmann::json::parse(set.json());
    int in_groups = 0;
    for (const auto& group : json["groups"]) {
      const std::string title = group["title"];
      if (title.empty()) continue;
      std::string topic = title;
      topic[0] = static_cast<char>(std::tolower(topic[0]));
      CHECK_THAT(first, ContainsSubstring("\n  " + topic + " "));
      const std::string text = set.help(topic);
      for (const auto& option : group["options"]) {
        ++in_groups;
        CHECK_THAT(text, ContainsSubstring(option["names"][0].get<std::string>()));
      }
      CHECK_THAT(set.help("all"), ContainsSubstring(text));
    }
    CHECK(in_groups > 30);
    const std::string all = set.help("all");
    CHECK_THAT(all, !ContainsSubstring("inject"));
    std::istringstream lines(all);
    for (std::string line; std::getline(lines, line);) {
      CAPTURE(line);
      CHECK(line.size() <= 80);
    }
    CHECK_THROWS_WITH(set.help("gossip"),
                      ContainsSubstring("--help gossip: must be all or one of"));
  };
  const Parsed train("");
  check(train.set);
  for (const char* shown : {"launch/mpi", "--epochs N", "--strategy NAME", "recipes"})
    CHECK_THAT(train.set.help(), ContainsSubstring(shown));
  CHECK_THAT(train.set.help(), !ContainsSubstring("--trust-coefficient"));
  CHECK_THAT(train.set.help("recipes"), ContainsSubstring("torchvision-v1"));
  const std::string all = Parsed("--help all").ending->text;
  CHECK_THAT(all,
             ContainsSubstring("--iterations N           timed steps of the throughput run; not "
                               "with --epochs"));
  CHECK_THAT(all, !ContainsSubstring("tiny"));  // a model for tests
  const ParsedAs<CompareOptions> compare("");
  check(compare.set);
  CHECK_THAT(compare.set.help("all"), !ContainsSubstring("--epochs"));
  CHECK_THAT(Parsed("--help schedule").ending->text, Catch::Matchers::StartsWith("Schedule:"));
  CHECK_THAT(Parsed("--help=data").ending->text, Catch::Matchers::StartsWith("Data:"));
  CHECK(Parsed("--help gossip").ending->code == ExitCode::usage);
}

TEST_CASE("the global batch is divided by ranks and micro-batches", "[options]") {
  TrainOptions options;
  options.global_batch = 1024;
  options.accumulate = 4;
  CHECK(batch_size_of(options, 8) == 32);
  options.accumulate = 3;
  CHECK_THROWS_WITH(batch_size_of(options, 8), ContainsSubstring("--global-batch 1024") &&
                                                   ContainsSubstring("24 (the 8 ranks "
                                                                     "that compute x "
                                                                     "--accumulate 3)"));
  options.strategy.invariant = 24;
  CHECK_THROWS_WITH(batch_size_of(options, 8), ContainsSubstring("24 (--invariant 24)"));
  options.global_batch = 0;
  CHECK(batch_size_of(options, 8) == options.batch_size);
}

TEST_CASE("--timeout holds while a folder is packed", "[pack]") {
  const test::TempFolder folder;
  folder.write("a/1.png", "not decoded");
  TrainOptions options;
  options.data.train_dir = folder.path;
  options.pack = folder / "f.pack";
  options.backend.timeout_s = 77;
  MpiSession& session = test::session();
  const double before = session.timeout_s();
  CHECK(pack_images(options, session) == ExitCode::pass);
  CHECK(session.timeout_s() == 77);
  session.set_timeout(before);
}

// A recipe's options are defaults.

TEST_CASE("an error that comes later names the recipe, too", "[options]") {
  const test::TempFolder folder;
  const std::string recipe = folder.write("recipe", "--epochs 90\n--train-dir d\n");
  const Parsed p(Words{"--recipe", recipe});
  CHECK(p.set.explained("--epochs 90: more than there are") ==
        "--epochs 90: more than there are; --recipe " + recipe +
            " sets --epochs 90: an option on the command line replaces a value of it");
  CHECK(p.set.explained("--epochs-of-another 90") == "--epochs-of-another 90");
}

}  // namespace shakedown::training

// The options' grammar, conditions and texts, on a set of their own.
#include "common/options.hpp"
#include "common/error.hpp"

#include "tests/catch.hpp"
#include "tests/support/options.hpp"
#include "tests/support/transcript.hpp"

namespace shakedown {
namespace {

using test::Words;

/// Parses "fly ARGUMENTS".
struct Parsed {
  std::string mode = "glide";
  std::vector<std::string> birds{"all"};
  std::vector<int> heights{1};
  int wings = 2;
  double speed = 0.5;
  bool feathers = false;
  bool lights = true;
  std::string map_file;
  double engine_power = 1;
  double soaring = 0;
  std::string fault;
  OptionSet set{"fly", "Flies."};
  std::optional<OptionSet::Ending> ending;

  explicit Parsed(const Words& words) {
    declare();
    ending = parse(set, words);
  }

  void declare() {
    set.heading("Flight");
    set.add("--flight-mode,--mode", mode, "how it flies")
        .one_of({"glide", "flap", "soar"})
        .unlisted({"fall"});
    set.add_alias("--quiet", "--flight-mode", "glide");
    set.add("--birds", birds, "list of birds").one_of({"gull", "tern", "duck"});
    set.add("--heights,-H", heights, "list of heights").at_least(1);
    set.add("--wings,-w", wings, "number of wings").at_least(1).at_most(12);
    set.add("--speed", speed, "speed over ground").at_least(0).below(300).metavar("M/S");
    set.refuse("--oars", "a bird has none");
    set.add("--feathers", feathers, "grow feathers");
    set.add("--lights", lights, "switch the lights on");
    set.heading("Parts");
    set.add("--map-file", map_file, "read this map").existing_file().metavar("FILE");
    set.add("--engine-power", engine_power, "power of the engine")
        .only_where("--flight-mode", {"flap", "soar"})
        .idle_with({"--feathers"})
        .default_text("by wind");
    set.add("--soaring", soaring, "height to soar at")
        .only_with({"--feathers", "--absent"})
        .not_with({"--wings"});
    set.heading("");
    set.add("--inject-fault", fault, "lose a feather");
    set.check([this] {
      if (wings == 3) throw UsageError("--wings 3: must not be three");
    });
  }
};

std::string complaint(const Words& words) {
  const Parsed p(words);
  return test::complaint_of(p.set, p.ending);
}

}  // namespace

TEST_CASE("command lines come to values or errors", "[options]") {
  test::check_transcript("tests/common/options.txt", [](const std::string& given) {
    const Parsed p(given.substr(std::string("fly").size())), defaults("");
    if (p.ending && p.ending->code == ExitCode::pass) return p.ending->text;  // help
    return test::answer_of(p.set, p.ending, defaults.set);
  });
  const Parsed p("--flight_mode=soar");
  CHECK(p.set.given("--mode"));
  CHECK_FALSE(p.set.given("--lights"));
  CHECK_THROWS_AS(p.set.given("--absent"), InternalError);
  CHECK(complaint({""}) == "unexpected argument ; see --help");
  CHECK(p.set.help("all") == p.set.help());
}

TEST_CASE("files, which another rank's host may lack, are checked after parsing", "[options]") {
  const Parsed absent("--map-file /no/such/file");
  CHECK_FALSE(absent.ending);
  CHECK(absent.set.missing_file() == "--map-file /no/such/file: No such file or directory");
  CHECK(Parsed("--map-file /").set.missing_file() == "--map-file /: Is a directory");
  CHECK(Parsed("--map-file /proc/version").set.missing_file().empty());
  CHECK(Parsed("").set.missing_file().empty());
}

TEST_CASE("sizes are in binary units", "[options]") {
  CHECK(parse_bytes("-b", "8") == 8);
  CHECK(parse_bytes("-b", "1.5k") == 1536);
  CHECK(parse_bytes("-b", "2MiB") == std::size_t{2} << 20);
  CHECK(parse_bytes("-b", "100T") == std::size_t{100} << 40);
  CHECK_THROWS_WITH(parse_bytes("-b", "1P"),
                    ContainsSubstring("-b 1P") && ContainsSubstring("K, M, G, T"));
}

}  // namespace shakedown

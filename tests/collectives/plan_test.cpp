// Plans and refusals by the options of collective_perf, of nccl-tests' names and of link_matrix;
// what a sweep makes of its rows.
#include "collectives/perf/plan.hpp"
#include "collectives/traffic.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include "collectives/links/options.hpp"
#include "collectives/operations.hpp"
#include "collectives/perf/bench.hpp"
#include "collectives/perf/nccl_path.hpp"
#include "collectives/perf/options.hpp"
#include "collectives/perf/output.hpp"
#include "collectives/perf/sweep.hpp"
#include "collectives/verifier.hpp"
#include "common/options.hpp"
#include "common/placement.hpp"
#include "common/usage_error.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/files.hpp"
#include "tests/support/options.hpp"
#include "tests/support/transcript.hpp"

namespace shakedown::collectives {
namespace {

using test::Words;

void parsed_into(OptionSet& set, const Words& words) {
  if (const auto ending = test::parse(set, words)) throw UsageError(ending->text);
}

struct Planned {
  PerfOptions options;
  Plan plan;
};

Planned planned(const Words& words, int ranks = 2, const std::string& program = "collective_perf") {
  Planned result{default_options(program), {}};
  OptionSet set(result.options.program, "");
  declare_options(set, result.options);
  parsed_into(set, words);
  result.plan = make_plan(result.options, set, ranks);
  return result;
}

/// Of "[VARIABLE=VALUE] PROGRAM RANKS WORDS": what is planned, or why it is refused.
std::string answer_of(const std::string& given) {
  std::istringstream in(given);
  std::string program, name, line;
  std::optional<test::Variable> variable;  // keeps the name's address
  int ranks = 0;
  in >> program;
  if (const std::size_t equals = program.find('='); equals != program.npos) {
    std::string value = program.substr(equals + 1);
    std::replace(value.begin(), value.end(), '_', ' ');
    name = program.substr(0, equals);
    variable.emplace(name.c_str(), value);
    in >> program;
  }
  in >> ranks;
  std::getline(in, line);
  try {
    if (program == "link_matrix") {
      LinkOptions options;
      OptionSet set("link_matrix", "");
      declare_options(set, options);
      parsed_into(set, line);
      const NodeMap nodes = map_nodes(
          std::vector<std::string>(static_cast<std::size_t>(ranks), "a"), options.pretend_nodes);
      return fmt::format("{} words, {} rounds of nodes",
                         message_settings(options, BackendKind::cpu, ranks).words,
                         sampled_rounds(options.pairs, nodes));
    }
    const Planned p = planned(line, ranks, program);
    std::string text;
    for (const Operation* operation : p.plan.operations) text += std::string(operation->name) + " ";
    text += "of";
    for (const std::size_t bytes : p.plan.sizes) text += fmt::format(" {}", bytes);
    text += fmt::format(" bytes, {} GPUs", p.options.gpus);
    return p.plan.groups.empty() ? text
                                 : text + fmt::format(", groups {}", fmt::join(p.plan.groups, " "));
  } catch (const UsageError& error) {
    return error.what();
  }
}

using Sizes = std::vector<std::size_t>;

std::string text_of(const Traffic& traffic, int from, int ranks, std::size_t share,
                    std::size_t width) {
  std::string text = "sends";
  for (int to = 0; to < ranks; ++to)
    text += fmt::format(" {}", traffic.elements(from, to, ranks, share, width));
  return text + fmt::format("; at most {}, and {} received",
                            traffic.most(Traffic::sent, ranks, share, width),
                            traffic.most(Traffic::received, ranks, share, width));
}

/// "matrix SCALE FROM RANKS WIDTH LEAST MOST" and its rows.
std::string of_matrix(std::istream& words, const std::string& rows) {
  double scale = 0;
  int from = 0, ranks = 0;
  std::size_t width = 0, least = 0, most = 0;
  words >> scale >> from >> ranks >> width >> least >> most;
  const Traffic matrix("M", rows, scale);
  matrix.check(ranks, least, most);
  return text_of(matrix, from, ranks, 0, width);
}

/// Of ranks' times, a line each.
std::string of_waiting(std::istream& rows) {
  std::vector<std::vector<double>> times;
  for (std::string row; std::getline(rows, row);) {
    std::istringstream in(row);
    times.emplace_back(std::istream_iterator<double>(in), std::istream_iterator<double>());
  }
  const WaitingTimes found = analyse_waiting(times);
  return fmt::format("straggler {}, transfer {} us, waits {} us, for the straggler {} us",
                     found.straggler, found.transfer_us, fmt::join(found.wait_us, " "),
                     found.wait_for_straggler_us);
}

std::string of_log(const std::string& log) {
  const PathLines lines = parse_path(log);
  const std::string last = lines.last ? fmt::format("{} {}, {} channels", lines.last->algorithm,
                                                    lines.last->protocol, lines.last->channels)
                                      : "no operation";
  return fmt::format("{}; transports [{}]", last, fmt::join(lines.transports, " "));
}

/// Of a case of perf.txt: its first word, what follows it, and the lines below.
std::string figure_of(const std::string& given) {
  std::istringstream lines(given);
  std::string line, what, below;
  std::getline(lines, line);
  for (std::string each; std::getline(lines, each);) below += each.substr(1) + "\n";
  std::istringstream words(line), rows(below);
  words >> what;
  const auto numbers = [&] {
    return std::vector<double>(std::istream_iterator<double>(words),
                               std::istream_iterator<double>());
  };
  std::string name;
  if (what == "matrix") return of_matrix(words, below);
  if (what == "waiting") return of_waiting(rows);
  if (what == "log") return of_log(below);
  if (what == "memory") return memory_line(numbers());
  if (what == "version") return words >> name, std::to_string(nccl_version_code(name));
  if (what == "device") return words >> name, nccl_tests_device(name);
  if (what == "program") {
    words >> name;
    const PerfOptions options = default_options(name);
    return fmt::format("{} of {}{}", options.program, fmt::join(options.operations, ","),
                       options.as_nccl_tests() ? ", as nccl-tests" : "");
  }
  if (what == "factors") {
    for (const Operation& each : operations())
      name += fmt::format("{}: {:.4g} {:.4g}\n", each.name, each.alg_factor(3), each.bus_factor(3));
    return name;
  }
  const std::vector<double> of = numbers();
  if (what == "spread")
    return text_of(Traffic(of[0]), static_cast<int>(of[1]), static_cast<int>(of[2]),
                   static_cast<std::size_t>(of[3]), static_cast<std::size_t>(of[4]));
  if (what == "bars") {
    const auto idle = idle_bars({of[0], of[1]}, find_operation("all_gather"), of[2] != 0,
                                static_cast<int>(of[3]));
    return idle ? fmt::format("{} ({})", line_of(*idle), name_of(idle->class_.value())) : "judged";
  }
  Tally tally = of.empty() ? Tally() : Tally{of[0]};
  for (std::size_t i = 1; i < of.size(); ++i) tally.count_busbw(of[i]);
  Measurement measured;
  measured.wrong = what == "wrong" ? 1 : 0;
  tally.count_wrong(measured);
  return fmt::format("mean {} GB/s, {}: {}", tally.mean_busbw_gbs(), tally.judgement(),
                     name_of(tally.outcome()));
}

}  // namespace

TEST_CASE("figures, and what is concluded of them",
          "[perf_options][traffic][bars][waiting][path]") {
  test::check_transcript("tests/collectives/perf.txt", [](const std::string& given) {
    try {
      return figure_of(given);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
  });
}

TEST_CASE("command lines come to plans or errors", "[perf_options][plan][links]") {
  test::check_transcript("tests/collectives/options.txt", answer_of);
  CHECK(map_nodes({"a", "a", "a", "a"}, 2).node_of == std::vector<int>{0, 0, 1, 1});
}

TEST_CASE("types, reductions and roots are all listed", "[perf_options]") {
  const Planned p = planned("-b 96 -e 96 -d half,int8,uint64 -o all -r -1");
  std::set<std::string> seen;
  for (const Trial& row : rows_of(find_operation("reduce"), p.plan, 2))
    seen.insert(std::string(name_of(row.type)) + name_of(row.reduction) + std::to_string(row.root));
  CHECK(seen.size() == 3 * 5 * 2);
}

TEST_CASE("nccl-tests' names have its operation and its defaults", "[perf_options]") {
  for (const Operation& operation : operations()) {
    const Planned p = planned({}, 2, operation.program_name);
    CHECK(p.options.program == operation.program_name);
    CHECK(p.plan.operations == std::vector<const Operation*>{&operation});
    CHECK(p.plan.sizes == Sizes{32 << 20});
    CHECK(p.plan.step == 1 << 20);
    CHECK_FALSE(p.plan.by_factor);
    CHECK(p.plan.bench.warmup == 1);
    CHECK(p.plan.bench.iterations == 20);
    CHECK(p.plan.bench.repeats == 1);
  }
}

TEST_CASE("options for tests are not in the help", "[links]") {
  LinkOptions options;
  OptionSet set("link_matrix", "");
  declare_options(set, options);
  const std::string text = set.help();
  CHECK_THAT(text, ContainsSubstring("--min-bandwidth"));
  CHECK_THAT(text, !ContainsSubstring("inject"));
  CHECK_THAT(text, !ContainsSubstring("pretend"));
}

TEST_CASE("a row is a metric line: above 64 KiB its busbw, below its latency", "[bars]") {
  const Backend backend = test::open_backend_of(test::backends().front());
  const NodeMap nodes = map_nodes({"n1", "n1", "n2"});
  std::vector<Unit> units(3);
  for (int rank = 0; rank < 3; ++rank) {
    units[rank].rank = rank;
    units[rank].host = nodes.name_of(rank);
  }
  Json fields{{"operation", "all_reduce"},
              {"bytes", 1 << 20},
              {"in_place", true},
              {"dtype", "float32"},
              {"ctas", 0},
              {"iterations_per_sample", 5}};
  Figures figures;
  figures.busbw_gbs = 8;
  figures.wrong = 0;
  figures.samples = {100, 200, 400};
  figures.spread.median = 200;
  const auto observation = [&] {
    return observation_of(fields, figures, *backend.world, nodes, units);
  };
  CHECK(observation()->metric == "collective/all_reduce/busbw");
  CHECK(observation()->samples == std::vector<double>{16, 8, 4});
  CHECK(observation()->of.scope == Scope::group);
  CHECK(observation()->of.name == "n1,n2");
  CHECK(observation()->conditions.at("world_size") == "3");
  CHECK(observation()->conditions.at("ranks_per_node") == "2");
  CHECK(observation()->conditions.at("in_place") == "true");
  CHECK(observation()->conditions.at("bytes") == "1048576");
  CHECK_FALSE(observation()->conditions.contains("iterations"));
  fields["iterations_per_sample"] = 1;  // no peer of samples of many
  CHECK(observation()->conditions.at("iterations") == "1");
  figures.wrong = 2;
  CHECK(observation()->check == judge::Check::wrong);
  figures.wrong.reset();
  CHECK(observation()->check == judge::Check::unchecked);
  fields["bytes"] = 65536;
  CHECK(observation()->metric == "collective/all_reduce/latency");
  CHECK(observation()->samples == figures.samples);
  fields["algorithm"] = "RING";  // NCCL's log is in the time
  CHECK_FALSE(observation());
  fields.erase("algorithm");
  figures.busbw_gbs = 0;
  CHECK_FALSE(observation());
}

TEST_CASE("a rank waits for the last where each receives from all", "[waiting]") {
  for (const Operation& operation : operations()) {
    std::set<int> sources;  // of what rank 1 of 3 receives, and of what rank 0 does
    bool from_all = true;
    for (int rank : {0, 1}) {
      sources.clear();
      for (const SourceRange& range :
           operation.expected(operation.counts(12, 3, 1, 16), {rank, 3, 0}))
        sources.insert(range.source);
      from_all = from_all && (sources.size() == 3 || sources.contains(kAllRanks));
    }
    CAPTURE(operation.name);
    CHECK(operation.ends_together == from_all);
  }
}

TEST_CASE("NCCL's log goes to a file that nobody else can have made, and goes away", "[path]") {
  std::string first;
  {
    const NcclPath a(true);
    first = std::getenv("NCCL_DEBUG_FILE");
    const NcclPath b(true);
    CHECK(first != std::getenv("NCCL_DEBUG_FILE"));
    struct stat status {};
    REQUIRE(stat(first.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
  }
  CHECK_FALSE(std::filesystem::exists(first));
  for (const char* name : {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"}) unsetenv(name);
}

}  // namespace shakedown::collectives

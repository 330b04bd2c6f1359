// Plans and refusals by the options of collective_perf, of nccl-tests' names and of link_matrix;
// what a sweep makes of its rows.
#include "collectives/perf/plan.hpp"
#include "collectives/traffic.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

#include <cstdlib>
#include <filesystem>
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

}  // namespace

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

TEST_CASE("bus bandwidth has nccl-tests' factors", "[perf_options]") {
  for (const Operation& operation : operations()) {
    const std::string name = operation.name;
    const bool whole =
        name == "broadcast" || name == "reduce" || name == "send_recv" || name == "hypercube";
    CHECK(operation.alg_factor(3) == Approx(name == "hypercube" ? 2.0 / 3 : 1.0));
    CAPTURE(name);
    CHECK(operation.bus_factor(3) == Approx(whole                  ? 1.0
                                            : name == "all_reduce" ? 4.0 / 3
                                                                   : 2.0 / 3));
  }
}

TEST_CASE("all_to_all_v has nccl-tests' patterns", "[traffic]") {
  const auto sent = [](const Traffic& traffic, int from, int ranks, std::size_t share,
                       std::size_t width) {
    std::vector<std::size_t> elements;
    for (int to = 0; to < ranks; ++to)
      elements.push_back(traffic.elements(from, to, ranks, share, width));
    return elements;
  };
  // in its comment: 0, 2, 4 and 6 of 12 parts; here of 4 x 1,536 bytes
  CHECK(sent(Traffic(1), 0, 4, 384, 4) == Sizes{0, 256, 512, 768});
  CHECK(sent(Traffic(1), 3, 4, 384, 4) == Sizes{256, 512, 768, 0});
  CHECK(sent(Traffic(0), 1, 4, 384, 4) == Sizes{384, 384, 384, 384});
  CHECK(sent(Traffic(0.5), 0, 4, 384, 4) == Sizes{192, 320, 448, 576});
  CHECK(sent(Traffic(1), 0, 1, 384, 4) == Sizes{384});
  CHECK(sent(Traffic(1), 0, 4, 10, 4) == Sizes{0, 4, 12, 20});  // whole 16 bytes
  CHECK(Traffic(1).most(Traffic::sent, 4, 384, 4) == 1536);
  CHECK(Traffic(1).most(Traffic::received, 4, 384, 4) == 1536);

  const Traffic matrix("M", "100 200 150\n50 100 75\n300 150 200\n", 1);
  CHECK(sent(matrix, 2, 3, 0, 1) == Sizes{288, 144, 192});
  CHECK(sent(matrix, 2, 3, 0, 8) == Sizes{36, 18, 24});
  CHECK(matrix.most(Traffic::sent, 3, 0, 1) == 624);
  CHECK(matrix.most(Traffic::received, 3, 0, 1) == 96 + 48 + 288);
  CHECK(sent(Traffic("M", "1 2\n3 4", 16), 1, 2, 0, 1) == Sizes{48, 64});
  matrix.check(3, 1024, 1024);
  CHECK_THROWS_WITH(matrix.check(4, 1024, 1024), "M: has 3 rows, this job 4 ranks");
  CHECK_THROWS_WITH(matrix.check(3, 512, 512), "--max-bytes 512: must be at least 624, as M has");
  CHECK_THROWS_WITH(matrix.check(3, 8, 1024),
                    "M: has the sizes: --min-bytes and --max-bytes must be equal");
  CHECK_THROWS_WITH(Traffic("M", "1 2\n3\n", 1),
                    "M: row 2 has 1 numbers and there are 2 rows: must be square");
  CHECK_THROWS_WITH(Traffic("M", "1 x\n3 4\n", 1), "M: row 1: 'x': must be a number of bytes");
  CHECK_THROWS_WITH(Traffic("M", " \n", 1), "M: has no numbers");
}

TEST_CASE("nccl-tests' names with a suffix are nccl-tests' programs", "[plan]") {
  CHECK(default_options("all_reduce_perf_mpi").program == "all_reduce_perf");
  CHECK(default_options("reduce_scatter_perf_mpi").operations == Texts{"reduce_scatter"});
  CHECK_FALSE(default_options("collective_perf").as_nccl_tests());
  CHECK_FALSE(default_options("all_reduce_performance").as_nccl_tests());
  // versions and devices in its lines are words that its parsers read
  CHECK(nccl_version_code("2.28.9") == 22809);
  CHECK(nccl_tests_device("0000:1b:00.0") == "0000:1b:00");
  CHECK(nccl_tests_device("") == "cpu");
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

TEST_CASE("bars are inconclusive where no row moves data, and on one rank", "[bars]") {
  const std::string name = "all_gather";
  const Operation& operation = find_operation(name);
  const BarOptions both{10, 50};
  const auto unmoved = idle_bars(both, operation, false, 4);
  REQUIRE(unmoved);
  CHECK(unmoved->outcome == Outcome::inconclusive);
  CHECK(unmoved->class_ == Class::config);
  CHECK(unmoved->cause == "--min-busbw 10 --max-latency 50: no row moves data to be judged");
  CHECK_THAT(idle_bars({0, 50}, operation, true, 1)->cause,
             ContainsSubstring("--max-latency 50: one rank exchanges nothing"));
  CHECK_FALSE(idle_bars(both, operation, true, 2));
  CHECK_FALSE(idle_bars({}, operation, false, 1));
}

TEST_CASE("the mean is judged by nine tenths of nccl-tests' bar, and wrong data fail", "[bars]") {
  Tally tally{10};
  tally.count_busbw(8);
  tally.count_busbw(10);
  CHECK(tally.mean_busbw_gbs() == 9);
  CHECK(tally.judgement() == "OK");
  CHECK(tally.outcome() == Outcome::pass);
  tally.count_busbw(8.9);
  CHECK(tally.judgement() == "FAILED");
  CHECK(tally.outcome() == Outcome::fail);
  Tally wrong;
  Measurement measured;
  measured.wrong = 1;
  wrong.count_wrong(measured);
  CHECK(wrong.judgement().empty());
  CHECK(wrong.outcome() == Outcome::fail);
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
              {"ctas", 0}};
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

TEST_CASE("the rank that everybody waited for is named", "[waiting]") {
  // rank 2 enters 500 us late in each of three iterations of 100 us
  const WaitingTimes waiting = analyse_waiting({{600, 605, 590}, {598, 600, 595}, {100, 102, 98}});
  CHECK(waiting.straggler == 2);
  CHECK(waiting.transfer_us == 100);
  CHECK(waiting.wait_us[2] == 0);
  CHECK(waiting.wait_us[0] == 500);
  CHECK(waiting.wait_for_straggler_us == 500);
  // noise names nobody
  CHECK(analyse_waiting({{100, 101, 102}, {101, 100, 103}}).straggler == -1);
  CHECK(analyse_waiting({{12, 14}, {10, 11}}).straggler == -1);      // 20 % of 10 us
  CHECK(analyse_waiting({{100, 900}, {900, 100}}).straggler == -1);  // each in turn
  CHECK(analyse_waiting({{50, 60, 70}}).straggler == -1);            // alone
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

TEST_CASE("NCCL's log says algorithm, protocol, channels and transports", "[path]") {
  const PathLines lines = parse_path(
      "vm:12:34 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
      "vm:12:34 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n"
      "vm:12:34 [0] NCCL INFO Channel 02 : 0[0] -> 1[1] via SHM/direct/direct\n"
      "vm:12:34 [0] NCCL INFO Channel 00/0 : 1[1] -> 8[0] [send] via NET/IB/3/GDRDMA\n"
      "vm:12:34 [0] NCCL INFO AllReduce: 8 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}\n"
      "vm:12:34 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE "
      "channel{Lo..Hi}={0..23}\n");
  CHECK(lines.last == PathChoice{"RING", "SIMPLE", 24});
  CHECK(lines.transports ==
        std::set<std::string>{"P2P/CUMEM", "P2P/CUMEM/read", "SHM/direct/direct", "NET/IB"});
  const PathLines none = parse_path("vm:12:34 [0] NCCL INFO Bootstrap: Using eth0\n");
  CHECK_FALSE(none.last);
  CHECK(none.transports.empty());
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

TEST_CASE("the memory of a GPU is reported as nccl-tests does", "[plan]") {
  CHECK(memory_line({3.5 * (1 << 30), 96.25 * (1 << 20), -2048}) ==
        "# GPU memory usage     : Initialization 3.50 GB | User-Allocated 96.2 MB | Collective "
        "-2.00 KB | Total  3.59 GB\n");
  CHECK(memory_line({512.0 * (1 << 20), 0, 999}) ==
        "# GPU memory usage     : Initialization 512 MB | User-Allocated 0.00 B | Collective 999 B "
        "| Total  512 MB\n");
}

}  // namespace shakedown::collectives

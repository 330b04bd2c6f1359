// Plans and refusals by the options of collective_perf, of nccl-tests' names and of link_matrix.
#include "collectives/perf/plan.hpp"
#include "collectives/perf/options.hpp"

#include <cmath>
#include <cstdlib>
#include <set>

#include "collectives/links/options.hpp"
#include "common/error.hpp"
#include "common/options.hpp"
#include "common/placement.hpp"
#include "tests/catch.hpp"

namespace shakedown::collectives {
namespace {

using Arguments = std::vector<std::string>;

void parse(OptionSet& set, Arguments arguments) {
  arguments.insert(arguments.begin(), set.program());
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  if (const auto ending = set.parse(static_cast<int>(argv.size()), argv.data()))
    throw UsageError(ending->text);
}

struct Planned {
  PerfOptions options;
  Plan plan;
};

Planned planned(const Arguments& arguments, int ranks = 2,
                const std::string& program = "collective_perf") {
  Planned result{default_options(program), {}};
  OptionSet set(result.options.program, "");
  declare_options(set, result.options);
  parse(set, arguments);
  result.plan = make_plan(result.options, set, ranks);
  return result;
}

LinkOptions link_options(const Arguments& arguments) {
  LinkOptions options;
  OptionSet set("link_matrix", "");
  declare_options(set, options);
  parse(set, arguments);
  return options;
}

using Sizes = std::vector<std::size_t>;

}  // namespace

TEST_CASE("sizes go by factor or by bytes", "[perf_options]") {
  CHECK(planned({"-b", "1K", "-e", "64K", "-f", "8"}).plan.sizes == Sizes{1024, 8192, 65536});
  CHECK(planned({"--minbytes", "1KB", "--maxbytes", "3KiB", "--stepbytes", "1k"}).plan.sizes ==
        Sizes{1024, 2048, 3072});
}

TEST_CASE("quick measures the four classic operations", "[perf_options]") {
  const Plan plan = planned({"--quick"}).plan;
  std::vector<std::string> names;
  for (const Operation* operation : plan.operations) names.emplace_back(operation->name);
  CHECK(names ==
        std::vector<std::string>{"all_reduce", "all_gather", "reduce_scatter", "broadcast"});
  CHECK(plan.sizes == Sizes{1 << 20, 4 << 20, 16 << 20, 64 << 20});
}

TEST_CASE("types, reductions and roots are all listed", "[perf_options]") {
  const Planned p =
      planned({"-b", "96", "-e", "96", "-d", "half,int8,uint64", "-o", "all", "-r", "-1"});
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
    const bool whole = name == "broadcast" || name == "reduce" || name == "send_recv";
    CAPTURE(name);
    CHECK(operation.bus_factor(3) == Approx(whole                  ? 1.0
                                            : name == "all_reduce" ? 4.0 / 3
                                                                   : 2.0 / 3));
  }
}

TEST_CASE("errors name the option, its value and what is allowed", "[perf_options]") {
  const std::vector<std::pair<Arguments, const char*>> cases{
      {{"--bytes", "3"}, "unknown option --bytes"},
      {{"-b", "1Q"}, "--min-bytes 1Q"},
      {{"-b", "2K", "-e", "1K"}, "--min-bytes 2K: must not exceed --max-bytes 1K"},
      {{"-b", "0", "-f", "2"}, "--min-bytes 0 cannot be used with --step-factor"},
      {{"-i", "0", "-f", "1"}, "--step-bytes 0: must be at least 1"},
      {{"-d", "float128"}, "--dtype float128: must be one of float64, float32, "},
      {{"-o", "mulsum"}, "--reduction mulsum: must be one of sum, prod, "},
      {{"--operation", "all_reduce,barrier"}, "--operation barrier: must be one of all_reduce, "},
      {{"-r", "5"}, "--root 5: no such rank (this job has ranks 0 to 1)"},
      {{"-e", "99999999999G"}, "--max-bytes 99999999999G"},
      {{"-I", "1", "-G", "1"}, "--cuda-graph 1 cannot be combined with --one-by-one"},
      {{"-z", "1", "-G", "4"}, "--cuda-graph 4 cannot be combined with --blocking"},
      {{"--tolerance", "5"}, "--tolerance 5: only with --reference"},
      {{"-a", "7"}, "--average 7: must be one of 0 (rank 0), 1 (mean), 2 (min), 3 (max)"},
      {{"-z", "4"}, "--blocking 4: must be one of 0 (none)"},
      {{"-R", "3"}, "--register 3: must be one of 0 (none), 1 (registered), 2 (symmetric windows)"},
      {{"-g", "2"}, "launch/mpi -n 4 collective_perf"},
      {{"-t", "2"},
       "--nthreads 2: each rank is a process: use launch/mpi -n RANKS collective_perf"},
      {{"-d", "int3"}, "uint8, all"},
      {{"-D", "1"}, "--device-implementation"},
      {{"-u", "3"}, "--align"},
      {{"--inject-fault", "x"}, "--inject-fault x"},
      {{"--inject-fault", "7:0"}, "--inject-fault 7:0"},
      {{"--inject-delay", "0:5us"}, "--inject-delay 0:5us"}};
  for (const auto& [arguments, words] : cases) {
    CHECK_THROWS_AS(planned(arguments), UsageError);
    CHECK_THROWS_WITH(planned(arguments), ContainsSubstring(words));
  }
  setenv("NCCL_TESTS_SPLIT", "MOD 2", 1);
  CHECK_THROWS_WITH(planned({}, 2, "all_reduce_perf"), ContainsSubstring("NCCL_TESTS_SPLIT"));
  CHECK_NOTHROW(planned({}));
  unsetenv("NCCL_TESTS_SPLIT");
}

TEST_CASE("what nccl-tests' users request and have in any case is accepted", "[plan]") {
  for (const Arguments& arguments : {Arguments{"-p", "1"}, {"-V", "16"}, {"-D", "0"}, {"-y", "0"}})
    CHECK_NOTHROW(planned(arguments, 2, "all_reduce_perf"));
  const auto accepts = [](const char* name, const char* value, int ranks) {
    setenv(name, value, 1);
    bool accepted = true;
    try {
      planned({}, ranks, "all_reduce_perf");
    } catch (const UsageError&) {
      accepted = false;
    }
    unsetenv(name);
    return accepted;
  };
  CHECK(accepts("NCCL_TESTS_SPLIT", "AND 0x0", 16));
  CHECK(accepts("NCCL_TESTS_SPLIT", "mod 1", 16));
  CHECK(accepts("NCCL_TESTS_SPLIT", "/16", 16));
  CHECK(accepts("NCCL_TESTS_SPLIT_MASK", "0x0", 16));
  CHECK(accepts("NCCL_TESTS_DEVICE", "-1", 2));
  for (const char* split : {"AND 0x7", "DIV 8", "MOD 0", "AND", "AND 0x0 7", "", "0x0"}) {
    CAPTURE(split);
    CHECK_FALSE(accepts("NCCL_TESTS_SPLIT", split, 16));
  }
  CHECK_FALSE(accepts("NCCL_TESTS_SPLIT_MASK", "7", 16));
  CHECK_FALSE(accepts("NCCL_TESTS_DEVICE", "1", 2));
}

TEST_CASE("nccl-tests' names with a suffix are nccl-tests' programs", "[plan]") {
  CHECK(default_options("all_reduce_perf_mpi").program == "all_reduce_perf");
  CHECK(default_options("reduce_scatter_perf_mpi").operations ==
        std::vector<std::string>{"reduce_scatter"});
  CHECK_FALSE(default_options("collective_perf").as_nccl_tests());
  CHECK_FALSE(default_options("all_reduce_performance").as_nccl_tests());
}

TEST_CASE("versions and devices in nccl-tests' lines are words that its parsers read", "[plan]") {
  CHECK(nccl_version_code("2.28.9") == 22809);
  CHECK(nccl_tests_device("0000:1b:00.0") == "0000:1b:00");
  CHECK(nccl_tests_device("") == "cpu");
}

TEST_CASE("-g is understood in every spelling, and the last one counts", "[perf_options]") {
  for (const Arguments& g : {Arguments{"-g", "2"}, {"-g2"}, {"--ngpus=2"}, {"--ngpus", "2"}}) {
    const auto parsed = [&](const Arguments& more) {
      Arguments arguments{"-b", "64"};
      arguments.insert(arguments.end(), g.begin(), g.end());
      arguments.insert(arguments.end(), more.begin(), more.end());
      PerfOptions options = default_options("all_reduce_perf");
      OptionSet set(options.program, "");
      declare_options(set, options);
      parse(set, arguments);
      return options.gpus;
    };
    CHECK(parsed({"-c", "0"}) == 2);
    CHECK(parsed({"--ngpus", "1"}) == 1);  // as relaunch_for_gpus() adds
  }
}

TEST_CASE("link_matrix: errors name the option and its value", "[links]") {
  const auto settings = [](const Arguments& arguments, int ranks = 2) {
    const LinkOptions options = link_options(arguments);
    parse_injection(options.injection, ranks);
    map_nodes(std::vector<std::string>(static_cast<std::size_t>(ranks), "a"),
              options.pretend_nodes);
    return message_settings(options, BackendKind::cpu, ranks);
  };
  CHECK(settings({}).words == (4 << 20) / 8);
  const std::vector<std::pair<Arguments, const char*>> cases{
      {{"--bytes", "13"}, "--bytes 13: must be a multiple of 8"},
      {{"--bytes", "4Q"}, "--bytes 4Q"},
      {{"--inject-delay", "9:5"}, "--inject-delay 9:5"},
      {{"--inject-fault", "2"}, "--inject-fault 2: must be "},
      {{"--pretend-nodes", "3"}, "--pretend-nodes 3: this job has only 2 ranks"},
      {{"--iterations", "0"}, "--iterations"},
      {{"--latency-iteration"}, "did you mean --latency-iterations"}};
  for (const auto& [arguments, words] : cases) {
    CHECK_THROWS_AS(settings(arguments), UsageError);
    CHECK_THROWS_WITH(settings(arguments), ContainsSubstring(words));
  }
  CHECK_THROWS_WITH(settings({}, 1), ContainsSubstring("link_matrix needs at least 2 ranks"));
  CHECK(map_nodes({"a", "a", "a", "a"}, 2).node_of == std::vector<int>{0, 0, 1, 1});
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

}  // namespace shakedown::collectives

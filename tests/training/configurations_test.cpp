#include "common/error.hpp"
#include "training/programs/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "common/options.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "training/exchange/strategy.hpp"
#include "training/programs/compare_options.hpp"

namespace shakedown::training {
namespace {

CompareOptions parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "compare");
  CompareOptions options;
  OptionSet set("compare", "test");
  declare_options(set, options);
  const auto ending = set.parse(static_cast<int>(arguments.size()), arguments.data());
  if (ending) throw UsageError(ending->text);
  return options;
}

/// "strategy/ranks", then "/cap" where there are buckets, and "/setting".
std::vector<std::string> names_of(const Bench& bench) {
  std::vector<std::string> names;
  for (const Configuration& c : bench)
    names.push_back(fmt::format(
        "{}/{}{}{}{}", c.strategy(), c.ranks,
        c.strategy() == "ddp" ? fmt::format("/{}", c.options.strategy.bucket_cap_mb) : "",
        c.setting.empty() ? "" : "/", c.setting));
  return names;
}

const JobRanks kFour{BackendKind::gpu, 4, 4, ""};
const JobRanks kTwoCpus{BackendKind::cpu, 2, 0, "needs GPUs"};

std::vector<std::string> planned(std::vector<const char*> arguments) {
  const auto benches = benches_of(parse(std::move(arguments)), kFour);
  REQUIRE(benches.size() == 1);
  return names_of(benches.front());
}

std::string left_out(const CompareOptions& options, const JobRanks& ranks,
                     const std::vector<Bench>& benches) {
  Record nowhere("");
  return record_left_out(options, ranks, benches, nowhere);
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("every strategy of the table is compared unless some are named", "[compare]") {
  const Names all = planned({});
  CHECK(all == planned({"--strategies", "all"}));
  for (const StrategyEntry& entry : strategies())
    CHECK(std::count_if(all.begin(), all.end(), [&](const std::string& name) {
            return name.rfind(std::string(entry.name) + "/4", 0) == 0;
          }) == 1);
  CHECK(all.size() == strategies().size() + 1);  // and one rank alone
  const std::vector<const char*> one{"--ranks", "1,4", "--strategies", "ddp,parameter-server"};
  CHECK(planned(one) == Names{"none/1", "ddp/1/25", "none/4", "ddp/4/25", "parameter-server/4"});
  CHECK(left_out(parse(one), kFour, {}) == "left out: parameter-server on 1 rank: needs 2");
}

TEST_CASE("a named strategy that can run nowhere is tried, and not left out", "[compare]") {
  const JobRanks alone{BackendKind::gpu, 1, 1, ""};
  const CompareOptions named = parse({"--strategies", "ddp,parameter-server"});
  CHECK(names_of(benches_of(named, alone).front()) ==
        Names{"none/1", "ddp/1/25", "parameter-server/1"});
  CHECK(left_out(named, alone, {}).empty());
  CHECK_THAT(left_out(parse({}), alone, {}),
             ContainsSubstring("parameter-server on 1 rank: needs 2"));
}

TEST_CASE("peer is compared on the ranks that can be peers", "[compare]") {
  const CompareOptions options = parse({"--strategies", "peer,ddp", "--ranks", "2,4"});
  CHECK(left_out(options, kFour, {}).empty());
  const JobRanks two_nodes{BackendKind::gpu, 4, 2, "needs GPUs of one node"};
  CHECK(names_of(benches_of(options, two_nodes).front()) ==
        Names{"none/1", "none/2", "peer/2", "ddp/2/25", "none/4", "ddp/4/25"});
  CHECK(left_out(options, two_nodes, {}) == "left out: peer on 4 ranks: needs GPUs of one node");

  Backend backend;
  const auto no_peers = [&](const CompareOptions& o) {
    return ranks_of(o, backend, test::session()).no_peers;
  };
  CHECK(no_peers(parse({})) == "needs GPUs");
  CHECK(no_peers(options).empty());  // as it is named
  CHECK(ranks_of(options, backend, test::session()).peers == test::session().world_size());
  backend.kind = BackendKind::gpu;
  setenv("NCCL_P2P_DISABLE", "1", 1);
  CHECK(no_peers(parse({})) == "NCCL_P2P_DISABLE=1");
  unsetenv("NCCL_P2P_DISABLE");
}

TEST_CASE("one rank alone and none on as many ranks are always there, once", "[compare]") {
  CHECK(planned({"--strategies", "ddp"}) == Names{"none/1", "none/4", "ddp/4/25"});
  CHECK(planned({"--strategies", "ddp,none,ddp", "--ranks", "1,2,2"}) ==
        Names{"none/1", "ddp/1/25", "none/2", "ddp/2/25"});
}

TEST_CASE("bucket caps multiply only what has buckets", "[compare]") {
  CHECK(planned({"--strategies", "all-reduce,ddp", "--bucket-caps", "4,12.5,4"}) ==
        Names{"none/1", "none/4", "all-reduce/4", "ddp/4/4", "ddp/4/12.5"});
}

TEST_CASE("settings are compared with plain ddp at the first cap on the most ranks", "[compare]") {
  CHECK(planned({"--strategies", "none", "--bucket-caps", "4,25", "--ranks", "1,4,2,9",
                 "--settings", "no-overlap,broadcast-buffers"}) ==
        Names{"none/1", "none/4", "none/2", "none/9", "ddp/4/4", "ddp/4/4/broadcast-buffers",
              "ddp/4/4/no-overlap"});
  CHECK_THROWS_WITH(planned({"--ranks", "8,9"}), "--ranks 8,9: the job has 4 ranks");
  CHECK(parse({"--settings", "all"}).settings == setting_names());
  CHECK_THROWS_WITH(parse({"--settings", "no-ovrelap"}), ContainsSubstring("no-ovrelap"));
  CHECK(parse({}).settings.empty());
}

TEST_CASE("a setting differs from plain ddp in its one switch", "[compare]") {
  const auto bench_of = [](std::vector<const char*> arguments, BackendKind backend) {
    arguments.insert(arguments.end(), {"--strategies", "ddp", "--settings", "all"});
    return benches_of(parse(std::move(arguments)), {backend, 2, 2, ""}).front();
  };
  const auto find = [](const Bench& bench, const std::string& setting) {
    const auto found = std::find_if(bench.begin(), bench.end(),
                                    [&](const auto& c) { return c.setting == setting; });
    return found == bench.end() ? nullptr : &*found;
  };
  const Bench gpu = bench_of({}, BackendKind::gpu);  // of tf32
  CHECK(gpu.size() == 3 + settings().size() - 1);
  CHECK(find(gpu, "fp32")->options.model.precision == "fp32");
  CHECK(find(gpu, "tf32") == nullptr);
  CHECK_FALSE(find(gpu, "autotune-off")->options.model.autotune);
  CHECK(find(gpu, "autotune-off")->options.model.precision == "tf32");
  CHECK(find(gpu, "broadcast-buffers")->options.strategy.norm_stats == "broadcast");
  CHECK_FALSE(find(gpu, "broadcast-buffers")->options.strategy.no_overlap);
  CHECK(find(gpu, "no-overlap")->options.strategy.no_overlap);
  CHECK(find(gpu, "no-graph")->options.graph == "off");

  const Bench plain_fp32 = bench_of({"--precisions", "fp32"}, BackendKind::gpu);
  CHECK(find(plain_fp32, "tf32")->options.model.precision == "tf32");
  CHECK(find(plain_fp32, "fp32") == nullptr);
  const Bench half = bench_of({"--precisions", "fp16"}, BackendKind::gpu);
  CHECK(half.size() == 3 + settings().size() - 2);
  const Bench cpu = bench_of({"--no-overlap"}, BackendKind::cpu);  // a switch that stands so
  CHECK(cpu.size() == 3 + settings().size() - 5);  // and no precisions, graphs, candidates
  CHECK(find(cpu, "no-overlap") == nullptr);
  CHECK(find(cpu, "no-graph") == nullptr);
}

TEST_CASE("a setting that changes nothing is named with the reason", "[compare]") {
  const auto named = [](std::vector<const char*> arguments, BackendKind backend) {
    const CompareOptions options = parse(std::move(arguments));
    const JobRanks job{backend, 2, 2, ""};
    return left_out(options, job, benches_of(options, job));
  };
  const std::string cpu = named({"--settings", "all"}, BackendKind::cpu);
  for (const char* name : {"autotune-off", "tf32", "fp32", "no-graph"})
    CHECK_THAT(cpu, ContainsSubstring(fmt::format("--settings {}: only on the gpu", name)));
  CHECK(cpu.find("broadcast-buffers") == std::string::npos);
  CHECK(named({"--settings", "all"}, BackendKind::gpu) ==
        "left out: --settings tf32: no change from plain ddp with these options");
  CHECK(named({"--settings", "no-overlap"}, BackendKind::cpu).empty());
  CHECK_THROWS_WITH(benches_of(parse({"--settings", "no-graph"}), kTwoCpus),
                    ContainsSubstring("--settings no-graph: only on the gpu backend"));
}

TEST_CASE("an option is idle where no strategy of the list uses it", "[compare]") {
  CHECK_NOTHROW(parse({"--no-overlap"}));  // all are compared
  CHECK_NOTHROW(parse({"--strategies", "none,ddp", "--bucket-caps", "4,25"}));
  CHECK_THROWS_WITH(parse({"--strategies", "none,fsdp", "--bucket-caps", "4,25"}),
                    ContainsSubstring("--bucket-caps 4,25: only with --strategies ddp, zero1"));
  CHECK_NOTHROW(parse({"--strategies", "none", "--settings", "all", "--bucket-caps", "4"}));
  CHECK_THROWS_WITH(parse({"--batch-sizes", "4,8", "--global-batch", "12"}),
                    ContainsSubstring("--global-batch"));
  CHECK_THROWS_WITH(parse({"--workers", "2"}),
                    ContainsSubstring("only with --data-dir or --train-dir\n"));
}

TEST_CASE("lists are understood under their singular names, and bin/train's", "[compare]") {
  const CompareOptions o =
      parse({"--strategy", "none,ddp", "--batch-size", "8,16", "--model", "resnet18", "--rank", "2",
             "--bucket-cap-mb", "3", "--precision", "fp32", "--lr", "0.5"});
  CHECK(o.strategies == Names{"none", "ddp"});
  CHECK(o.batch_sizes == std::vector<int>{8, 16});
  CHECK(o.models == Names{"resnet18"});
  CHECK(o.ranks == std::vector<int>{2});
  CHECK(o.bucket_caps_mb == std::vector<double>{3});
  CHECK(o.train.optimizer.learning_rate == 0.5);
  CHECK(parse({"--bucket-cap", "3,4"}).bucket_caps_mb == std::vector<double>{3, 4});
  CHECK(parse({"--batch-size", "4,8", "--batch-sizes", "16"}).batch_sizes ==
        std::vector<int>{16});  // what is given last counts
  CHECK(parse({"--amp"}).precisions == Names{"fp16"});
  CHECK(parse({}).batch_sizes == std::vector<int>{TrainOptions().batch_size});
}

TEST_CASE("a word that a list does not have is named", "[compare]") {
  CHECK_THROWS_WITH(parse({"--strategies", "ddp,gossip"}), ContainsSubstring("gossip"));
  CHECK_THROWS_WITH(parse({"--batch-sizes", "8,0"}),
                    ContainsSubstring("--batch-sizes 0: must be at least 1"));
  CHECK_THROWS_WITH(parse({"--ranks", "2,x"}), ContainsSubstring("x"));
}

TEST_CASE("models, precisions and batches each make a bench", "[compare]") {
  const auto options = parse(
      {"--models", "resnet18,resnet34", "--batch-sizes", "4,8", "--precisions", "auto,tf32,fp16"});
  const auto benches = benches_of(options, {BackendKind::gpu, 2, 2, ""});
  std::set<std::string> seen;
  for (const Bench& bench : benches) {
    const StepOptions& o = bench.front().options;
    for (const Configuration& c : bench) CHECK(c.options.batch_size == o.batch_size);
    seen.insert(fmt::format("{} {} {}", o.model.model, o.model.precision, o.batch_size));
  }
  CHECK(benches.size() == 8);  // on the gpu auto is tf32
  CHECK(seen.size() == 8);
  CHECK(seen.count("resnet34 fp16 8") == 1);
  const auto on_cpu = benches_of(options, kTwoCpus);  // which computes all of them in fp32
  CHECK(on_cpu.size() == 4);
  for (const Bench& bench : on_cpu) CHECK(bench.front().options.model.precision == "fp32");
  CHECK(precision_remark("--precisions", options.precisions, BackendKind::cpu) ==
        "--precisions auto,tf32,fp16: computed in fp32, as the cpu backend does");
  CHECK(precision_remark("--precisions", options.precisions, BackendKind::gpu).empty());
  CHECK(precision_remark("--precision", {"auto"}, BackendKind::cpu).empty());
  CHECK(parse_precision("bf16", BackendKind::cpu) == Precision::fp32);
  CHECK_THROWS_AS(parse_precision("fp8", BackendKind::cpu), UsageError);
  CHECK(benches_of(parse({"--global-batch", "12"}), kTwoCpus).size() == 1);
}

TEST_CASE("each round has every configuration, and begins elsewhere", "[compare]") {
  constexpr std::size_t kCount = 7;
  std::set<std::size_t> starts;
  for (int round = 0; round < 3; ++round) {
    const auto order = turns(kCount, round, 3);
    CHECK(std::set<std::size_t>(order.begin(), order.end()).size() == kCount);
    CHECK(order.size() == kCount);
    starts.insert(order.front());
  }
  CHECK(starts.size() == 3);
  CHECK(turns(2, 1, 4) == std::vector<std::size_t>{0, 1});
}

}  // namespace shakedown::training

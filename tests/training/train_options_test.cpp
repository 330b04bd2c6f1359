// The options of bin/train and bin/compare: names, defaults, what is refused, recipes.
#include "training/programs/train_options.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/files.hpp"
#include "tests/support/options.hpp"
#include "training/programs/compare_options.hpp"
#include "training/programs/describe.hpp"
#include "training/programs/invariant.hpp"
#include "training/programs/loader_run.hpp"

namespace shakedown::training {
namespace {

using test::ParsedAs;
using test::Words;
using Parsed = ParsedAs<TrainOptions>;

/// The usage error without "train: ", or "".
template <class Options = TrainOptions>
std::string complaint(const Words& words) {
  const ParsedAs<Options> p(words);
  return test::complaint_of(p.set, p.ending);
}

}  // namespace

TEST_CASE("the spellings that people know are understood", "[options]") {
  const Parsed p(
      "--batch_size 32 --learning_rate=0.5 --num_workers 12 --use_amp --train_dir data/train_set");
  REQUIRE_FALSE(p.ending);
  CHECK(p.values.batch_size == 32);
  CHECK(p.values.optimizer.learning_rate == 0.5);
  CHECK(p.values.data.workers == "12");
  CHECK(p.values.model.precision == "fp16");
  CHECK(p.values.data.train_dir == "data/train_set");  // values keep their underscores
  const Parsed q("--lr 0.25 --amp --workers 3 --data-dir d");
  CHECK(q.values.optimizer.learning_rate == 0.25);
  CHECK(q.values.model.precision == "fp16");
  CHECK(q.values.data.workers == "3");
  CHECK(q.values.data.data_dir == "d");
  const Parsed defaults("");  // docs/options.md has them
  REQUIRE_FALSE(defaults.ending);
  CHECK(workers_of(defaults.values.data, 7) == 7);
  CHECK_FALSE(defaults.set.given("--batch-size"));
}

TEST_CASE("numbers out of range are refused", "[options]") {
  const auto refused = [](const char* option, const char* value) {
    const std::string text = complaint({option, value, "--train-dir", "d"});
    return text.starts_with(std::string(option) + " " + value + ": must be ");
  };
  for (const char* option : {"--learning-rate", "--weight-decay", "--momentum", "--throttle-gbs"})
    for (const char* value : {"inf", "nan", "-1"}) CHECK(refused(option, value));
  CHECK(refused("--momentum", "1"));
  CHECK(refused("--label-smoothing", "1"));
  CHECK(refused("--image-size", "1000000"));
  CHECK(refused("--iterations", "2000000000"));
  CHECK(refused("--warmup", "2000000000"));
  CHECK(refused("--prefetch", "1000000000"));
  CHECK(refused("--workers", "5000"));
  CHECK(refused("--batch-size", "many"));
  CHECK(refused("--batch-size", "0"));
  CHECK(refused("--precision", "fp8"));
  CHECK(refused("--bucket-order", "last"));
  CHECK_FALSE(refused("--momentum", "0.99"));
  for (const char* workers : {"0", "many", "-1", "4x", ""}) CHECK(refused("--workers", workers));
  CHECK_FALSE(refused("--workers", "1024"));
  CHECK_FALSE(refused("--workers", "auto"));
  CHECK(refused("--decoder", "gpu"));
  CHECK(complaint("--prefetch 1025 --train-dir d") == "--prefetch 1025: must be at most 1024");
}

TEST_CASE("--invariant settles what the bits depend on", "[options]") {
  const Parsed p("--invariant 4 --data-dir d");
  REQUIRE_FALSE(p.ending);
  CHECK(p.values.strategy.strategy == "all-reduce");
  CHECK(p.values.model.deterministic);
  CHECK(p.values.backend.cpu_threads == 1);
  CHECK(p.values.data.decoder == "cpu");
  CHECK(warmup_seconds_of(p.values.timing, BackendKind::gpu) == 0);
  CHECK(warmup_seconds_of(Parsed("--invariant 4 --data-dir d --warmup-seconds 1").values.timing,
                          BackendKind::gpu) == 1);
  CHECK(Parsed("--invariant 4 --data-dir d --decoder nvjpeg").values.data.decoder == "nvjpeg");
  CHECK(complaint("--invariant 6") == "--invariant 6: must be a power of two, such as 4");
  CHECK(complaint("--invariant 0") == "--invariant 0: must be at least 1");
  for (const Words other :
       {"--strategy fsdp", "--accumulate 2", "--grad-dtype fp16", "--bucket-cap-mb 4",
        "--norm-stats average --save w", "--autotune", "--max-batch"})
    CHECK(complaint("--invariant 4" + other) ==
          "--invariant 4 cannot be combined with " + other.front());
  CHECK(complaint("--invariant 4 --fusion statistics") ==
        "--fusion statistics cannot be combined with --deterministic: its sums differ from run to "
        "run");

  TrainOptions values = p.values;
  divide_shards(values, 2);
  CHECK(values.accumulate == 2);
  CHECK_THROWS_WITH(divide_shards(values, 3),
                    ContainsSubstring("--invariant 4") && ContainsSubstring("3 ranks"));
  CHECK_THROWS_WITH(divide_shards(values, 8), ContainsSubstring("up to 4 ranks"));
  values = {};
  divide_shards(values, 3);
  CHECK(values.accumulate == 1);
}

TEST_CASE("train: an option that another makes idle is refused", "[options]") {
  const std::vector<std::pair<std::string, const char*>> cases{
      {"--norm-stats average", "--norm-stats average: only with --epochs or --save"},
      {"--norm-stats average --save w --strategy zero1", ""},
      {"--norm-stats broadcast", ""},
      {"--broadcast-buffers --strategy zero1", "--norm-stats broadcast: only with --strategy ddp"},
      {"--bucket-cap-mb 4 --strategy zero2",
       "--bucket-cap-mb 4: only with --strategy ddp, zero1, peer"},
      {"--bucket-cap-mb 4 --strategy zero1", ""},
      {"--small-bucket-mb 4 --strategy fsdp",
       "--small-bucket-mb 4: only with --strategy ddp, zero1, peer"},
      {"--grad-dtype bf16 --strategy zero1",
       "--grad-dtype bf16: only with --strategy all-reduce, ddp"},
      {"--grad-dtype bf16 --strategy none",
       "--grad-dtype bf16: only with --strategy all-reduce, ddp"},
      {"--no-overlap --strategy all-reduce",
       "--no-overlap: only with --strategy ddp, zero1, zero2, fsdp, peer"},
      {"--no-overlap off --strategy all-reduce", ""},  // requests nothing
      {"--momentum 0.9 --optimizer adam", "--momentum 0.9: only with --optimizer sgd, lars"},
      {"--nesterov --optimizer adamw", "--nesterov: only with --optimizer sgd, lars"},
      {"--schedule cosine", "--schedule cosine: only with --epochs"},
      {"--lr-step-epochs 3", "--lr-step-epochs 3: only with --schedule step"},
      {"--epochs 2 --train-dir d --schedule multi-step",
       "--schedule multi-step needs --lr-milestones"},
      {"--epochs 90 --train-dir d --schedule multi-step --lr-milestones 30,80,60",
       "--lr-milestones 30,80,60: must rise"},
      {"--epochs 90 --train-dir d --schedule multi-step --lr-milestones 30,90",
       "--lr-milestones 30,90: must be below --epochs 90"},
      {"--epochs 90 --train-dir d --schedule multi-step --lr-milestones 30,30,89", ""},
      {"--epochs 5 --train-dir d --lr-warmup-epochs 5.5",
       "--lr-warmup 5.5: must be at most --epochs 5"},
      {"--epochs 5 --train-dir d --lr-warmup-epochs 5", ""},
      {"--epochs 5 --train-dir d --lr-warmup-epochs 2 --schedule multi-step --lr-milestones 1,3",
       "--lr-milestones 1,3: must be below --epochs 5 less the warm-up's 2"},
      {"--epochs 5 --train-dir d --schedule cosine --lr-min 0.2",
       "--lr-min 0.2: must be at most --learning-rate 0.1"},
      {"--epochs 5 --train-dir d --schedule cosine --lr-min 0.1", ""},
      {"--trust-coefficient 0.1", "--trust-coefficient 0.1: only with --optimizer lars"},
      {"--workers 2", "--workers 2: only with --data-dir or --train-dir or --val-dir"},
      {"--workers 2 --train-dir d", ""},
      {"--classes 2 --train-dir d",
       "--classes 2: has no effect with --data-dir or --train-dir or --val-dir"},
      {"--val-dir d", "--val-dir d: only with --epochs or --evaluate"},
      {"--check-neighbour 10", "--check-neighbour 10: only with --deterministic"},
      {"--check-neighbour 10 --deterministic", ""},
      {"--plan-cache f --deterministic", "--plan-cache f: has no effect with --deterministic"},
      {"--norm-stats average --workers 2 --ignore-idle", ""}};
  for (const auto& [arguments, text] : cases) CHECK(complaint(arguments) == text);
}

TEST_CASE("options that contradict one another are refused", "[options]") {
  CHECK(complaint("--global-batch 8 --batch-size 4") ==
        "--global-batch 8 cannot be combined with --batch-size");
  CHECK_FALSE(complaint("--global-batch 8 --batch-size 4 --ignore-idle").empty());
  for (const char* option : {"--iterations", "--warmup", "--warmup-seconds"})
    CHECK(complaint({option, "4", "--epochs", "1", "--train-dir", "d"}) ==
          std::string(option) + " 4 cannot be combined with --epochs");
  CHECK(complaint("--evaluate --epochs 1") == "--evaluate cannot be combined with --epochs");
  CHECK(complaint("--logits f") == "--logits f: only with --evaluate");
  CHECK(complaint("--certificate --epochs 1 --train-dir d") ==
        "--certificate cannot be combined with --epochs");
  CHECK(complaint("--certificate off --epochs 1 --train-dir d").empty());
  const auto refused_with = [&](const char* other, const char* value) {
    return complaint({"--layers", other, value}) ==
           std::string("--layers cannot be combined with ") + other;
  };
  CHECK(refused_with("--epochs", "1"));
  CHECK(refused_with("--save", "w.safetensors"));
  CHECK(refused_with("--trace", "t.json"));
  CHECK(refused_with("--max-batch", "on"));
  for (const std::string option : {"--epochs", "--batch-size", "--global-batch"})
    CHECK(complaint({"--max-batch", option.c_str(), "4"}) ==
          "--max-batch cannot be combined with " + option);
  CHECK(complaint("--max-batch 8 --epochs 4") == "--max-batch 8 cannot be combined with --epochs");
  CHECK(complaint("--autotune --deterministic") ==
        "--autotune cannot be combined with --deterministic");
  CHECK_THAT(complaint("--fusion all --deterministic"),
             ContainsSubstring("--fusion all cannot be combined with --deterministic"));
}

TEST_CASE("the self-test is combined with few options", "[options]") {
  CHECK(complaint("--self-test --epochs 4") == "--self-test cannot be combined with --epochs");
  for (const std::string option : {"--batch-size", "--iterations"})
    CHECK(complaint({"--self-test", option.c_str(), "4"}) ==
          option + " 4: has no effect with --self-test");
  CHECK(complaint("--self-test --strategy fsdp --precision fp32 --seed 3 --record r --timeout 9 "
                  "--backend cpu")
            .empty());
}

TEST_CASE("what a run of another kind does not use is refused", "[options]") {
  const auto with = [](const Words& mode, const Words& more) { return complaint(mode + more); };
  const Words loader("--loader-only --train-dir d"), pack("--pack f --train-dir d"),
      evaluate("--evaluate --weights w --val-dir d");
  for (const Words& mode : {loader, pack, evaluate}) {
    const std::string name = mode[0];
    CHECK(with(mode, "--workers 2").empty());
    CHECK(with(mode, "--certificate off").empty());
    CHECK(with(mode, "--lr 1") == "--learning-rate 1: has no effect with " + name);
    CHECK(with(mode, "--lr 1 --ignore-idle").empty());
  }
  for (const Words& mode : {loader, pack})
    CHECK(with(mode, "--certificate") == "--certificate: has no effect with " + mode[0]);
  CHECK(with(loader, "--amp") == "--precision fp16: has no effect with --loader-only");
  CHECK(with(loader, "--decoder cpu --seed 3").empty());
  CHECK(with(loader, "--save f") == "--loader-only cannot be combined with --save");
  CHECK(with(pack, "--backend cpu").empty());
  CHECK(with(pack, "--seed 3") == "--seed 3: has no effect with --pack");
  CHECK(with(evaluate, "--max-bad-images 3 --train-dir d") ==
        "--max-bad-images 3: has no effect with --evaluate");
  CHECK(with(evaluate, "--fusion none").empty());
}

TEST_CASE("epochs need data, and an evaluation weights", "[options]") {
  CHECK(complaint("--epochs 1") == "--epochs 1 needs --data-dir or --train-dir");
  CHECK(complaint("--epochs 1 --train-dir d").empty());
  CHECK(complaint("--epochs 0") == "--epochs 0: must be at least 1");
  CHECK(complaint("--evaluate --weights w") == "--evaluate needs --data-dir or --val-dir");
  CHECK(complaint("--evaluate --val-dir d") == "--evaluate needs --weights");
  CHECK(complaint("--evaluate --val-dir d --weights w").empty());
  CHECK(complaint("--evaluate --data-dir d --weights w").empty());
  CHECK(complaint("--epochs 1 --data-dir d").empty());
  CHECK(complaint("--data-dir d --train-dir d") ==
        "--data-dir d cannot be combined with --train-dir");
}

TEST_CASE("names of earlier versions are understood", "[options]") {
  const Parsed p(
      "--first-bucket-mb 3 --bucket-order ddp --warmup-seconds 1.5 --broadcast-buffers --kernels");
  CHECK_FALSE(p.ending);
  CHECK(p.values.strategy.small_bucket_mb == 3);
  CHECK(small_bucket(p.values.strategy) == SmallBucket::first);
  CHECK(p.values.timing.warmup_seconds == 1.5);
  CHECK(p.values.strategy.norm_stats == "broadcast");
  CHECK(p.values.layers);
  const Parsed q("--max-batch-limit 12 --max-batch");
  CHECK(q.values.max_batch == 12);
  const Parsed r(
      "--epochs 3 --train-dir d --lr-warmup-steps 7 --schedule step --lr-step-size 2 "
      "--checkpoint-dir c --checkpoint-every-epochs 2 --checkpoint-minutes 20");
  CHECK_FALSE(r.ending);
  CHECK(r.values.schedule.lr_warmup_steps == 7);
  CHECK(r.values.schedule.lr_step_epochs == 2);
  CHECK(r.values.checkpoints.every_epochs == 2);
  CHECK(r.values.checkpoints.minutes == 20);
}

TEST_CASE("an alias is on, or left out", "[options]") {
  CHECK(Parsed("--broadcast-buffers on").values.strategy.norm_stats == "broadcast");
  for (const char* off : {"--broadcast-buffers=off", "--broadcast-buffers=yes"})
    CHECK(complaint({off}).find("must be on, or left out: it is --norm-stats broadcast") !=
          std::string::npos);
  CHECK(complaint("--amp off") == "--amp off: must be on, or left out: it is --precision fp16");
}

TEST_CASE("an error of a unit names what was given", "[options]") {
  CHECK(complaint("--warmup 20,-2s") == "--warmup -2s: must be at least 0");
  CHECK(complaint("--warmup 20,") == "--warmup 20,: must be a whole number");
  CHECK(complaint("--warmup ,") == "--warmup ,: must be a whole number");
  CHECK(complaint("--lr-milestones every:3") ==
        "--lr-milestones every:3: only with --schedule step");
  CHECK(complaint("--epochs 2 --train-dir d --checkpoint-every 20min") ==
        "--checkpoint-every 20min: only with --checkpoint-dir");
  CHECK(complaint("--lr-step-epochs 3") == "--lr-step-epochs 3: only with --schedule step");
}

TEST_CASE("an option of two units sets what each of them names", "[options]") {
  const Parsed p("--warmup 30,1.5s");
  CHECK_FALSE(p.ending);
  CHECK(p.values.timing.warmup == 30);
  CHECK(p.values.timing.warmup_seconds == 1.5);
  CHECK(Parsed("--warmup 0.5s").values.timing.warmup == 20);
  CHECK(Parsed("--warmup 30").values.timing.warmup_seconds < 0);  // the backend's
  const Parsed q(
      "--epochs 9 --train-dir d --lr-warmup 500steps --schedule step --lr-milestones every:4 "
      "--checkpoint-dir c --checkpoint-every 2,20min");
  CHECK_FALSE(q.ending);
  CHECK(q.values.schedule.lr_warmup_epochs == 0);
  CHECK(q.values.schedule.lr_warmup_steps == 500);
  CHECK(q.values.schedule.lr_step_epochs == 4);
  CHECK(q.values.checkpoints.every_epochs == 2);
  CHECK(q.values.checkpoints.minutes == 20);
  const Parsed later(
      "--checkpoint-dir c --checkpoint-every 2,20min --checkpoint-every 5 --lr-warmup 7 "
      "--lr-warmup 500steps --epochs 9 --train-dir d");
  CHECK_FALSE(later.ending);
  CHECK(later.values.checkpoints.every_epochs == 5);
  CHECK(later.values.checkpoints.minutes == 0);
  CHECK(later.values.schedule.lr_warmup_epochs == 0);
  CHECK(later.values.schedule.lr_warmup_steps == 500);
  const Parsed earlier(
      "--checkpoint-dir c --checkpoint-minutes 20 --checkpoint-every 5 --epochs 9 --train-dir d");
  CHECK(earlier.values.checkpoints.minutes == 20);
  CHECK(Parsed("--max-batch 8 --max-batch off").values.max_batch == 0);
  CHECK(Parsed("--max-batch").values.max_batch == kMostBatch);
  CHECK(Parsed("--max-batch --seed 3").values.max_batch == kMostBatch);
  CHECK(Parsed("--max-batch=12").values.max_batch == 12);
  CHECK(Parsed("--max-batch off").values.max_batch == 0);
  CHECK(complaint("--warmup 3min") == "--warmup 3min: must be a whole number");
  CHECK(complaint("--max-batch some") == "--max-batch some: must be a whole number");
}

TEST_CASE("options of earlier versions are refused with the reason", "[options]") {
  for (const std::string& option :
       test::Words("--bucket-copy --comm-priority --per-tensor --ps-exchange --ps-partition-mb "
                   "--staleness --scaled-decode --decoder-share")) {
    CHECK_THAT(complaint({option.c_str(), "1"}),
               Catch::Matchers::StartsWith(option + " was removed: "));
    CHECK_THAT(complaint<CompareOptions>({option.c_str(), "1"}),
               Catch::Matchers::StartsWith(option + " was removed: "));
  }
  for (const std::string option : {"--history", "--mllog"})
    CHECK_THAT(complaint({option.c_str(), "f"}), ContainsSubstring("results/report " + option));
  CHECK_THAT(complaint("--comm-priority=normal"), ContainsSubstring("settings-2gpu.jsonl"));
  CHECK_THAT(complaint<CompareOptions>("--settings no-graph,small-last"),
             Catch::Matchers::StartsWith("--settings small-last was removed: "));
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
    CHECK_THROWS_WITH(set.help("gossip"),
                      ContainsSubstring("--help gossip: must be all or one of"));
  };
  const Parsed train("");
  check(train.set);
  for (const char* shown : {"launch/mpi", "--epochs N", "--strategy NAME", "recipes"})
    CHECK_THAT(train.set.help(), ContainsSubstring(shown));
  CHECK_THAT(train.set.help(), !ContainsSubstring("--trust-coefficient"));
  CHECK_THAT(train.set.help("recipes"), ContainsSubstring("torchvision-v1"));
  check(ParsedAs<CompareOptions>("").set);
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
  options.global_batch = 0;
  CHECK(batch_size_of(options, 8) == options.batch_size);
}

TEST_CASE("a model for tests is taken and listed nowhere", "[options]") {
  CHECK(Parsed("--model tiny").values.model.model == "tiny");
  CHECK_FALSE(Parsed("--model tiny").ending);
  CHECK(Parsed("--help all").ending->text.find("tiny") == std::string::npos);
}

TEST_CASE("help lists every option that is not hidden, within 80 columns", "[options]") {
  const auto check = [](const auto& help, const OptionSet& set) {
    const auto json = nlohmann::json::parse(set.json());
    for (const auto& group : json["groups"])
      for (const auto& option : group["options"])
        if (!option["hidden"])
          CHECK_THAT(help, ContainsSubstring(option["names"][0].get<std::string>()));
    CHECK_THAT(help, !ContainsSubstring("inject"));
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) {
      CAPTURE(line);
      CHECK(line.size() <= 80);
    }
  };
  const Parsed train("--help all");
  check(train.ending->text, train.set);
  CHECK_THAT(train.ending->text, ContainsSubstring("--iterations N           timed steps of the "
                                                   "throughput run; not with --epochs"));
  CHECK(train.set.values().size() > 30);
  const ParsedAs<CompareOptions> compare("--help all");
  check(compare.ending->text, compare.set);
  CHECK_THAT(compare.ending->text, !ContainsSubstring("--epochs"));
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

TEST_CASE("the command line replaces a recipe's options, and what they make idle", "[options]") {
  const test::TempFolder folder;
  const std::string recipe = folder / "recipe";
  std::ofstream(recipe) << "# For people: --lr 7\n--model resnet18\n--epochs 90\n\n--lr 0.5\n"
                           "--schedule step\n--lr-step-epochs 3\n--batch-size 32\n"
                           "--train-dir d\n";
  const char* const name = recipe.c_str();
  const Parsed p({"--lr", "0.25", "--recipe", name});
  CHECK(p.values.model.model == "resnet18");
  CHECK(p.values.epochs == 90);
  CHECK(p.values.optimizer.learning_rate == 0.25);
  CHECK(p.values.schedule.lr_step_epochs == 3);
  CHECK(p.values.batch_size == 32);
  const Parsed contradicted({"--recipe", name, "--global-batch", "64", "--schedule", "cosine"});
  REQUIRE_FALSE(contradicted.ending);
  CHECK(contradicted.values.global_batch == 64);
  CHECK(contradicted.values.batch_size == TrainOptions().batch_size);
  CHECK(contradicted.values.schedule.schedule == "cosine");
  const Parsed throughput({"--recipe", name, "--iterations", "5"});
  REQUIRE_FALSE(throughput.ending);
  CHECK(throughput.values.epochs == TrainOptions().epochs);
  std::ofstream(recipe) << "--lr fast\n";
  CHECK(complaint({"--recipe", name}) ==
        "--recipe " + recipe + ": --learning-rate fast: must be a number");
  for (const auto& [line, said] : {std::pair{"--bogus 1", "unknown option --bogus; see --help"},
                                   std::pair{"epochs 1", "unexpected argument epochs"}}) {
    std::ofstream(recipe) << line << "\n";
    CHECK_THAT(complaint({"--recipe", name}),
               ContainsSubstring("--recipe " + recipe + ": " + said));
  }
  std::ofstream(recipe).close();
  CHECK(complaint({"--recipe", name}) == "--recipe " + recipe + ": is empty");
  CHECK(complaint("--recipe /tmp") == "--recipe /tmp: is a folder");
  std::filesystem::remove(recipe);
  CHECK_THAT(complaint({"--recipe", name}),
             ContainsSubstring(recipe + ": must be a file, or one of "));
}

TEST_CASE("an error about a recipe's value names the recipe", "[options]") {
  const test::TempFolder folder;
  const std::string recipe = folder / "recipe";
  std::ofstream(recipe) << "--epochs 90\n--lr-warmup-epochs 5\n--lr 0.5\n--train-dir d\n";
  const char* const name = recipe.c_str();
  const auto sets = [&](const std::string& values) {
    return "; --recipe " + recipe + " sets " + values +
           ": an option on the command line replaces a value of it";
  };
  CHECK(complaint({"--recipe", name, "--epochs", "3"}) ==
        "--lr-warmup 5: must be at most --epochs 3" + sets("--lr-warmup 5"));
  CHECK(complaint({"--recipe", name, "--lr-warmup-epochs", "91"}) ==
        "--lr-warmup 91: must be at most --epochs 90" + sets("--epochs 90"));
  CHECK(complaint({"--recipe", name, "--epochs", "3", "--lr-warmup-epochs", "3", "--schedule",
                   "cosine", "--lr-min", "1"}) ==
        "--lr-min 1: must be at most --learning-rate 0.5" + sets("--learning-rate 0.5"));
  CHECK(complaint({"--recipe", name, "--epochs", "3", "--lr-warmup-epochs", "4"}) ==
        "--lr-warmup 4: must be at most --epochs 3");
  const Parsed later(test::Words{"--recipe", name});
  CHECK(later.set.explained("--epochs 90: more than there are") ==
        "--epochs 90: more than there are" + sets("--epochs 90"));
  CHECK(later.set.explained("--epochs-of-another 90") == "--epochs-of-another 90");
}

}  // namespace shakedown::training

#include "common/options.hpp"

#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "training/programs/train_options.hpp"

namespace shakedown::training {
namespace {

/// Parses "train ARGUMENTS".
struct Parsed {
  TrainOptions values;
  OptionSet set{"train", "test"};
  std::optional<OptionSet::Ending> ending;

  explicit Parsed(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "train");
    declare_options(set, values);
    ending = set.parse(static_cast<int>(arguments.size()), arguments.data());
  }
};

}  // namespace

TEST_CASE("the spellings that people know are understood", "[options]") {
  const Parsed p({"--batch_size", "32", "--learning_rate=0.5", "--num_workers", "12", "--use_amp",
                  "--train_dir", "data/train_set"});
  REQUIRE_FALSE(p.ending);
  CHECK(p.values.batch_size == 32);
  CHECK(p.values.optimizer.learning_rate == 0.5);
  CHECK(p.values.data.workers == 12);
  CHECK(p.values.model.precision == "fp16");
  CHECK(p.values.data.train_dir == "data/train_set");  // values keep their underscores
  const Parsed q({"--lr", "0.25", "--amp", "--workers", "3", "--data-dir", "d"});
  CHECK(q.values.optimizer.learning_rate == 0.25);
  CHECK(q.values.model.precision == "fp16");
  CHECK(q.values.data.workers == 3);
  CHECK(q.values.data.train_dir == "d");
}

TEST_CASE("defaults are the design's", "[options]") {
  const Parsed p({});
  REQUIRE_FALSE(p.ending);
  CHECK(p.values.batch_size == 64);
  CHECK(p.values.iterations == 100);
  CHECK(p.values.warmup == 20);
  CHECK(p.values.model.model == "resnet50");
  CHECK(p.values.strategy.strategy == "ddp");
  CHECK(p.values.strategy.bucket_cap_mb == 25);
  CHECK(p.values.strategy.first_bucket_mb == 1);
  CHECK(p.values.optimizer.learning_rate == 0.1);
  CHECK(p.values.optimizer.momentum == 0.9);
  CHECK(p.values.optimizer.weight_decay == 1e-4);
  CHECK(p.values.data.workers == 4);
  CHECK(p.values.data.prefetch == 4);
  CHECK(p.values.backend.timeout_s == 300);
  CHECK(p.values.backend.throttle_gbs == 0);
  CHECK_FALSE(p.set.given("--batch-size"));
}

TEST_CASE("switches stand alone, or take on and off", "[options]") {
  CHECK(Parsed({"--nesterov"}).values.optimizer.nesterov);
  CHECK(Parsed({"--nesterov", "--lr", "1"}).values.optimizer.nesterov);
  CHECK(Parsed({"--nesterov", "on"}).values.optimizer.nesterov);
  CHECK_FALSE(Parsed({"--autotune", "off"}).values.model.autotune);
  CHECK(Parsed({"--autotune"}).values.model.autotune);
}

TEST_CASE("numbers out of range are refused", "[options]") {
  const auto refused = [](const char* option, const char* value) {
    const Parsed p({option, value, "--train-dir", "d"});
    return p.ending && p.ending->code == ExitCode::usage &&
           p.ending->text.find(option) != std::string::npos &&
           p.ending->text.find(value) != std::string::npos;
  };
  for (const char* option : {"--learning-rate", "--weight-decay", "--momentum", "--throttle-gbs"})
    for (const char* value : {"inf", "nan", "-1"}) CHECK(refused(option, value));
  CHECK(refused("--momentum", "1"));
  CHECK(refused("--label-smoothing", "1.5"));
  CHECK(refused("--image-size", "1000000"));
  CHECK(refused("--iterations", "2000000000"));
  CHECK(refused("--warmup", "2000000000"));
  CHECK(refused("--prefetch", "1000000000"));
  CHECK(refused("--workers", "5000"));
  CHECK_FALSE(refused("--momentum", "0.99"));
  CHECK_FALSE(refused("--workers", "1024"));
  CHECK_THAT(Parsed({"--prefetch", "1025", "--train-dir", "d"}).ending->text,
             ContainsSubstring("--prefetch: 1025 is not at most 1024"));
}

TEST_CASE("an option that another makes idle is refused, with what it belongs to", "[options]") {
  const auto complaint = [](std::vector<const char*> arguments) {
    const Parsed p(std::move(arguments));
    if (!p.ending) return std::string();
    CHECK(p.ending->code == ExitCode::usage);
    return p.ending->text;
  };
  CHECK(complaint({"--staleness", "2"}) ==
        "train: --staleness: only with --strategy parameter-server-async\n");
  CHECK(complaint({"--staleness", "2", "--strategy", "parameter-server-async"}).empty());
  CHECK(complaint({"--bucket-cap-mb", "4", "--strategy", "zero2"}) ==
        "train: --bucket-cap-mb: only with --strategy ddp, zero1\n");
  CHECK(complaint({"--bucket-cap-mb", "4", "--strategy", "zero1"}).empty());
  for (const char* strategy : {"zero1", "none"})
    CHECK_THAT(complaint({"--grad-dtype", "bf16", "--strategy", strategy}),
               ContainsSubstring("--grad-dtype"));
  CHECK_THAT(complaint({"--no-overlap", "--strategy", "all-reduce"}),
             ContainsSubstring("ddp, zero1, zero2, fsdp"));
  CHECK(complaint({"--no-overlap", "off", "--strategy", "all-reduce"}).empty());  // asks nothing
  CHECK_FALSE(complaint({"--ps-partition-mb", "1"}).empty());
  CHECK_FALSE(complaint({"--momentum", "0.9", "--optimizer", "adam"}).empty());
  CHECK_FALSE(complaint({"--nesterov", "--optimizer", "adamw"}).empty());
  CHECK(complaint({"--schedule", "cosine"}) == "train: --schedule: only with --epochs\n");
  CHECK(complaint({"--workers", "2"}) == "train: --workers: only with --train-dir or --val-dir\n");
  CHECK(complaint({"--workers", "2", "--train-dir", "d"}).empty());
  CHECK_FALSE(complaint({"--val-dir", "d"}).empty());
  CHECK_FALSE(complaint({"--max-batch-limit", "8"}).empty());
  CHECK(complaint({"--staleness", "2", "--workers", "2", "--ignore-idle"}).empty());
}

TEST_CASE("options that contradict one another are refused", "[options]") {
  const auto complaint = [](std::vector<const char*> arguments) {
    const Parsed p(std::move(arguments));
    return p.ending ? p.ending->text : std::string();
  };
  CHECK(complaint({"--global-batch", "8", "--batch-size", "4"}) ==
        "train: --global-batch determines the batch per rank: not with --batch-size\n");
  CHECK_FALSE(complaint({"--global-batch", "8", "--batch-size", "4", "--ignore-idle"}).empty());
  for (const char* option : {"--iterations", "--warmup"})
    CHECK_THAT(complaint({option, "4", "--epochs", "1"}),
               ContainsSubstring(option) && ContainsSubstring("not with --epochs"));
  CHECK_FALSE(complaint({"--certificate", "--epochs", "1"}).empty());
  CHECK(complaint({"--certificate", "off", "--epochs", "1"}).empty());
  for (const char* option : {"--layers", "--kernels"}) {
    CHECK_THAT(complaint({option, "--epochs", "1"}),
               ContainsSubstring(option) && ContainsSubstring("--epochs"));
    CHECK_FALSE(complaint({option, "--save", "w.safetensors"}).empty());
    CHECK_FALSE(complaint({option, "--trace", "t.json"}).empty());
    CHECK_FALSE(complaint({option, "--max-batch"}).empty());
  }
  for (const char* option : {"--epochs", "--batch-size", "--global-batch"})
    CHECK_THAT(complaint({"--max-batch", option, "4"}),
               ContainsSubstring("--max-batch") && ContainsSubstring(option));
  CHECK_FALSE(complaint({"--autotune", "--deterministic"}).empty());
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
  CHECK(Parsed({"--model", "tiny"}).values.model.model == "tiny");
  CHECK_FALSE(Parsed({"--model", "tiny"}).ending);
  CHECK(Parsed({"--help"}).ending->text.find("tiny") == std::string::npos);
}

TEST_CASE("what comes last counts, so that a script's options can be overridden", "[options]") {
  const Parsed p({"--epochs", "15", "--autotune", "--precision", "fp16", "--epochs", "2",
                  "--autotune", "off", "--precision", "bf16"});
  REQUIRE_FALSE(p.ending);
  CHECK(p.values.epochs == 2);
  CHECK_FALSE(p.values.model.autotune);
  CHECK(p.values.model.precision == "bf16");
}

TEST_CASE("sizes are in binary units", "[options]") {
  CHECK(parse_bytes("-b", "8") == 8);
  CHECK(parse_bytes("-b", "1.5k") == 1536);
  CHECK(parse_bytes("-b", "2MiB") == std::size_t{2} << 20);
  CHECK(parse_bytes("-b", "100T") == std::size_t{100} << 40);
  CHECK_THROWS_WITH(parse_bytes("-b", "1P"),
                    ContainsSubstring("-b 1P") && ContainsSubstring("K, M, G, T"));
}

TEST_CASE("an option is suggested where a slip or two lead to it", "[options]") {
  const auto suggests = [](const char* argument) {
    return Parsed({argument}).ending->text.find("did you mean") != std::string::npos;
  };
  CHECK(suggests("--epoch"));
  CHECK(suggests("--bach-sice"));
  CHECK(suggests("--learnin-rat=3"));
  CHECK_FALSE(suggests("--bogus"));
  CHECK_FALSE(suggests("--sed-data"));
  CHECK_FALSE(suggests("-q"));
}

TEST_CASE("a usage error names the option", "[options]") {
  const auto message = [](std::vector<const char*> arguments) {
    const Parsed p(std::move(arguments));
    REQUIRE(p.ending);
    CHECK(p.ending->code == ExitCode::usage);
    return p.ending->text;
  };
  CHECK_THAT(message({"--bach-size", "3"}),
             ContainsSubstring("--bach-size") && ContainsSubstring("did you mean --batch-size?"));
  CHECK_THAT(message({"--batch-size", "many"}), ContainsSubstring("--batch-size"));
  CHECK_THAT(message({"--batch-size", "0"}),
             ContainsSubstring("--batch-size") && ContainsSubstring("not at least 1"));
  CHECK_THAT(message({"--throttle-gbs", "-1"}),
             ContainsSubstring("--throttle-gbs") && ContainsSubstring("not at least 0"));
  CHECK_THAT(message({"--precision", "fp8"}), ContainsSubstring("--precision"));
  CHECK_THAT(message({"--iterations"}), ContainsSubstring("--iterations"));
  CHECK_THAT(message({"stray"}), ContainsSubstring("stray"));
}

TEST_CASE("files are looked for apart from parsing, which another rank's host may lack",
          "[options]") {
  const Parsed absent({"--weights", "/no/such/file"});
  CHECK_FALSE(absent.ending);
  CHECK(absent.set.missing_file() == "--weights /no/such/file: No such file or directory");
  CHECK(Parsed({"--weights", "/"}).set.missing_file() == "--weights /: Is a directory");
  CHECK(Parsed({"--weights", "/proc/version"}).set.missing_file().empty());
  CHECK(Parsed({}).set.missing_file().empty());
}

TEST_CASE("help, table and record list every option", "[options]") {
  const Parsed help({"--help"});
  REQUIRE(help.ending);
  CHECK(help.ending->code == ExitCode::pass);
  const Parsed p({"--batch-size", "7"});
  const std::string table = p.set.markdown();
  for (const OptionValue& option : p.set.values()) {
    if (option.name.rfind("inject_", 0) == 0) continue;  // hidden: a fault for tests
    std::string name = "--" + option.name;
    std::replace(name.begin(), name.end(), '_', '-');
    CHECK_THAT(help.ending->text, ContainsSubstring(name));
    CHECK_THAT(table, ContainsSubstring("`" + name + "`"));
    if (option.name == "batch_size") CHECK(std::get<int>(option.value) == 7);
  }
  CHECK(p.set.values().size() > 30);
}

}  // namespace shakedown::training

// MLPerf's log lines. MLCommons' compliance checker itself (training 4.0.0) accepted both logs that
// are written here.
#include "training/programs/mllog.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/catch.hpp"

namespace shakedown::training {
namespace {

struct File {
  ~File() { std::filesystem::remove(path); }
  std::string path = "mllog_test.txt";
};

struct Line {
  std::string key;
  Json value, metadata;
  std::int64_t time_ms = 0;
};

std::vector<Line> read(const std::string& path) {
  std::vector<Line> lines;
  std::ifstream in(path);
  for (std::string text; std::getline(in, text);) {
    REQUIRE(text.starts_with(":::MLLOG {"));
    const Json json = Json::parse(text.substr(9));
    lines.push_back({json.at("key"), json.at("value"), json.at("metadata"), json.at("time_ms")});
  }
  return lines;
}

MlLogFacts benchmark(const std::string& optimizer) {
  MlLogFacts facts;
  facts.model = "resnet50";
  facts.platform = "8 x NVIDIA H200";
  facts.train_images = 1281167;
  facts.val_images = 50000;
  facts.image_size = 224;
  facts.classes = 1000;
  facts.batch_size = 408;
  facts.ranks = 8;
  facts.optimizer.optimizer = optimizer;
  facts.optimizer.learning_rate = 10.5;
  facts.optimizer.weight_decay = 5e-5;
  facts.warmup_epochs = 2;
  facts.end_learning_rate = 1e-4;
  facts.poly_power = 2;
  facts.decay_steps = 13739;
  return facts;
}

EpochResult epoch(int number, double top1) {
  EpochResult result;
  result.epoch = number;
  result.trained = TrainedEpoch{.seconds = 1};
  result.validated = Validation{.top1 = top1};
  result.seconds = 1.5;
  return result;
}

std::map<std::string, int> counts(const std::vector<Line>& lines) {
  std::map<std::string, int> counts;
  for (const Line& line : lines) ++counts[line.key];
  return counts;
}

}  // namespace

TEST_CASE("mllog: a run that reaches the target has the closed division's keys", "[mllog]") {
  const std::string optimizer = GENERATE("lars", "sgd");
  const File file;
  {
    MlLogOptions options{file.path};
    options.started -= std::chrono::minutes(2);
    MlLog log(options, false);
    log.begin(benchmark(optimizer));
    log.add(epoch(1, 0.5));
    log.add(epoch(2, 0.7591));
    log.add(epoch(3, 0.77));  // the benchmark has ended
  }
  const std::vector<Line> lines = read(file.path);
  auto count = counts(lines);
  for (const char* key : {"submission_benchmark", "submission_division", "submission_org",
                          "submission_status", "submission_platform", "cache_clear", "init_start",
                          "init_stop", "run_start", "run_stop", "train_samples", "eval_samples",
                          "gradient_accumulation_steps", "global_batch_size", "opt_name"}) {
    CAPTURE(key);
    CHECK(count[key] == 1);
  }
  for (const char* key : {"base_learning_rate", "end_learning_rate", "weight_decay", "momentum",
                          "learning_rate_decay_poly_power", "learning_rate_decay_steps"})
    CHECK(count[optimizer + "_opt_" + key] == 1);
  if (optimizer == "lars") {
    CHECK(count["lars_epsilon"] == 1);
    CHECK(count["lars_opt_learning_rate_warmup_epochs"] == 1);
  } else {
    CHECK(count["opt_learning_rate_warmup_epochs"] == 1);
    CHECK(count["model_bn_span"] == 1);
  }
  CHECK(count["eval_accuracy"] == 2);
  CHECK(lines.back().key == "run_stop");
  CHECK(lines.back().metadata.at("status") == "success");
  for (const Line& line : lines) {
    if (line.key == "submission_division") CHECK(line.value == "closed");
    if (line.key == "global_batch_size") CHECK(line.value == 3264);
    if (line.key == "eval_accuracy") CHECK(line.metadata.contains("epoch_num"));
  }
  const auto at = [&](const std::string& key) {
    return std::find_if(lines.begin(), lines.end(), [&](auto& l) { return l.key == key; })->time_ms;
  };
  CHECK(at("init_stop") - at("init_start") >= 120000);  // the program's start
  CHECK(at("epoch_stop") - at("epoch_start") == 1000);
  CHECK(at("eval_stop") - at("eval_start") == 500);
}

TEST_CASE("mllog: another network, data or schedule is of the open division", "[mllog]") {
  CHECK(division_of(benchmark("sgd")) == std::string("closed"));
  const auto is_open = [](auto change) {
    MlLogFacts facts = benchmark("sgd");
    change(facts);
    return division_of(facts) == std::string("open");
  };
  CHECK(is_open([](auto& f) { f.model = "resnet18"; }));
  CHECK(is_open([](auto& f) { f.train_images = 1000; }));
  CHECK(is_open([](auto& f) { f.poly_power.reset(); }));
  CHECK(is_open([](auto& f) { f.optimizer.optimizer = "adam"; }));
}

TEST_CASE("mllog: a run that does not reach the target ends as aborted", "[mllog]") {
  const File file;
  {
    MlLog log({file.path}, false);
    log.begin(benchmark("lars"));
    log.add(epoch(1, 0.7589));
  }
  const std::vector<Line> lines = read(file.path);
  CHECK(lines.back().key == "run_stop");
  CHECK(lines.back().metadata.at("status") == "aborted");
  CHECK(counts(lines)["run_stop"] == 1);
}

TEST_CASE("mllog: a training that continues has one log of one run", "[mllog]") {
  const File file;
  const auto train = [&](int from, const std::vector<EpochResult>& epochs) {
    MlLog log({file.path}, from > 1);
    log.begin(benchmark("lars"));
    log.continue_at(from);
    for (const EpochResult& one : epochs) log.add(one);
  };
  train(1, {epoch(1, 0.5), epoch(2, 0.6), epoch(3, 0.61)});
  std::ofstream(file.path, std::ios::app) << ":::MLLOG {\"key\": \"eval_st";  // killed
  train(4, {});  // a signal in its first epoch
  CHECK(counts(read(file.path))["block_start"] == 3);
  train(3, {});  // from an older checkpoint, and stopped before it has validated
  CHECK(counts(read(file.path))["block_start"] == 2);
  CHECK(read(file.path).back().metadata.at("epoch_num") == 2);
  train(3, {epoch(3, 0.62), epoch(4, 0.7591)});
  train(4, {epoch(4, 0.75), epoch(5, 0.76)});  // the benchmark has ended
  const std::vector<Line> lines = read(file.path);
  auto count = counts(lines);
  for (const char* key : {"init_start", "init_stop", "run_start", "run_stop", "global_batch_size"})
    CHECK(count[key] == 1);
  CHECK(lines.back().metadata.at("status") == "success");
  std::vector<double> accuracies;
  for (const Line& line : lines)
    if (line.key == "eval_accuracy") accuracies.push_back(line.value);
  CHECK(accuracies == std::vector<double>{0.5, 0.6, 0.62, 0.7591});
  CHECK(count["block_start"] == 4);

  std::ofstream(file.path) << "notes";
  CHECK_THROWS_WITH(MlLog({file.path}, true), ContainsSubstring("--mllog " + file.path) &&
                                                  ContainsSubstring("--resume none"));
  std::string kept;
  std::getline(std::ifstream(file.path), kept);
  CHECK(kept == "notes");
}

}  // namespace shakedown::training

// Records of a training, and what a weights file says of its network.
#include "training/measure/records.hpp"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "common/nvml.hpp"
#include "common/options.hpp"
#include "common/text_table.hpp"
#include "common/usage_error.hpp"
#include "tests/catch.hpp"
#include "tests/support/files.hpp"
#include "tests/support/options.hpp"
#include "training/data/source.hpp"
#include "training/measure/throughput.hpp"
#include "training/programs/compare_options.hpp"
#include "training/programs/epochs.hpp"
#include "training/programs/train_options.hpp"
#include "training/programs/training_data.hpp"

namespace shakedown::training {
namespace {

std::vector<std::string> keys_of(const Json& record) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : record.items()) keys.push_back(key);
  return keys;
}
using Keys = std::vector<std::string>;

Throughput on_gpus() {
  Throughput measured;
  measured.peak_memory_bytes = {1e9, 2e9};
  measured.process_memory_bytes = {3e9, kUnknown};
  measured.sent.counted = {100, 101};
  measured.sent.measured = {kUnknown, kUnknown};
  measured.health = GpuHealth{
      {1980, 1980}, {650, 640}, {50, 51}, {1e9, 1e9}, {kUnknownText, "sw_power_cap"}, 0.25};
  return measured;
}

/// A file without tensors.
struct SavedFile {
  explicit SavedFile(const Metadata& metadata) {
    write_safetensors({"--save", path}, {}, metadata);
  }
  const test::TempFolder folder;
  const std::string path = folder / "w.safetensors";
};

/// No images, of these classes.
FolderSource images_of(std::vector<std::string> classes) {
  return FolderSource({"val", std::move(classes), {}, {}});
}

TrainOptions taken(const SavedFile& file, const test::Words& words) {
  test::ParsedAs<TrainOptions> p(words + test::Words{"--weights", file.path});
  REQUIRE_FALSE(p.ending);
  take_saved_model(p.set, p.values.model);
  return p.values;
}

}  // namespace

TEST_CASE("an identity names what is known, and buckets where there are any", "[records]") {
  Identity identity;
  identity.strategy = "none";
  const Keys always{"backend",    "model",      "image_size", "classes",   "precision",
                    "accumulate", "world_size", "strategy",   "optimizer", "data"};
  CHECK(keys_of(record_of(identity)) == always);
  identity.strategy = "ddp";
  identity.batch_size = 4;
  identity.throttle_gbs = 1;
  identity.setting = "no-overlap";
  const Json record = record_of(identity);
  CHECK(record.at("batch_size") == 4);
  CHECK(keys_of(record).back() == "setting");
  CHECK(record.contains("bucket_cap_mb"));
  CHECK(record.contains("throttle_gbs"));
}

TEST_CASE("what is unknown of a GPU is null in the record, and not zero", "[records]") {
  const Json record = record_of(on_gpus());
  CHECK(record.at("throttle_reasons") == Json{nullptr, "sw_power_cap"});
  CHECK(record.at("images_per_s_low").is_null());
  CHECK(record.at("bytes_per_step_measured").dump() == "[null,null]");  // counted, by a formula
  CHECK(record.at("bytes_per_step_counted") == Json{100.0, 101.0});
  CHECK_THAT(summary_of(on_gpus()), ContainsSubstring("on rank 0, 1.863 GiB on the others"));
  Throughput host = on_gpus();
  host.health.reset();
  CHECK_FALSE(record_of(host).contains("power_w"));
}

TEST_CASE("the terms that are printed of a step add up to it", "[records]") {
  Breakdown step;
  step.step_ms = 10;
  step.compute_ms = 6;
  step.optimizer_ms = 5;
  CHECK_THAT(summary_of(step), ContainsSubstring("10.00 ms traced: 6.00 forward and backward") &&
                                   ContainsSubstring("5.00 optimizer, -1.00 residual;"));
}

TEST_CASE("an epoch's record has what it did", "[records]") {
  EpochResult result;
  result.validated = Validation{2.0, 0.5, 0.9, 24, 1};
  CHECK(keys_of(record_of(result)) ==
        Keys{"epoch", "val_loss", "val_top1", "val_top5", "validated_images", "validating_rank"});
  result.validated->rank.reset();  // the average of all ranks' statistics
  CHECK_FALSE(record_of(result).contains("validating_rank"));
  result.trained.emplace().images_dropped = 3;
  CHECK(keys_of(record_of(result)).at(1) == "train_loss");
  CHECK(record_of(result)["images_dropped"] == 3);
}

TEST_CASE("a line is folded for a terminal alone: scripts match whole lines", "[text]") {
  const std::string line = std::string(79, 'a') + " b c";
  {
    const test::Variable terminal("SHAKEDOWN_TERMINAL", "1");  // launch/mpi's standard output
    CHECK(labelled("step", line).find('\n') < line.size());
  }
  if (isatty(STDOUT_FILENO) == 0) CHECK(labelled("step", line) == "step      " + line + "\n");
}

TEST_CASE("a paragraph is wrapped at blanks, and a long word is left whole", "[text]") {
  CHECK(wrapped("short", 0, 80) == "short");
  const std::string path(90, 'x');
  CHECK(wrapped("a " + path + " b", 2, 80) == "a\n  " + path + "\n  b");
  const std::string words = wrapped(std::string(79, 'a') + " b c", 4, 80);
  CHECK(words == std::string(79, 'a') + "\n    b c");
  CHECK(wrapped(std::string(76, 'a') + " 94 % b", 2, 80) == std::string(76, 'a') + "\n  94 % b");
  CHECK(labelled("step", "1 ms") == "step      1 ms\n");
}

// What a weights file says of its network.

TEST_CASE("a weights file names its model, image size and classes", "[saved_model]") {
  const SavedModel model{"resnet34", 96, {"cat", "dog, \"small\"", "\xff"}};
  const SavedFile file(metadata_of(model));
  const SavedModel read = saved_model_of(read_safetensors_metadata(file.path), file.path);
  CHECK(read.model == "resnet34");
  CHECK(read.image_size == 96);
  CHECK(read.classes[1] == model.classes[1]);
  check_classes(read, file.path, images_of(model.classes), true);  // even what is not UTF-8
  CHECK(saved_model_of({{"format", "pt"}}, "f").model.empty());
  CHECK_THROWS_WITH(saved_model_of({{"shakedown", "[1"}}, "f.safetensors"),
                    ContainsSubstring("f.safetensors"));
}

TEST_CASE("options that are not given are the weights file's", "[saved_model]") {
  const SavedFile file(metadata_of({"resnet34", 96, {}}));
  CHECK(taken(file, "").model.model == "resnet34");
  CHECK(taken(file, "").model.image_size == 96);
  CHECK(taken(file, "--image-size 128 --model resnet34").model.image_size == 128);
  CHECK_THROWS_WITH(taken(file, "--model resnet18"),
                    ContainsSubstring("--model resnet18") && ContainsSubstring("holds a resnet34"));
  test::ParsedAs<CompareOptions> compare(
      test::Words("--model resnet34") + test::Words{"--weights", file.path}, "compare");
  take_saved_model(compare.set, compare.values);
  CHECK(compare.values.train.model.image_size == 96);
  const SavedFile huge(metadata_of({"resnet34", 1 << 20, {}}));
  CHECK(taken(huge, "--image-size 64").model.image_size == 64);
  CHECK_THROWS_WITH(taken(huge, ""),
                    ContainsSubstring("image size 1048576") && ContainsSubstring("32 to 8192"));
  const SavedFile foreign(Metadata{});
  CHECK(taken(foreign, "").model.model == TrainOptions().model.model);
  CHECK(taken(foreign, "--model resnet18").model.model == "resnet18");
}

TEST_CASE("weights of other classes are refused", "[saved_model]") {
  const SavedModel saved{"resnet18", 32, {"cat", "dog", "owl"}};
  const auto check = [&](std::vector<std::string> classes, bool evaluates) {
    check_classes(saved, "w.safetensors", images_of(std::move(classes)), evaluates);
  };
  CHECK_NOTHROW(check({"cat", "dog", "owl"}, true));
  CHECK_THROWS_WITH(check({"dog", "owl", "zebra"}, true),
                    ContainsSubstring("w.safetensors") && ContainsSubstring("not in val: cat") &&
                        ContainsSubstring("not in w.safetensors: zebra"));
  CHECK_THROWS_AS(check({"dog", "owl", "zebra"}, false), UsageError);
  CHECK_THROWS_AS(check({"cat", "dog"}, true), UsageError);
  CHECK_NOTHROW(check({"cat", "dog"}, false));  // a classifier of its own
  CHECK_THROWS_WITH(check({"owl", "dog", "cat"}, true), ContainsSubstring("another order"));
  CHECK_NOTHROW(check_classes({}, "w.safetensors", images_of({"a"}), true));
}

}  // namespace shakedown::training

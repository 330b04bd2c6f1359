// What a weights file says of its network.
#include "training/programs/training_data.hpp"

#include <filesystem>

#include "common/error.hpp"
#include "common/options.hpp"
#include "tests/catch.hpp"
#include "training/data/source.hpp"
#include "training/programs/train_options.hpp"

namespace shakedown::training {
namespace {

/// A file without tensors.
struct SavedFile {
  explicit SavedFile(const Metadata& metadata) {
    write_safetensors({"--save", path}, {}, metadata);
  }
  ~SavedFile() { std::filesystem::remove(path); }
  SavedFile(const SavedFile&) = delete;
  SavedFile& operator=(const SavedFile&) = delete;
  const std::string path =
      (std::filesystem::temp_directory_path() / "shakedown_saved_model.safetensors").string();
};

/// No images, of these classes.
FolderSource images_of(std::vector<std::string> classes) {
  return FolderSource({"val", std::move(classes), {}, {}});
}

TrainOptions taken(const SavedFile& file, std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "train");
  arguments.insert(arguments.end(), {"--weights", file.path.c_str()});
  TrainOptions options;
  OptionSet set("train", "test");
  declare_options(set, options);
  REQUIRE_FALSE(set.parse(static_cast<int>(arguments.size()), arguments.data()));
  take_saved_model(set, options.model);
  return options;
}

}  // namespace

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
  CHECK(taken(file, {}).model.model == "resnet34");
  CHECK(taken(file, {}).model.image_size == 96);
  CHECK(taken(file, {"--image-size", "128", "--model", "resnet34"}).model.image_size == 128);
  CHECK_THROWS_WITH(taken(file, {"--model", "resnet18"}),
                    ContainsSubstring("--model resnet18") && ContainsSubstring("holds a resnet34"));
  const SavedFile foreign(Metadata{});
  CHECK(taken(foreign, {}).model.model == TrainOptions().model.model);
  CHECK(taken(foreign, {"--model", "resnet18"}).model.model == "resnet18");
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

#include "training/programs/saved_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/error.hpp"
#include "common/options.hpp"
#include "common/record.hpp"
#include "resnet/model_options.hpp"
#include "training/data/image_source.hpp"

namespace shakedown::training {
namespace {

constexpr const char* kKey = "shakedown";

std::vector<std::string> sorted(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

Metadata metadata_of(const SavedModel& saved) {
  const Json json{
      {"model", saved.model}, {"image_size", saved.image_size}, {"classes", saved.classes}};
  // a folder's name need not be UTF-8
  return {{kKey, json_text(json)}};
}

SavedModel saved_model_of(const Metadata& metadata, const std::string& file) {
  const auto found = metadata.find(kKey);
  if (found == metadata.end()) return {};
  try {
    const Json json = Json::parse(found->second);
    return {json.at("model"), json.at("image_size"), json.at("classes")};
  } catch (const Json::exception&) {
    throw UsageError(fmt::format("{}: its metadata \"{}\" is not understood", file, kKey));
  }
}

void take_saved_model(const OptionSet& set, ModelOptions& options) {
  const std::string& file = options.weights;
  if (file.empty()) return;
  const SavedModel saved =
      named_by("--weights", [&] { return saved_model_of(read_safetensors_metadata(file), file); });
  if (saved.model.empty()) return;
  if (set.given("--model") && options.model != saved.model)
    throw UsageError(
        fmt::format("--model {}: --weights {} holds a {}", options.model, file, saved.model));
  options.model = saved.model;
  if (!set.given("--image-size")) options.image_size = saved.image_size;
}

void check_classes(const SavedModel& saved, const std::string& file, const ImageSource& images,
                   bool evaluates) {
  const auto own = saved_model_of(metadata_of({"", 0, images.classes()}), file).classes;
  if (saved.classes.empty() || saved.classes == own) return;
  if (!evaluates && saved.classes.size() != own.size()) return;
  const std::string different = names_missing(sorted(saved.classes), sorted(own), images.root()) +
                                names_missing(sorted(own), sorted(saved.classes), file);
  throw UsageError(fmt::format("--weights {}: trained on other classes than those of {}{}", file,
                               images.root(),
                               different.empty() ? "; in another order" : different));
}

}  // namespace shakedown::training

#include "training/programs/recipes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "common/error.hpp"
#include "common/options.hpp"

namespace shakedown::training {
namespace {

constexpr const char* kSuffix = ".recipe";

/// Next to the folder of the program, in the tree as when installed.
std::filesystem::path folder() {
  std::error_code none;
  return std::filesystem::read_symlink("/proc/self/exe", none).parent_path().parent_path() /
         "training/recipes";
}

std::vector<std::string> names() {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder(), none))
    if (entry.path().extension() == kSuffix) names.push_back(entry.path().stem());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

Recipe parse_recipe(const std::string& name, const std::string& text) {
  Recipe recipe{name, "", {}};
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) {
      recipe.remarks += "  " + line.substr(line.starts_with("# ") ? 2 : 1) + "\n";
      continue;
    }
    std::istringstream words(line);
    for (std::string word; words >> word;) recipe.arguments.push_back(word);
  }
  return recipe;
}

Recipe find_recipe(const std::string& name_or_file) {
  const std::filesystem::path named = folder() / (name_or_file + kSuffix);
  std::error_code none;
  const bool known = std::filesystem::is_regular_file(named, none);
  std::ifstream file(known ? named : std::filesystem::path(name_or_file));
  std::ostringstream text;
  if (!file)
    throw UsageError(fmt::format("--recipe {}: must be a file, or one of {}", name_or_file,
                                 fmt::join(names(), ", ")));
  if (!(text << file.rdbuf()))
    throw UsageError(
        fmt::format("--recipe {}: is {}", name_or_file,
                    std::filesystem::is_directory(name_or_file, none) ? "a folder" : "empty"));
  return parse_recipe(name_or_file, text.str());
}

std::string list_recipes() {
  std::string text;
  for (const std::string& name : names())
    text += fmt::format("{}{}\n{}", text.empty() ? "" : "\n", name, find_recipe(name).remarks);
  return text;
}

void declare_recipes(OptionSet& options, std::string& recipe) {
  options
      .add("--recipe", recipe,
           "options of a published training as defaults: a name of --list-recipes, or a file with "
           "one option per line")
      .metavar("NAME|FILE")
      .default_text("none");
  options.add_text("--list-recipes",
                   "print the recipes with source and published accuracy, and exit", list_recipes);
  options.add_defaults("--recipe",
                       [](const std::string& name) { return find_recipe(name).arguments; });
}

}  // namespace shakedown::training

// Recipes: named sets of options of published trainings, as files of a few lines.
#pragma once

#include <string>
#include <vector>

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::training {

/// A file has one option with its value a line; lines that start with # are for people.
struct Recipe {
  std::string name;
  std::string remarks;  // the lines that start with #
  std::vector<std::string> arguments;
};
Recipe parse_recipe(const std::string& name, const std::string& text);

/// A recipe by name, or from a file. Throws UsageError, which lists the names.
Recipe find_recipe(const std::string& name_or_file);
/// Every recipe that is installed: its name and remarks.
std::string list_recipes();

/// Declares --recipe, whose options are defaults.
void declare_recipes(OptionSet& options, std::string& recipe);

}  // namespace shakedown::training

// The options as text: help for people, JSON for the tools that make other texts of it.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "common/options.hpp"
#include "common/record.hpp"

namespace shakedown {
namespace {

constexpr std::size_t kWidth = 80;
constexpr std::size_t kIndent = 2;      // of an option's names
constexpr std::size_t kColumn = 27;     // of its help
constexpr std::size_t kMostShown = 30;  // characters of choices in the place of a metavar
constexpr char kNoBreak = '\x1f';       // a space at which no line ends

/// Appends `text`, whose first line continues a line of `at` columns, wrapped, with `indent` spaces
/// before all further lines.
void append_wrapped(std::string& out, const std::string& text, std::size_t at, std::size_t indent) {
  bool starts_line = true;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find_first_of(" \n", begin), text.size());
    const std::size_t length = end - begin;
    if (!starts_line && at + 1 + length > kWidth) {
      out += "\n" + std::string(indent, ' ');
      at = indent;
    } else if (!starts_line) {
      out += ' ';
      ++at;
    }
    out += text.substr(begin, length);
    at += length;
    starts_line = end < text.size() && text[end] == '\n';
    if (starts_line) {
      out += "\n" + std::string(indent, ' ');
      at = indent;
    }
    begin = end + 1;
  }
}

}  // namespace

std::string Option::metavar_shown() const {
  if (!metavar_.empty()) return metavar_;
  if (is_switch()) return "[on|off]";
  if (!choices_.empty() && !is_list()) {
    const std::string choices = fmt::format("{}", fmt::join(choices_, "|"));
    if (choices.size() <= kMostShown) return choices;
  }
  const char* const one = std::visit(
      [](auto* value) -> const char* {
        using T = std::remove_pointer_t<decltype(value)>;
        if constexpr (std::is_same_v<T, int> || std::is_same_v<T, std::vector<int>>) return "N";
        if constexpr (std::is_same_v<T, double> || std::is_same_v<T, std::vector<double>>)
          return "X";
        return "NAME";
      },
      target_);
  return is_list() ? fmt::format("{0},{0},...", one) : one;
}

std::vector<OptionSet::Group> OptionSet::groups() const {
  std::vector<Group> groups;
  const auto put = [&](const std::string& title, Listed listed) {
    listed.hidden = title.empty();
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const Group& known) { return known.title == title; });
    if (group == groups.end()) group = groups.insert(groups.end(), Group{title, {}});
    group->options.push_back(std::move(listed));
  };
  for (const Option& option : options_) {
    std::string limits;
    for (const std::string& condition : conditions(option, false)) limits += "; " + condition;
    if (const auto others = known(option.not_with_); !others.empty())
      limits += fmt::format("; not with {}", fmt::join(others, ", "));
    if (const Option* other = find(option.brings_.option))
      limits += fmt::format("; adds {} to {}", option.brings_.values[0], other->name());
    put(option.group_,
        {option.names_, option.metavar_shown(), option.default_, option.help_, limits,
         option.is_switch() ? std::vector<std::string>{"on", "off"} : option.choices_});
    for (const Alias& alias : aliases_)
      if (option.has_name(alias.option))
        put(alias.group, {alias.names, "", "", fmt::format("{} {}", alias.option, alias.value)});
  }
  for (const Text& text : texts_)
    put(text.help.empty() ? "" : "General", {text.names, "", "", text.help});
  return groups;
}

/// The help, with the choices that it does not name, the conditions and the default.
std::string OptionSet::Listed::text() const {
  std::string text = help;
  const bool are_named = metavar.find('|') != std::string::npos ||
                         std::all_of(choices.begin(), choices.end(), [&](const auto& choice) {
                           return help.find(choice) != std::string::npos;
                         });
  if (!are_named) text += fmt::format(": {}", fmt::join(choices, ", "));
  text += conditions;
  if (default_text.empty() || default_text == "none" || default_text == "off") return text;
  std::string ending = fmt::format("(default: {})", default_text);
  if (ending.size() < kWidth / 3) std::replace(ending.begin(), ending.end(), ' ', kNoBreak);
  return text + (help.find('\n') == std::string::npos ? ' ' : '\n') + ending;
}

void OptionSet::append_help(std::string& out, const Listed& option) {
  std::vector<std::string> names = option.names;
  std::stable_sort(names.begin(), names.end(), [](const auto& a, const auto& b) {
    return a.size() == 2 && b.size() > 2;  // -n before --iterations
  });
  std::string line(kIndent, ' ');
  append_wrapped(line, fmt::format("{} {}", fmt::join(names, ", "), option.metavar), kIndent,
                 2 * kIndent);
  const std::size_t at = line.size() - (line.rfind('\n') + 1);
  out += line;
  out += at + kIndent > kColumn ? "\n" + std::string(kColumn, ' ') : std::string(kColumn - at, ' ');
  append_wrapped(out, option.text(), kColumn, kColumn);
  out += '\n';
}

std::string OptionSet::help() const {
  std::string out = fmt::format("Usage: {} [options]{}{}\n\n", program_,
                                operands_.metavar.empty() ? "" : " ", operands_.metavar);
  append_wrapped(out, summary_, 0, 0);
  out += '\n';
  for (const Group& group : groups()) {
    if (group.title.empty()) continue;
    out += fmt::format("\n{}:\n", group.title);
    for (const Listed& option : group.options) append_help(out, option);
  }
  std::replace(out.begin(), out.end(), kNoBreak, ' ');
  return out;
}

std::string OptionSet::json() const {
  Json document{{"program", program_}, {"summary", summary_}, {"groups", Json::array()}};
  for (const Group& group : groups()) {
    Json options = Json::array();
    for (const Listed& option : group.options)
      options.push_back({{"names", option.names},
                         {"metavar", option.metavar},
                         {"default", option.default_text},
                         {"choices", option.choices},
                         {"help", option.help + option.conditions},
                         {"hidden", option.hidden}});
    document["groups"].push_back({{"title", group.title}, {"options", options}});
  }
  return json_text(document, 1) + "\n";
}

}  // namespace shakedown

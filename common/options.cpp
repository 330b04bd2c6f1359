// Declarations of options, and which options go together.
#include "common/options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/error.hpp"
#include "common/record.hpp"
#include "common/text_table.hpp"

namespace shakedown {
namespace {

std::string show(const OptionTarget& target) {
  return std::visit(
      [](auto* value) -> std::string {
        using T = std::remove_pointer_t<decltype(value)>;
        if constexpr (std::is_same_v<T, bool>)
          return *value ? "on" : "off";
        else if constexpr (std::is_same_v<T, std::string>)
          return value->empty() ? "none" : *value;
        else if constexpr (std::is_arithmetic_v<T>)
          return fmt::format("{}", *value);
        else
          return value->empty() ? "none" : fmt::format("{}", fmt::join(*value, ","));
      },
      target);
}

bool is_among(const std::string& name, const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Whether a text has this name, and not only as the beginning of a longer one.
bool names_option(const std::string& text, const std::string& name) {
  for (auto at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    const char next = at + name.size() < text.size() ? text[at + name.size()] : ' ';
    if (next != '-' && std::isalnum(static_cast<unsigned char>(next)) == 0) return true;
  }
  return false;
}

}  // namespace

Option::Option(std::vector<std::string> names, OptionTarget target, std::string help,
               std::string group)
    : names_(std::move(names)),
      target_(target),
      help_(std::move(help)),
      group_(std::move(group)),
      default_(show(target)) {
  std::visit([&](auto* value) { restore_ = [value, initial = *value] { *value = initial; }; },
             target);
}

bool Option::has_name(const std::string& name) const { return is_among(name, names_); }

bool Option::is_list() const {
  return std::visit(
      [](auto* value) {
        return requires { value->emplace_back(); };
      },
      target_);
}

bool Option::has_one_of(const std::vector<std::string>& own) const {
  return own.empty() || (given_ && is_among(*given_, own));
}

bool Option::is_on() const {
  auto* const* value = std::get_if<bool*>(&target_);
  return given_ && (value == nullptr || **value);
}

void Option::forget() {
  restore_();
  given_.reset();
  spelled_.clear();
  is_default_ = false;
}

std::string Option::as_given() const {
  if (!spelled_.empty()) return spelled_;
  const bool stands_alone = given_ == "" || (is_switch() && is_on());
  return stands_alone ? name() : fmt::format("{} {}", name(), given_.value_or(""));
}

OptionSet::OptionSet(std::string program, std::string summary)
    : program_(std::move(program)), summary_(std::move(summary)) {
  add_text("--help,-h", "print this text and exit", nullptr);
  add_text("--help-json", "", [this] { return json(); });
}

Option& OptionSet::add(const std::string& own_names, OptionTarget target, const std::string& help) {
  std::string names = own_names;
  const void* address = std::visit([](auto* value) -> const void* { return value; }, target);
  if (const auto list = lists_.find(address); list != lists_.end()) {
    names = list->second.names + "," + own_names;
    target = list->second.target;
  }
  return options_.emplace_back(Option::parts_of(names), target, help, group_);
}

void OptionSet::add_alias(const std::string& names, const std::string& option,
                          const std::string& value) {
  aliases_.push_back({Option::parts_of(names), option, value, group_});
}

void OptionSet::refuse(const std::string& names, const std::string& reason) {
  refused_.push_back({Option::parts_of(names), reason});
}

void OptionSet::add_text(const std::string& names, const std::string& help,
                         std::function<std::string()> text) {
  texts_.push_back({Option::parts_of(names), help, std::move(text)});
}

const Option* OptionSet::find(const std::string& name) const {
  for (const Option& option : options_)
    if (option.has_name(name)) return &option;
  return nullptr;
}

bool OptionSet::is_on(const std::string& name) const {
  const Option* found = find(name);
  return found != nullptr && found->is_on();
}

bool OptionSet::given(const std::string& name) const {
  if (const Option* found = find(name)) return found->given_.has_value();
  throw InternalError("no option " + name);
}

std::vector<std::string> OptionSet::known(const std::vector<std::string>& names) const {
  std::vector<std::string> known;
  for (const std::string& name : names)
    if (const Option* option = find(name)) known.push_back(option->name());
  return known;
}

/// The values of an option of texts, with those that other options add.
std::vector<std::string> OptionSet::values_of(const Option& option) const {
  std::vector<std::string> values;
  if (auto* const* list = std::get_if<std::vector<std::string>*>(&option.target_))
    values = **list;
  else
    values = {*std::get<std::string*>(option.target_)};
  for (const Option& other : options_)
    if (other.is_on() && option.has_name(other.brings_.option))
      values.push_back(other.brings_.values[0]);
  return values;
}

std::vector<std::string> OptionSet::conditions(const Option& option, bool only_broken) const {
  std::vector<std::string> texts;
  const auto add = [&](bool holds, const char* relation, const std::string& to,
                       const std::vector<std::string>& own = {}) {
    if (to.empty() || (only_broken && (holds || !option.has_one_of(own)))) return;
    const std::string values =
        own.empty() || only_broken ? "" : fmt::format("{} ", fmt::join(own, ", "));
    texts.push_back(fmt::format("{}{} {}", values, relation, to));
  };
  const auto any_on = [&](const std::vector<std::string>& names) {
    return std::any_of(names.begin(), names.end(), [&](const auto& name) { return is_on(name); });
  };
  for (const Option::Condition& where : option.where_) {
    const Option* other = find(where.option);
    if (other == nullptr) continue;
    const auto used = values_of(*other);
    const bool holds = std::find_first_of(used.begin(), used.end(), where.values.begin(),
                                          where.values.end()) != used.end();
    add(holds, "only with", fmt::format("{} {}", other->name(), fmt::join(where.values, ", ")),
        where.own);
  }
  const auto shown = [&](const std::vector<std::string>& names) {
    return fmt::format("{}", fmt::join(known(names), " or "));
  };
  add(any_on(option.with_), "only with", shown(option.with_), option.with_of_);
  add(!any_on(option.idle_with_), "has no effect with", shown(option.idle_with_));
  if (only_broken)
    for (const std::string& other : made_idle_by(option))
      texts.push_back("has no effect with " + other);
  return texts;
}

bool OptionSet::contradict(const Option& a, const Option& b) const {
  return is_among(a.name(), known(b.not_with_)) || is_among(b.name(), known(a.not_with_));
}

std::vector<std::string> OptionSet::made_idle_by(const Option& option) const {
  std::vector<std::string> names;
  for (const Option& other : options_)
    if (&other != &option && other.is_on() && !other.uses_only_.empty() &&
        !is_among(option.name(), known(other.uses_only_)) && !contradict(option, other))
      names.push_back(other.name());
  return names;
}

void OptionSet::check_conditions(bool ignore_idle) const {
  for (const Option& option : options_) {
    if (!option.is_on()) continue;
    for (const std::string& other : known(option.not_with_))
      if (is_on(other))
        throw UsageError(fmt::format("{} cannot be combined with {}", option.as_given(), other));
    if (ignore_idle || option.is_default_) continue;
    for (const std::string& broken : conditions(option, true))
      throw UsageError(fmt::format("{}: {}", option.as_given(), broken));
  }
  for (const auto& check : checks_) check();
}

bool OptionSet::contradicted(const Option& option) const {
  const auto on_command_line = [&](const Option& other) {
    return other.is_on() && !other.is_default_;
  };
  return std::any_of(options_.begin(), options_.end(), [&](const Option& other) {
    return contradict(option, other) && on_command_line(other);
  });
}

std::string OptionSet::explained(const std::string& error) const {
  std::vector<std::string> named;
  for (const Option& option : options_)
    if (option.is_default_ &&
        (names_option(error, option.name()) || error.starts_with(option.as_given())))
      named.push_back(option.as_given());
  if (named.empty()) return error;
  return fmt::format("{}; {} sets {}: an option on the command line replaces a value of it", error,
                     find(defaults_->option)->as_given(), fmt::join(named, ", "));
}

std::string OptionSet::missing_file() const {
  for (const Option& option : options_) {
    if (!option.is_existing_file_) continue;
    const std::string& path = *std::get<std::string*>(option.target_);
    if (path.empty()) continue;
    std::error_code ignored;
    const bool is_folder = !option.may_be_folder_ && std::filesystem::is_directory(path, ignored);
    if (is_folder || access(path.c_str(), R_OK) != 0) {
      const int why = is_folder ? EISDIR : errno;
      const bool help = why == ENOENT && !option.source_.empty();
      return fmt::format("{} {}: {}{}{}", option.name(), path, std::strerror(why), help ? "; " : "",
                         help ? option.source_ : "");
    }
  }
  return "";
}

std::vector<OptionValue> OptionSet::values() const {
  std::vector<OptionValue> values;
  for (const Option& option : options_) {
    std::string name = option.name().substr(2);
    std::replace(name.begin(), name.end(), '-', '_');
    std::visit([&](auto* value) { values.push_back({name, *value}); }, option.target_);
  }
  return values;
}

// The options as text: help for people, JSON for the tools that make other texts of it.

namespace {

constexpr std::size_t kWidth = kTextWidth;
constexpr std::size_t kIndent = 2;      // of an option's names
constexpr std::size_t kColumn = 27;     // of its help
constexpr std::size_t kMostShown = 30;  // characters of choices in the place of a metavar

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
    for (const Alias& alias : aliases_)
      if (option.has_name(alias.option))
        limits += fmt::format("; {}: {}", fmt::join(alias.names, ", "), alias.value);
    put(option.group_,
        {option.names_, option.metavar_shown(), option.default_, option.help_, limits,
         option.is_switch() ? std::vector<std::string>{"on", "off"} : option.choices_, false,
         option.is_first_});
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

namespace {

/// "fault-detection" of "Fault detection".
std::string topic_of(std::string title) {
  for (char& c : title) c = c == ' ' ? '-' : static_cast<char>(std::tolower(c));
  return title;
}

}  // namespace

std::string OptionSet::help_of_all() const {
  std::string out;
  for (const Group& group : groups()) {
    if (group.title.empty()) continue;
    out += fmt::format("\n{}:\n", group.title);
    for (const Listed& option : group.options) append_help(out, option);
  }
  return out;
}

std::string OptionSet::first_help() const {
  std::string out = "\nOptions of a first run:\n";
  for (const Group& group : groups())
    for (Listed option : group.options) {
      if (!option.is_first) continue;
      option.help = option.help.substr(0, option.help.find_first_of(";\n"));
      option.conditions.clear();
      append_help(out, option);
    }
  return out + "\nMore, by --help GROUP (--help all prints everything):\n" + topic_lines();
}

std::string OptionSet::topic_lines() const {
  std::string out;
  for (const Group& group : groups()) {
    if (group.title.empty()) continue;
    std::string line = fmt::format("{:{}}{:<12} ", "", kIndent, topic_of(group.title));
    std::string names;
    for (const Listed& option : group.options)
      names += (names.empty() ? "" : " ") + option.names.front().substr(2);
    constexpr std::size_t kNames = kWidth - kIndent - 13;
    if (names.size() > kNames) names = names.substr(0, names.rfind(' ', kNames - 4)) + " ...";
    out += line + names + "\n";
  }
  for (const Text& topic : topics_)
    out += fmt::format("{:{}}{:<12} {}\n", "", kIndent, topic.names.front(), topic.help);
  return out;
}

std::string OptionSet::help(const std::string& topic) const {
  std::string out = usage_.empty()
                        ? fmt::format("Usage: {} [options]{}{}\n", program_,
                                      operands_.metavar.empty() ? "" : " ", operands_.metavar)
                        : usage_;
  const auto begins = [&](const std::string& title) {
    return !title.empty() && topic_of(title).starts_with(topic);
  };
  if (topic.empty() || topic == "all") {
    out += '\n';
    append_wrapped(out, summary_, 0, 0);
    out += '\n';
    out += topic.empty() && !usage_.empty() ? first_help() : help_of_all();
  } else {
    out.clear();
    for (const Text& text : topics_)
      if (begins(text.names.front())) return text.print();
    for (const Group& group : groups()) {
      if (!out.empty() || !begins(group.title)) continue;
      out = group.title + ":\n";
      for (const Listed& option : group.options) append_help(out, option);
    }
    if (out.empty())
      throw UsageError(fmt::format("--help {}: must be all or one of\n{}", topic, topic_lines()));
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

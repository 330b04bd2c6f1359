#include "common/options.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

namespace shakedown {
namespace {

std::string first_name(const std::string& names) { return names.substr(0, names.find(',')); }

std::string show(const OptionTarget& target) {
  return std::visit(
      [](auto* value) -> std::string {
        using T = std::remove_pointer_t<decltype(value)>;
        if constexpr (std::is_same_v<T, bool>)
          return *value ? "on" : "off";
        else if constexpr (std::is_same_v<T, std::string>)
          return value->empty() ? "none" : *value;
        else if constexpr (std::is_same_v<T, int> || std::is_same_v<T, double>)
          return fmt::format("{}", *value);
        else
          return value->empty() ? "none" : fmt::format("{}", fmt::join(*value, ","));
      },
      target);
}

const void* address_of(const OptionTarget& target) {
  return std::visit([](auto* value) -> const void* { return value; }, target);
}

/// Levenshtein's edit distance, to suggest the option that was meant.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

/// "--batch_size=3" -> "--batch-size=3"; values are left alone.
std::string with_hyphens(std::string argument) {
  if (argument.rfind("--", 0) != 0) return argument;
  const auto end =
      argument.begin() + static_cast<std::ptrdiff_t>(std::min(argument.find('='), argument.size()));
  std::replace(argument.begin(), end, '_', '-');
  return argument;
}

class Declared final : public Option {
 public:
  Declared(std::string names, OptionTarget target, CLI::Option* option)
      : names(std::move(names)), target(target), default_shown(show(target)), option(option) {}

  Option& one_of(std::vector<std::string> choices) override {
    known = choices;
    if (std::holds_alternative<std::vector<std::string>*>(target)) {
      all = choices;
      choices.emplace_back("all");
    }
    const CLI::Validator listed = CLI::IsMember(std::move(choices));
    option->check(
        [this, listed](const std::string& text) {
          const bool known = std::count(extra.begin(), extra.end(), text) > 0;
          return known ? "" : listed(text);
        },
        listed.get_description());
    return *this;
  }
  Option& unlisted(std::vector<std::string> choices) override {
    extra = std::move(choices);
    return *this;
  }
  Option& at_least(double minimum) override {
    return bound([=](double value) { return value >= minimum; }, "at least", minimum);
  }
  Option& at_most(double maximum) override {
    return bound([=](double value) { return value <= maximum; }, "at most", maximum);
  }
  Option& below(double limit) override {
    return bound([=](double value) { return value < limit; }, "below", limit);
  }
  Option& only_where(std::string other, std::vector<std::string> values) override {
    option->description(fmt::format("{}: {}", fmt::join(values, ", "), option->get_description()));
    where = {std::move(other), std::move(values)};
    return *this;
  }
  Option& only_with(std::vector<std::string> options) override {
    with = std::move(options);
    return *this;
  }
  Option& not_with(std::vector<std::string> options, std::string why) override {
    contradicted = {std::move(why), std::move(options)};
    return *this;
  }
  Option& brings(std::string other, std::string value) override {
    brought = {std::move(other), {std::move(value)}};
    return *this;
  }
  Option& existing_file() override {
    is_existing_file = true;
    return *this;
  }
  Option& default_text(std::string text) override {
    default_shown = std::move(text);
    option->default_str(default_shown);
    return *this;
  }

  bool has_name(const std::string& name) const {
    return fmt::format(",{},", names).find(fmt::format(",{},", name)) != std::string::npos;
  }
  /// A switch that is off asks for nothing.
  bool is_given() const {
    auto* const* value = std::get_if<bool*>(&target);
    return option->count() > 0 && (value == nullptr || **value);
  }

  /// Puts every choice in the place of "all".
  void expand() {
    auto* const* list = std::get_if<std::vector<std::string>*>(&target);
    if (list != nullptr && !all.empty() && std::count((*list)->begin(), (*list)->end(), "all") > 0)
      **list = all;
  }

  std::string names;
  OptionTarget target;
  std::string default_shown;
  CLI::Option* option;
  bool is_existing_file = false;
  struct Tie {
    std::string name;  // of another option, or why
    std::vector<std::string> values;
  };
  Tie where, contradicted, brought;
  std::vector<std::string> with;
  std::vector<std::string> known;  // choices
  std::vector<std::string> all;    // of a list of texts: what "all" stands for in it
  std::vector<std::string> extra;  // choices that are not listed

 private:
  template <class Holds>
  Option& bound(Holds holds, const char* relation, double limit) {
    const std::string allowed = fmt::format("{} {}", relation, limit);
    option->check(
        [=](const std::string& text) -> std::string {
          double value = 0;
          if (!CLI::detail::lexical_cast(text, value))
            return fmt::format("{} is not a number", text);
          if (!std::isfinite(value)) return fmt::format("{} is not a finite number", text);
          return holds(value) ? "" : fmt::format("{} is not {}", text, allowed);
        },
        allowed);
    return *this;
  }
};

/// What stands in for an option with a single value; see take_list.
struct TakenList {
  std::string names;
  OptionTarget list;
};

CLI::Option* add_switch(CLI::App& app, const std::string& names, bool& value,
                        const std::string& help) {
  const std::string shown = fmt::format("[on|off]={}", show(&value));
  auto* option = app.add_option_function<std::string>(
      names, [&value](const std::string& text) { value = text == "on"; }, help);
  option->check(CLI::IsMember({"on", "off"}))->expected(0, 1)->take_last()->option_text(shown);
  return option->default_str("on");  // what it takes when it stands alone
}

}  // namespace

std::size_t parse_bytes(const std::string& option, const std::string& text) {
  char* end = nullptr;
  double bytes = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  const auto at =
      std::string("KMGT").find(unit.empty() ? '?' : static_cast<char>(std::toupper(unit[0])));
  const std::string rest = unit.empty() ? "" : unit.substr(1);
  const bool known = at != std::string::npos && (rest.empty() || rest == "B" || rest == "iB");
  if (known) bytes *= static_cast<double>(std::size_t{1} << (10 * (at + 1)));
  constexpr double kMost = 0x1p60;
  if (end == text.c_str() || !(bytes >= 0 && bytes <= kMost) || !(known || unit.empty()))
    throw UsageError(fmt::format("{} {}: not a number of bytes such as 8, 64K or 1.5G (K, M, G, T)",
                                 option, text));
  return static_cast<std::size_t>(bytes);
}

class OptionSet::Implementation {
 public:
  explicit Implementation(const std::string& program, const std::string& description)
      : app(description, program) {
    app.set_help_flag("-h,--help", "this text");
    app.get_formatter()->column_width(34);
    app.add_flag("--help-markdown", markdown, "")->group("");
    app.add_flag("--help-json", json, "")->group("");
    app.add_flag("--ignore-idle", ignore_idle, "")->group("");
  }

  const Declared* find(const std::string& name) const {
    for (const Declared& d : declared)
      if (d.has_name(name)) return &d;
    return nullptr;
  }
  bool given(const std::string& name) const {
    const Declared* found = find(name);
    return found != nullptr && found->is_given();
  }

  /// What an option of texts is, all of a list, and what is brought along.
  std::vector<std::string> values_of(const Declared& option) const {
    std::vector<std::string> values;
    if (auto* const* list = std::get_if<std::vector<std::string>*>(&option.target))
      values = **list;
    else
      values = {*std::get<std::string*>(option.target)};
    for (const Declared& d : declared)
      if (d.is_given() && option.has_name(d.brought.name)) values.push_back(d.brought.values[0]);
    return values;
  }

  /// What makes an option that is given idle, or ""; see Option.
  std::string why_idle(const Declared& d) const {
    if (const Declared* other = find(d.where.name)) {
      const auto used = values_of(*other);
      if (std::find_first_of(used.begin(), used.end(), d.where.values.begin(),
                             d.where.values.end()) == used.end())
        return fmt::format("only with {} {}", first_name(other->names),
                           fmt::join(d.where.values, ", "));
    }
    std::vector<std::string> known;
    for (const std::string& name : d.with) {
      if (given(name)) return "";
      if (find(name) != nullptr) known.push_back(name);
    }
    return known.empty() ? "" : fmt::format("only with {}", fmt::join(known, " or "));
  }

  /// The first complaint about options that do not go together, or "".
  std::string complaint() const {
    for (const Declared& d : declared) {
      if (!d.is_given()) continue;
      for (const std::string& other : d.contradicted.values)
        if (given(other))
          return fmt::format("{} {}: not with {}", first_name(d.names), d.contradicted.name, other);
      const std::string why = ignore_idle ? "" : why_idle(d);
      if (!why.empty()) return fmt::format("{}: {}", first_name(d.names), why);
    }
    return "";
  }

  std::string suggestion(const std::string& unknown) const {
    const std::string name = unknown.substr(0, unknown.find('='));
    const Declared* best = nullptr;
    const std::size_t letters = name.size() - std::min<std::size_t>(2, name.size());
    std::size_t distance = std::min<std::size_t>(2, letters / 2) + 1;  // farther is no slip
    for (const Declared& d : declared) {
      const std::size_t here = edit_distance(name, first_name(d.names));
      if (here < distance && !d.option->get_group().empty()) {
        distance = here;
        best = &d;
      }
    }
    return best ? fmt::format("; did you mean {}?", first_name(best->names)) : "";
  }

  CLI::App app;
  std::deque<Declared> declared;
  std::map<const void*, TakenList> lists;  // by the single value's target
  std::string group = "Options";
  bool markdown = false;
  bool json = false;
  bool ignore_idle = false;
};

OptionSet::OptionSet(std::string program, const std::string& description)
    : program_(std::move(program)),
      implementation_(std::make_unique<Implementation>(program_, description)) {}
OptionSet::~OptionSet() = default;

Option& OptionSet::add(const std::string& own_names, OptionTarget target, const std::string& help) {
  std::string names = own_names;
  const auto taken = implementation_->lists.find(address_of(target));
  const bool is_taken = taken != implementation_->lists.end();
  if (is_taken) {
    names = taken->second.names + "," + own_names;
    target = taken->second.list;
  }
  CLI::App& app = implementation_->app;
  CLI::Option* option = std::visit(
      [&](auto* value) -> CLI::Option* {
        using T = std::remove_pointer_t<decltype(value)>;
        if constexpr (std::is_same_v<T, bool>) {
          return add_switch(app, names, *value, help);
        } else {
          CLI::Option* made = app.add_option(names, *value, help);
          if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>)
            return made->take_last();
          else
            return made->delimiter(',')->trigger_on_parse();  // the last list counts
        }
      },
      target);
  option->group(implementation_->group);
  Declared& declared = implementation_->declared.emplace_back(names, target, option);
  if (!std::holds_alternative<bool*>(target)) option->default_str(declared.default_shown);
  return declared;
}

void OptionSet::add_alias(const std::string& names, std::string& target, const std::string& value,
                          const std::string& help) {
  const auto taken = implementation_->lists.find(&target);
  auto* list = taken == implementation_->lists.end()
                   ? nullptr
                   : std::get<std::vector<std::string>*>(taken->second.list);
  implementation_->app
      .add_flag_callback(
          names,
          [&target, list, value] {
            target = value;
            if (list != nullptr) *list = {value};
          },
          help)
      ->group(implementation_->group);
}

void OptionSet::take_list(const std::string& names, const void* single, OptionTarget list) {
  implementation_->lists.emplace(single, TakenList{names, list});
}

void OptionSet::heading(const std::string& title) { implementation_->group = title; }

std::optional<OptionSet::Ending> OptionSet::parse(int argc, const char* const* argv) {
  std::vector<std::string> arguments;
  for (int i = argc - 1; i > 0; --i) arguments.push_back(with_hyphens(argv[i]));  // CLI11: reversed
  try {
    implementation_->app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    return Ending{ExitCode::pass, implementation_->app.help()};
  } catch (const CLI::ExtrasError& error) {
    const auto extras = implementation_->app.remaining();
    const std::string unknown = extras.empty() ? error.what() : extras.front();
    return Ending{ExitCode::usage,
                  fmt::format("{}: unknown option {}{}\n(--help lists the options)\n", program_,
                              unknown, implementation_->suggestion(unknown))};
  } catch (const CLI::ParseError& error) {
    return Ending{ExitCode::usage, fmt::format("{}: {}\n", program_, error.what())};
  }
  if (implementation_->markdown) return Ending{ExitCode::pass, markdown()};
  if (implementation_->json) return Ending{ExitCode::pass, json()};
  for (Declared& declared : implementation_->declared) declared.expand();
  const std::string complaint = implementation_->complaint();
  if (complaint.empty()) return std::nullopt;
  return Ending{ExitCode::usage, fmt::format("{}: {}\n", program_, complaint)};
}

std::string OptionSet::missing_file() const {
  for (const Declared& d : implementation_->declared) {
    if (!d.is_existing_file) continue;
    const std::string& path = *std::get<std::string*>(d.target);
    if (path.empty()) continue;
    std::error_code ignored;
    const bool is_folder = std::filesystem::is_directory(path, ignored);
    if (is_folder || access(path.c_str(), R_OK) != 0)
      return fmt::format("{} {}: {}", first_name(d.names), path,
                         std::strerror(is_folder ? EISDIR : errno));
  }
  return "";
}

bool OptionSet::given(const std::string& name) const {
  if (const Declared* found = implementation_->find(name)) return found->option->count() > 0;
  throw InternalError("no option " + name);
}

std::vector<OptionValue> OptionSet::values() const {
  std::vector<OptionValue> values;
  for (const Declared& d : implementation_->declared) {
    std::string name = first_name(d.names).substr(2);
    std::replace(name.begin(), name.end(), '-', '_');
    std::visit([&](auto* value) { values.push_back({name, *value}); }, d.target);
  }
  return values;
}

std::string OptionSet::json() const {
  nlohmann::ordered_json groups = nlohmann::ordered_json::array();
  for (const Declared& d : implementation_->declared) {
    const std::string& title = d.option->get_group();
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& known) { return known["title"] == title; });
    if (group == groups.end()) {
      groups.push_back({{"title", title}, {"options", nlohmann::ordered_json::array()}});
      group = std::prev(groups.end());
    }
    const bool is_switch = std::holds_alternative<bool*>(d.target);
    const std::string type = d.option->get_type_name();  // "TEXT:{sgd,adam}"
    (*group)["options"].push_back(
        {{"names", CLI::detail::split(d.names, ',')},
         {"metavar", is_switch ? "" : type.substr(0, type.find(':'))},
         {"default", d.default_shown},
         {"choices", is_switch ? std::vector<std::string>{"on", "off"} : d.known},
         {"help", d.option->get_description()},
         {"hidden", title.empty()}});
  }
  const nlohmann::ordered_json program = {{"program", program_},
                                          {"summary", implementation_->app.get_description()},
                                          {"groups", groups}};
  return program.dump(1) + "\n";
}

std::string OptionSet::markdown() const {
  std::string text = "| option | default | meaning |\n|---|---|---|\n";
  for (const Declared& d : implementation_->declared) {
    if (d.option->get_group().empty()) continue;
    std::string names = d.names;
    for (std::size_t at = 0; (at = names.find(',', at)) != std::string::npos; at += 4)
      names.replace(at, 1, "`, `");
    text +=
        fmt::format("| `{}` | {} | {} |\n", names, d.default_shown, d.option->get_description());
  }
  return text;
}

}  // namespace shakedown

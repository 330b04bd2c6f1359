// From the command line to the options' targets.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <sstream>

#include "common/options.hpp"
#include "common/usage_error.hpp"

namespace shakedown {
namespace {

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

/// One argument: "--batch_size=3" is "--batch-size" with a value, "-n3" is "-n" with one. Values
/// are left alone.
struct Argument {
  std::string name;
  std::optional<std::string> value;

  explicit Argument(const std::string& text) {
    const bool is_long = text.starts_with("--");
    std::size_t end = std::min(text.find('='), text.size());
    if (!is_long) end = std::min<std::size_t>(2, text.size());
    name = text.substr(0, end);
    if (is_long) std::replace(name.begin(), name.end(), '_', '-');
    if (end < text.size()) value = text.substr(end + (text[end] == '=' ? 1 : 0));
  }
};

bool is_option(const std::string& argument) { return argument.size() > 1 && argument[0] == '-'; }

template <class T>
bool convert(const std::string& text, T& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

template <class T>
void append(const std::string& text, T& value) {
  if constexpr (std::is_same_v<T, bool>)
    value = text == "on";
  else if constexpr (std::is_same_v<T, std::string>)
    value = text;
  else if constexpr (std::is_arithmetic_v<T>)
    convert(text, value);
  else
    append(text, value.emplace_back());
}

}  // namespace

std::string Option::refusal(const std::string& text) const {
  const std::vector<std::string> on_off{"on", "off"};
  const std::vector<std::string>& choices = is_switch() ? on_off : choices_;
  const auto is_among = [&](const auto& some) {
    return std::find(some.begin(), some.end(), text) != some.end();
  };
  if (!choices.empty() && !is_among(choices) && !is_among(unlisted_) &&
      !(is_list() && text == "all"))
    return fmt::format("must be one of {}{}", fmt::join(choices, ", "), is_list() ? ", all" : "");

  const bool is_whole =
      std::holds_alternative<int*>(target_) || std::holds_alternative<std::vector<int>*>(target_);
  const bool is_real = std::holds_alternative<double*>(target_) ||
                       std::holds_alternative<std::vector<double>*>(target_);
  if (!is_whole && !is_real) return "";
  double value = 0;
  const bool digits =
      !text.empty() &&
      text.find_first_not_of("0123456789", text[0] == '-' ? 1 : 0) == std::string::npos;
  if (!convert(text, value) || (is_whole && !digits))
    return is_whole ? "must be a whole number" : "must be a number";
  if (at_least_ && !(value >= *at_least_)) return fmt::format("must be at least {}", *at_least_);
  if (at_most_ && !(value <= *at_most_)) return fmt::format("must be at most {}", *at_most_);
  if (below_ && !(value < *below_)) return fmt::format("must be below {}", *below_);
  if ((at_least_ || at_most_ || below_) && !std::isfinite(value)) return "must be finite";
  int whole = 0;
  if (is_whole && !convert(text, whole))
    return value > 0 ? fmt::format("must be at most {}", std::numeric_limits<int>::max())
                     : fmt::format("must be at least {}", std::numeric_limits<int>::min());
  return "";
}

void Option::assign(const std::string& text) {
  given_ = text;
  const auto put = [&](const std::string& one) {
    if (const std::string why = refusal(one); !why.empty())
      throw UsageError(
          fmt::format("{}: {}", spelled_.empty() ? name() + " " + one : spelled_, why));
    std::visit([&](auto* value) { append(one, *value); }, target_);
  };
  if (!is_list()) return put(text);
  std::visit(
      [](auto* value) {
        if constexpr (requires { value->clear(); }) value->clear();
      },
      target_);
  for (const std::string& part : parts_of(text)) put(part);
}

std::vector<std::string> Option::parts_of(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream in(list + ",");
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

void Option::expand_all() {
  auto* const* list = std::get_if<std::vector<std::string>*>(&target_);
  if (list != nullptr && !choices_.empty() &&
      std::find((*list)->begin(), (*list)->end(), "all") != (*list)->end())
    **list = choices_;
}

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
    throw UsageError(
        fmt::format("{} {}: must be a number of bytes such as 8, 64K or 1.5G (K, M, "
                    "G, T)",
                    option, text));
  return static_cast<std::size_t>(bytes);
}

std::optional<OptionSet::Ending> OptionSet::parse(int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const Text* text = find_text(arguments[i]);
      if (text == nullptr) continue;
      if (text->print) return Ending{ExitCode::pass, text->print()};
      const bool named = i + 1 < arguments.size() && !is_option(arguments[i + 1]);
      return Ending{ExitCode::pass,
                    help(Argument(arguments[i]).value.value_or(named ? arguments[i + 1] : ""))};
    }
    const bool ignore_idle = std::erase(arguments, "--ignore-idle") > 0;
    read(arguments, From::command_line);
    read_defaults();
    for (Option& option : options_) option.expand_all();
    check_conditions(ignore_idle);
  } catch (const UsageError& error) {
    return Ending{ExitCode::usage, fmt::format("{}: {}\n", program_, explained(error.what()))};
  }
  return std::nullopt;
}

const OptionSet::Text* OptionSet::find_text(const std::string& argument) const {
  const std::string name = Argument(argument).name;
  for (const Text& text : texts_)
    if (std::find(text.names.begin(), text.names.end(), name) != text.names.end()) return &text;
  return nullptr;
}

void OptionSet::read_defaults() {
  if (!defaults_ || !given(defaults_->option)) return;
  const Option& source = *find(defaults_->option);
  const Arguments arguments = defaults_->arguments(*source.given_);
  try {
    read(arguments, From::defaults);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", source.as_given(), error.what()));
  }
}

void OptionSet::read(const std::vector<std::string>& arguments, From from) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto next_is_value = [&] {
      return i + 1 < arguments.size() && !is_option(arguments[i + 1]);
    };
    if (!is_option(arguments[i]) && operands_.into != nullptr) {
      operands_.into->push_back(arguments[i]);
      continue;
    }
    if (!is_option(arguments[i]))
      throw UsageError(fmt::format("unexpected argument {}; see --help", arguments[i]));
    Argument argument(arguments[i]);
    for (const Refused& refused : refused_)
      if (std::find(refused.names.begin(), refused.names.end(), argument.name) !=
          refused.names.end())
        throw UsageError(fmt::format("{} was removed: {}", argument.name, refused.reason));
    for (const Alias& alias : aliases_) {
      if (std::find(alias.names.begin(), alias.names.end(), argument.name) == alias.names.end())
        continue;
      const bool switched =
          next_is_value() && (arguments[i + 1] == "on" || arguments[i + 1] == "off");
      if (!argument.value && switched) argument.value = arguments[++i];
      if (argument.value.value_or("on") != "on")
        throw UsageError(fmt::format("{} {}: must be on, or left out: it is {} {}", argument.name,
                                     *argument.value, alias.option, alias.value));
      argument = Argument(alias.option + "=" + alias.value);
      break;
    }
    Option& option = existing(arguments[i], argument.name);
    const bool may_stand_alone = option.is_switch() || option.alone_;
    if (!argument.value && may_stand_alone && !next_is_value()) argument.value = "on";
    if (!argument.value) {
      const auto is_known = [&](const std::string& word) {
        return word.starts_with("--") && std::ranges::any_of(options_, [&](const Option& other) {
                 return other.has_name(Argument(word).name);
               });
      };
      if (++i == arguments.size() || is_known(arguments[i]))
        throw UsageError(fmt::format("{}: requires a value", argument.name));
      argument.value = arguments[i];
      while (option.is_list() && operands_.into == nullptr && next_is_value())
        *argument.value += "," + arguments[++i];
    }
    give(option, *argument.value, from);
  }
}

Option& OptionSet::existing(const std::string& argument, const std::string& name) {
  for (Option& option : options_)
    if (option.has_name(name)) return option;
  throw UsageError(fmt::format("unknown option {}{}; see --help", argument, suggestion(name)));
}

std::optional<std::string> Option::Unit::value_of(const std::string& part) const {
  const bool leads = text.ends_with(':');
  if (part.size() <= text.size() || !(leads ? part.starts_with(text) : part.ends_with(text)))
    return std::nullopt;
  return leads ? part.substr(text.size()) : part.substr(0, part.size() - text.size());
}

void OptionSet::give(Option& option, const std::string& value, From from,
                     const std::string& spelled) {
  const auto replaced = [](const Option& given) { return given.given_ && !given.is_default_; };
  std::string own = value;
  if (!option.units_.empty()) {
    std::vector<Option*> of_units;
    for (const auto& unit : option.units_) of_units.push_back(&existing(unit.option, unit.option));
    if (from == From::defaults &&
        (replaced(option) || std::ranges::any_of(of_units, [&](auto* o) { return replaced(*o); })))
      return;
    option.forget();
    for (Option* of_unit : of_units)
      if (!of_unit->spelled_.empty()) of_unit->forget();  // by its own name it was given by itself
    std::vector<std::string> rest;
    for (const std::string& part : Option::parts_of(value)) {
      const auto unit = std::find_if(option.units_.begin(), option.units_.end(),
                                     [&](const auto& known) { return known.value_of(part); });
      if (unit == option.units_.end())
        rest.push_back(part);
      else
        give(existing(unit->option, unit->option), *unit->value_of(part), from,
             option.name() + " " + part);
    }
    if (rest.empty()) return;
    own = fmt::format("{}", fmt::join(rest, ","));
  }
  if (option.alone_ && value == "on") own = *option.alone_;
  if (from == From::defaults && (replaced(option) || contradicted(option))) return;
  if (option.alone_ && value == "off") return option.forget();
  if (option.alone_ && value == "on" && option.given_) return;  // what was given says more
  option.spelled_ = spelled;
  option.assign(own);
  if (option.alone_ && value == "on") option.given_ = "";  // without a value
  option.is_default_ = from == From::defaults;
}

std::string OptionSet::suggestion(const std::string& unknown) const {
  const Option* best = nullptr;
  const std::size_t letters = unknown.size() - std::min<std::size_t>(2, unknown.size());
  std::size_t distance = std::min<std::size_t>(2, letters / 2) + 1;  // farther is no slip
  for (const Option& option : options_) {
    const std::size_t here = edit_distance(unknown, option.name());
    if (here < distance && !option.group_.empty()) {
      distance = here;
      best = &option;
    }
  }
  return best ? fmt::format("; did you mean {}?", best->name()) : "";
}

}  // namespace shakedown

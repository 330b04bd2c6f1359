// Command-line options, each declared once: help, JSON, README tables and the record's echo are
// read off the declaration. Nothing here needs MPI, and only missing_file looks at the disk.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/exit_code.hpp"

namespace shakedown {

/// Where an option's value goes; the value it has at the declaration is the default. A bool takes
/// on or off, and is on when the option stands alone. A list is given as a,b,c; in one of texts
/// that are one_of some, "all" stands for these.
using OptionTarget = std::variant<bool*, int*, double*, std::string*, std::vector<int>*,
                                  std::vector<double>*, std::vector<std::string>*>;

class Option {
 public:
  Option(std::vector<std::string> names, OptionTarget target, std::string help, std::string group);

  Option& one_of(std::vector<std::string> choices) { return set(choices_, std::move(choices)); }
  /// Further choices of one_of that are accepted but not listed, and no part of "all": for tests,
  /// names of earlier versions, and what few machines can run.
  Option& unlisted(std::vector<std::string> choices) { return set(unlisted_, std::move(choices)); }
  // Numbers must be finite where they are bounded.
  Option& at_least(double minimum) { return set(at_least_, minimum); }
  Option& at_most(double maximum) { return set(at_most_, maximum); }
  Option& below(double limit) { return set(below_, limit); }
  // Options that make one another idle; those that a program does not have count as not given. A
  // switch counts as given when it is on. The help lists all of these.
  /// It matters only where `option` is one of `values`, or a list with one of them.
  Option& only_where(std::string option, std::vector<std::string> values) {
    where_.push_back({std::move(option), std::move(values), for_values_});
    return *this;
  }
  /// It matters only where one of these is given.
  Option& only_with(std::vector<std::string> options) {
    with_of_ = for_values_;
    return set(with_, std::move(options));
  }
  /// It does not matter where one of these is given.
  Option& idle_with(std::vector<std::string> options) {
    return set(idle_with_, std::move(options));
  }
  /// All options but these do not matter where it is given. The help does not list them.
  Option& uses_only(std::vector<std::string> options) {
    return set(uses_only_, std::move(options));
  }
  /// It contradicts these.
  Option& not_with(std::vector<std::string> options) { return set(not_with_, std::move(options)); }
  /// The conditions that follow hold for these values alone.
  Option& for_values(std::vector<std::string> own) { return set(for_values_, std::move(own)); }
  /// If this option is given, the program also uses `value` of `option`.
  Option& brings(std::string option, std::string value) {
    return set(brings_, Condition{std::move(option), {std::move(value)}});
  }
  /// The value is the path of a file that must exist: OptionSet::missing_file checks it. `source`,
  /// for its message: where such files come from.
  Option& existing_file(std::string source = "") {
    is_existing_file_ = true;
    return set(source_, std::move(source));
  }
  /// The same, of a file or a folder.
  Option& existing_path() {
    may_be_folder_ = true;
    return existing_file();
  }
  /// The name of the value in the help: FILE, SECONDS. Default: N, X, TEXT or the choices.
  Option& metavar(std::string text) { return set(metavar_, std::move(text)); }
  /// The words for a default that depends on the machine.
  Option& default_text(std::string text) { return set(default_, std::move(text)); }
  /// Where the option stands alone it has this value. "on" means the same, and "off" not given.
  Option& alone(std::string value) { return set(alone_, std::move(value)); }
  /// "500steps" is 500 of `option`, and so is that part of "5,500steps"; "every:30" is 30 where the
  /// unit ends with a colon. A later value replaces all of an earlier one. `option` itself is
  /// declared hidden().
  Option& unit(std::string unit, std::string option) {
    units_.push_back({std::move(unit), std::move(option)});
    return *this;
  }
  /// Not in the help: what another option's units set, or a name of earlier versions.
  Option& hidden() { return set(group_, std::string()); }
  /// One of those that --help lists without a group.
  Option& first() { return set(is_first_, true); }

 private:
  friend class OptionSet;
  struct Condition {
    std::string option;
    std::vector<std::string> values;
    std::vector<std::string> own = {};  // of this option, where it holds; empty: all
  };
  struct Unit {
    std::string text, option;
    /// The value without the unit, if it has it.
    std::optional<std::string> value_of(const std::string& part) const;
  };
  template <class Field, class Value>
  Option& set(Field& field, Value&& value) {
    field = std::forward<Value>(value);
    return *this;
  }
  /// Between commas; an empty last one is one.
  static std::vector<std::string> parts_of(const std::string& list);
  const std::string& name() const { return names_.front(); }
  bool has_name(const std::string& name) const;
  bool is_switch() const { return std::holds_alternative<bool*>(target_); }
  bool is_list() const;
  /// Given, with one of these values.
  bool has_one_of(const std::vector<std::string>& own) const;
  /// Given, and no switch that is off.
  bool is_on() const;
  /// "--staleness 2" as it was given, "--no-overlap" of a switch.
  std::string as_given() const;
  /// What it allows, as "must be at least 1", where `text`, one value, is not allowed; else "".
  std::string refusal(const std::string& text) const;
  /// Converts one value, or a list, into the target. Throws UsageError.
  void assign(const std::string& text);
  /// As if it had not been given.
  void forget();
  /// Puts every choice in the place of "all".
  void expand_all();
  std::string metavar_shown() const;

  std::vector<std::string> names_;
  OptionTarget target_;
  std::function<void()> restore_;  // the target's value from before any was given
  std::string help_;
  std::string group_;  // empty: hidden
  std::string metavar_;
  std::string default_;
  std::vector<std::string> choices_;
  std::vector<std::string> unlisted_;
  std::optional<double> at_least_, at_most_, below_;
  std::vector<Condition> where_;
  std::vector<std::string> with_, idle_with_, not_with_, uses_only_;
  std::vector<std::string> for_values_, with_of_;
  std::vector<Unit> units_;
  std::optional<std::string> alone_;
  bool is_first_ = false;
  Condition brings_;
  bool is_existing_file_ = false;
  bool may_be_folder_ = false;
  std::string source_;
  std::optional<std::string> given_;  // the last value given; "" where it stood alone
  std::string spelled_;               // "--warmup 2s" of --warmup-seconds, where a unit set it
  bool is_default_ = false;           // given, but not on the command line
};

/// The value of one option, for the record: "name" (with underscores) and its value.
struct OptionValue {
  std::string name;
  std::variant<bool, int, double, std::string, std::vector<int>, std::vector<double>,
               std::vector<std::string>>
      value;
};

/// "64", "128K", "1.5M", "4G": bytes, in binary units as nccl-tests has them. Throws UsageError
/// naming the option.
std::size_t parse_bytes(const std::string& option, const std::string& text);

/// Why --csv is refused where it was an option.
inline constexpr const char* kCsvOfReport = "results/report RECORD --csv makes it of the record";

class OptionSet {
 public:
  OptionSet(std::string program, std::string summary);
  OptionSet(const OptionSet&) = delete;
  OptionSet& operator=(const OptionSet&) = delete;

  /// `names` is "--learning-rate,--lr": the first is the one recorded. Underscores are understood
  /// for hyphens in every long name.
  template <class T>
  Option& add(const std::string& names, T& target, const std::string& help) {
    return add(names, OptionTarget(&target), help);
  }
  /// The option that will be declared with `single` as its target takes a list into `list` here,
  /// under these names before its own.
  template <class T>
  void take_list(const std::string& names, T& single, std::vector<T>& list) {
    lists_.emplace(&single, List{names, OptionTarget(&list)});
  }
  /// Other names for `option` with this value: "--amp" for "--precision fp16".
  void add_alias(const std::string& names, const std::string& option, const std::string& value);
  /// An option that ends the program with a text: --help, --version. Hidden where help is empty.
  void add_text(const std::string& names, const std::string& help,
                std::function<std::string()> text);
  /// Options declared from here on stand under this title in the help, which --help TITLE prints
  /// alone. An empty one hides them: they are for tests. The record has them.
  void heading(const std::string& title) { group_ = title; }
  /// For a program of many options, what --help begins with: how it is started, with examples.
  /// Then --help without a group lists the options that are first(), and the groups.
  void usage(const std::string& text) { usage_ = text; }
  /// --help TOPIC prints this text.
  void help_topic(const std::string& topic, const std::string& help,
                  std::function<std::string()> text) {
    topics_.push_back({{topic}, help, std::move(text)});
  }
  /// Where `option`, of texts, is given, `arguments` of its value are arguments too: defaults,
  /// which the command line's own replace, and which are ignored where these make them idle or
  /// contradict them. `arguments` may throw UsageError.
  using Arguments = std::vector<std::string>;
  void add_defaults(const std::string& option,
                    std::function<Arguments(const std::string& value)> arguments) {
    defaults_ = {option, std::move(arguments)};
  }
  /// Arguments that are no options, for the program that takes them: "RECORD..." in the help.
  void take_operands(const std::string& metavar, std::vector<std::string>& into) {
    operands_ = {metavar, &into};
  }
  /// These options were removed: where one is given, an error names it with the reason.
  void refuse(const std::string& names, const std::string& reason);
  /// Runs after parsing; throws UsageError where options do not fit together in a way that no
  /// declaration says.
  void check(std::function<void()> check) { checks_.push_back(std::move(check)); }

  /// Fills the targets. Returns an exit code, and what to print, when the program should end now:
  /// help was requested, or a usage error that names the option. An option that another one makes
  /// idle is such an error except with --ignore-idle, which every program understands: for scripts
  /// that start several jobs with the same options.
  struct Ending {
    ExitCode code;
    std::string text;
  };
  std::optional<Ending> parse(int argc, const char* const* argv);

  /// "--weights w.safetensors: No such file or directory" of the first given file that this process
  /// cannot read, or "". Processes on other hosts may see other files.
  std::string missing_file() const;

  /// `error`, followed by "; --recipe NAME sets --epochs 90, ..." where it names options whose
  /// values came from add_defaults, and not from the command line.
  std::string explained(const std::string& error) const;

  /// Whether the user gave this option (by any name), rather than leaving its default.
  bool given(const std::string& name) const;

  std::vector<OptionValue> values() const;
  /// All of it, of one group (with a lower-case title) or topic, or, where `topic` is empty, how
  /// to begin. Throws UsageError naming the topics that there are.
  std::string help(const std::string& topic = "") const;
  /// {"program", "summary", "groups": [{"title", "options": [{"names", "metavar", "default",
  /// "choices", "help", "hidden"}]}]}: man page, completion and tables are made from it.
  std::string json() const;
  const std::string& program() const { return program_; }

 private:
  struct List {
    std::string names;
    OptionTarget target;
  };
  struct Alias {
    std::vector<std::string> names;
    std::string option, value, group;
  };
  struct Refused {
    std::vector<std::string> names;
    std::string reason;
  };
  struct Text {
    std::vector<std::string> names;
    std::string help;
    std::function<std::string()> print;
  };
  struct Listed {  // in the help
    std::vector<std::string> names;
    std::string metavar, default_text, help;
    std::string conditions = {};
    std::vector<std::string> choices = {};
    bool hidden = false;
    bool is_first = false;
    std::string text() const;
  };
  struct Group {
    std::string title;
    std::vector<Listed> options;
  };

  Option& add(const std::string& names, OptionTarget target, const std::string& help);
  const Option* find(const std::string& name) const;
  bool is_on(const std::string& name) const;
  std::vector<std::string> values_of(const Option& option) const;
  /// Those of these names that the program has, as it names them.
  std::vector<std::string> known(const std::vector<std::string>& names) const;
  bool contradict(const Option& a, const Option& b) const;
  /// The options that are given and do not use this one, which they do not contradict.
  std::vector<std::string> made_idle_by(const Option& option) const;
  /// "only with --optimizer sgd": the conditions of an option, or those that do not hold.
  std::vector<std::string> conditions(const Option& option, bool only_broken) const;
  void check_conditions(bool ignore_idle) const;

  const Text* find_text(const std::string& argument) const;
  enum class From { command_line, defaults };
  void read(const std::vector<std::string>& arguments, From from);
  void read_defaults();
  /// One value from the command line or the defaults, with its units. `spelled`: Option's.
  void give(Option& option, const std::string& value, From from, const std::string& spelled = "");
  Option& existing(const std::string& argument, const std::string& name);
  /// Whether the command line contradicts it.
  bool contradicted(const Option& option) const;
  std::string suggestion(const std::string& unknown) const;
  std::vector<Group> groups() const;
  static void append_help(std::string& out, const Listed& option);
  std::string help_of_all() const;
  std::string first_help() const;
  std::string topic_lines() const;

  std::string program_;
  std::string summary_;
  std::string usage_;
  std::string group_ = "Options";
  std::deque<Option> options_;  // declarations keep their place
  std::vector<Alias> aliases_;
  std::vector<Refused> refused_;
  std::vector<Text> texts_;
  std::vector<Text> topics_;
  std::map<const void*, List> lists_;  // by the single value's target
  std::vector<std::function<void()>> checks_;
  struct Defaults {
    std::string option;
    std::function<Arguments(const std::string&)> arguments;
  };
  std::optional<Defaults> defaults_;
  struct Operands {
    std::string metavar;
    std::vector<std::string>* into = nullptr;  // null: the program takes none
  };
  Operands operands_;
};

}  // namespace shakedown

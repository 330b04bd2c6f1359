// Command-line options, each declared once: the help, the README tables and the record's echo are
// read off the declaration. CLI11 parses; this keeps it out of every other file.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/error.hpp"

namespace shakedown {

/// Where an option's value goes; the value it has at the declaration is the default. A bool takes
/// on or off, and is on when the option stands alone. A list is given as a,b,c; in one of texts
/// that are one_of some, "all" stands for these.
using OptionTarget = std::variant<bool*, int*, double*, std::string*, std::vector<int>*,
                                  std::vector<double>*, std::vector<std::string>*>;

class Option {
 public:
  virtual ~Option() = default;
  virtual Option& one_of(std::vector<std::string> choices) = 0;
  /// Further choices of one_of, for tests: taken, but not listed, and no part of "all".
  virtual Option& unlisted(std::vector<std::string> choices) = 0;
  // Numbers must be finite where they are bounded.
  virtual Option& at_least(double minimum) = 0;
  virtual Option& at_most(double maximum) = 0;
  virtual Option& below(double limit) = 0;
  // Options that make one another idle; those that a program does not have count as not given. A
  // switch counts as given when it is on.
  /// It matters where `option` is one of `values`, or a list of some of them. The help starts with
  /// these.
  virtual Option& only_where(std::string option, std::vector<std::string> values) = 0;
  /// It matters where one of these is given.
  virtual Option& only_with(std::vector<std::string> options) = 0;
  /// It contradicts these: `why`, after its name, says what it does instead.
  virtual Option& not_with(std::vector<std::string> options, std::string why) = 0;
  /// Given, it makes the program use `value` of `option` besides.
  virtual Option& brings(std::string option, std::string value) = 0;
  /// Of an option whose value is a path: OptionSet::missing_file looks for it.
  virtual Option& existing_file() = 0;
  /// The words the README's table and the record use for a default that depends on the machine.
  virtual Option& default_text(std::string text) = 0;
};

/// The value of one option as text, for the record: "name" (with underscores) and its value.
struct OptionValue {
  std::string name;
  std::variant<bool, int, double, std::string, std::vector<int>, std::vector<double>,
               std::vector<std::string>>
      value;
};

/// "64", "128K", "1.5M", "4G": bytes, in binary units as nccl-tests has them. Throws UsageError
/// naming the option.
std::size_t parse_bytes(const std::string& option, const std::string& text);

class OptionSet {
 public:
  OptionSet(std::string program, const std::string& description);
  ~OptionSet();
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
    take_list(names, &single, OptionTarget(&list));
  }
  /// A flag that sets `target` to `value`: "--amp" for "--precision fp16".
  void add_alias(const std::string& names, std::string& target, const std::string& value,
                 const std::string& help);
  /// Options declared from here on stand under this heading in the help. An empty one hides them
  /// from the help and the README: they are for tests. The record has them.
  void heading(const std::string& title);

  /// Fills the targets, without looking at the disk. Returns an exit code, and what is to be
  /// printed, when the program should end now: help asked for, or a usage error that names the
  /// option. An option that another one makes idle is such an error but for --ignore-idle, which
  /// every program understands: for scripts that start several jobs with the same options.
  struct Ending {
    ExitCode code;
    std::string text;
  };
  std::optional<Ending> parse(int argc, const char* const* argv);

  /// "--weights w.safetensors: No such file or directory" of the first given file that this process
  /// cannot read, or "". Processes on other hosts may see other files.
  std::string missing_file() const;

  /// Whether the user gave this option (by any name), rather than leaving its default.
  bool given(const std::string& name) const;

  std::vector<OptionValue> values() const;
  /// The README's table: option, default, meaning.
  std::string markdown() const;
  /// The same with groups, choices and hidden options, for launch/site/pages.
  std::string json() const;
  const std::string& program() const { return program_; }

 private:
  class Implementation;
  Option& add(const std::string& names, OptionTarget target, const std::string& help);
  void take_list(const std::string& names, const void* single, OptionTarget list);
  std::string program_;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace shakedown

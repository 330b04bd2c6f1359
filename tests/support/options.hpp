// Command lines as tests write them.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "common/options.hpp"
#include "tests/catch.hpp"

namespace shakedown::test {

/// The words of a command line; of one text, those between its blanks, where '' is an empty one.
struct Words : Texts {
  Words(const char* line) {
    std::istringstream in(line);
    for (std::string word; in >> word;) push_back(word == "''" ? "" : word);
  }
  Words(const std::string& line) : Words(line.c_str()) {}
  Words(std::initializer_list<std::string> words) : Texts(words) {}
};
inline Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline std::optional<OptionSet::Ending> parse(OptionSet& set, const Words& words) {
  const std::string program = set.program();
  std::vector<const char*> argv{program.c_str()};
  for (const std::string& word : words) argv.push_back(word.c_str());
  return set.parse(static_cast<int>(argv.size()), argv.data());
}

/// The usage error without the program's name and its newline, or "".
inline std::string complaint_of(const OptionSet& set,
                                const std::optional<OptionSet::Ending>& ending) {
  if (!ending) return "";
  const std::string program = set.program() + ": ";
  CHECK(ending->code == ExitCode::usage);
  CHECK(ending->text.starts_with(program));
  CHECK(ending->text.ends_with("\n"));
  return ending->text.substr(program.size(), ending->text.size() - program.size() - 1);
}

/// What a command line comes to, for a transcript: the usage error, or the options that have other
/// values than in `defaults`.
inline std::string answer_of(const OptionSet& set, const std::optional<OptionSet::Ending>& ending,
                             const OptionSet& defaults) {
  if (ending) return complaint_of(set, ending);
  std::string changed;
  const auto text = [](const OptionValue& of) {
    return std::visit([](const auto& value) { return nlohmann::json(value).dump(); }, of.value);
  };
  const auto before = defaults.values();
  const auto now = set.values();
  for (std::size_t i = 0; i < now.size(); ++i)
    if (text(now[i]) != text(before[i])) changed += " " + now[i].name + "=" + text(now[i]);
  return changed.empty() ? "as by default" : changed.substr(1);
}

/// Options as "PROGRAM WORDS" has them.
template <class Options>
struct ParsedAs {
  Options values;
  OptionSet set;
  std::optional<OptionSet::Ending> ending;

  explicit ParsedAs(const Words& words, const std::string& program = "train")
      : set(program, "test") {
    declare_options(set, values);
    ending = parse(set, words);
  }
};

}  // namespace shakedown::test

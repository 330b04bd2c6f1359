#include "tests/support/transcript.hpp"

#include <cstdlib>
#include <fstream>

#include "tests/catch.hpp"
#include "tests/support/files.hpp"

namespace shakedown::test {
namespace {

/// The lines, each after "> ".
std::string quoted(const std::string& answer) {
  std::string text = "> ";
  for (const char c : answer.substr(0, answer.find_last_not_of('\n') + 1))
    text += c == '\n' ? "\n> " : std::string(1, c);
  return text + "\n";
}

}  // namespace

void check_transcript(const std::string& path,
                      const std::function<std::string(const std::string& given)>& answer) {
  const Texts lines = lines_of(path);
  const bool renews = std::getenv("UPDATE_GOLDEN") != nullptr;
  std::string renewed;
  int cases = 0;
  for (std::size_t i = 0; i < lines.size();) {
    const std::string& first = lines[i];
    if (first.empty() || first[0] == '#') {
      renewed += first + "\n";
      ++i;
      continue;
    }
    std::string given = first, known;
    for (++i; i < lines.size() && lines[i].starts_with(' '); ++i) given += "\n" + lines[i];
    for (; i < lines.size() && lines[i].starts_with('>'); ++i) known += lines[i] + "\n";
    const std::string found = quoted(answer(given));
    renewed += given + "\n" + found;
    ++cases;
    INFO(path << ": " << given);
    if (!renews) CHECK(found == known);
  }
  CHECK(cases > 0);
  if (renews) std::ofstream(path) << renewed;
}

}  // namespace shakedown::test

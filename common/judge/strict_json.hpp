// JSON that people write (boards, limits, references), read strictly: every error names the file,
// the row and the key, and a key that nothing reads is an error.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/record.hpp"

namespace shakedown::judge {

/// The text of a file. Throws UsageError that names it.
std::string text_of_file(const std::string& path);
/// Throws UsageError that names the file and the place in it.
Json parsed(const std::string& text, const std::string& file);

/// One object. `where` names it: "limits.json: row 3 (memory/copy)".
class StrictObject {
 public:
  StrictObject(const Json& json, std::string where);

  /// A key that is absent is "" or none; `needed` ones are an error then.
  std::string text(const char* key, bool needed = false);
  std::vector<std::string> texts(const char* key, bool needed = false);
  std::optional<double> number(const char* key);  // none for null, too
  std::optional<bool> flag(const char* key);
  std::map<std::string, std::string> words(const char* key);  // numbers and flags as their text
  std::map<std::string, double> numbers(const char* key);
  const Json* object(const char* key);
  const Json& array(const char* key);
  bool has(const char* key) {
    read_.insert(key);
    return json_.contains(key);
  }

  /// All keys have been read. Names one that has not.
  void done() const;
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  const Json* value(const char* key, bool needed);
  const Json& json_;
  std::string where_;
  std::set<std::string> read_;
};

/// Calls `use` for each object of `list`, and checks that all its keys were read. Errors name
/// "file: kind 3 the value of `key`".
void for_rows(const Json& list, const std::string& file, const char* kind, const char* key,
              const std::function<void(StrictObject& row)>& use);

}  // namespace shakedown::judge

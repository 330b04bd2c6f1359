// JSON that is read strictly: what people write (boards, limits, references), of which a key that
// nothing reads is an error, and the metric lines of records. Every error names file, row and key.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
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
  std::vector<int> ranks(const char* key);
  std::optional<double> number(const char* key);  // none for null, too
  std::optional<bool> flag(const char* key);
  /// The place of the text among `names`; 0 where it is absent.
  std::size_t choice(const char* key, std::span<const char* const> names, bool needed = false);
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
  template <class T>
  std::vector<T> list(const char* key, bool needed, const char* allowed);
  const Json& json_;
  std::string where_;
  std::set<std::string> read_;
};

/// Calls `use` for each object of `list`, and checks that all its keys were read. Errors name
/// "file: kind 3 the value of `key`".
void for_rows(const Json& list, const std::string& file, const char* kind, const char* key,
              const std::function<void(StrictObject& row)>& use);

}  // namespace shakedown::judge

#include "common/judge/strict_json.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "common/usage_error.hpp"

namespace shakedown::judge {

std::string text_of_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  in.peek();  // a folder can be opened
  if (!in.is_open() || in.bad())
    throw UsageError(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  in.clear();  // an empty file
  return {std::istreambuf_iterator<char>(in), {}};
}

Json parsed(const std::string& text, const std::string& file) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw UsageError(fmt::format("{}: no JSON: byte {}", file, error.byte));
  } catch (const Json::out_of_range&) {
    throw UsageError(fmt::format("{}: a number is too large", file));
  }
}

StrictObject::StrictObject(const Json& json, std::string where)
    : json_(json), where_(std::move(where)) {
  if (!json.is_object()) refuse("an object is allowed");
}

void StrictObject::refuse(const std::string& what) const {
  throw UsageError(fmt::format("{}: {}", where_, what));
}

const Json* StrictObject::value(const char* key, bool needed) {
  read_.insert(key);
  const auto found = json_.find(key);
  if (found != json_.end()) return &*found;
  if (needed) refuse(fmt::format("{} is missing", key));
  return nullptr;
}

std::string StrictObject::text(const char* key, bool needed) {
  const Json* found = value(key, needed);
  if (found == nullptr) return "";
  if (!found->is_string()) refuse(fmt::format("{}: a text is allowed", key));
  if (needed && found->get<std::string>().empty()) refuse(fmt::format("{} is empty", key));
  return found->get<std::string>();
}

std::size_t StrictObject::choice(const char* key, std::span<const char* const> names, bool needed) {
  const std::string word = text(key, needed);
  if (word.empty()) return 0;
  const auto found = std::ranges::find(names, word);
  if (found == names.end())
    refuse(fmt::format("{}: {} is not one of {}", key, word, fmt::join(names, ", ")));
  return static_cast<std::size_t>(found - names.begin());
}

template <class T>
std::vector<T> StrictObject::list(const char* key, bool needed, const char* allowed) {
  const Json* found = value(key, needed);
  if (found == nullptr) return {};
  try {
    return found->get<std::vector<T>>();
  } catch (const Json::exception&) {
    refuse(fmt::format("{}: {} is allowed", key, allowed));
  }
}

std::vector<std::string> StrictObject::texts(const char* key, bool needed) {
  std::vector<std::string> all = list<std::string>(key, needed, "a list of texts");
  if (needed && all.empty()) refuse(fmt::format("{} is empty", key));
  return all;
}

std::vector<int> StrictObject::ranks(const char* key) {
  return list<int>(key, false, "a list of ranks");
}

std::optional<double> StrictObject::number(const char* key) {
  const Json* found = value(key, false);
  if (found == nullptr || found->is_null()) return std::nullopt;
  if (!found->is_number()) refuse(fmt::format("{}: a number is allowed", key));
  return found->get<double>();
}

std::optional<bool> StrictObject::flag(const char* key) {
  const Json* found = value(key, false);
  if (found == nullptr) return std::nullopt;
  if (!found->is_boolean()) refuse(fmt::format("{}: true or false is allowed", key));
  return found->get<bool>();
}

const Json* StrictObject::object(const char* key) {
  const Json* found = value(key, false);
  if (found != nullptr && !found->is_object()) refuse(fmt::format("{}: an object is allowed", key));
  return found;
}

const Json& StrictObject::array(const char* key) {
  const Json* found = value(key, true);
  if (!found->is_array()) refuse(fmt::format("{}: a list is allowed", key));
  return *found;
}

std::map<std::string, std::string> StrictObject::words(const char* key) {
  std::map<std::string, std::string> all;
  if (const Json* found = object(key); found != nullptr)
    for (const auto& [name, each] : found->items()) {
      if (each.is_structured() || each.is_null())
        refuse(fmt::format("{}: {}: a text, a number, true or false is allowed", key, name));
      all[name] = each.is_string() ? each.get<std::string>() : json_text(each);
    }
  return all;
}

std::map<std::string, double> StrictObject::numbers(const char* key) {
  std::map<std::string, double> all;
  if (const Json* found = object(key); found != nullptr)
    for (const auto& [name, each] : found->items()) {
      if (!each.is_number()) refuse(fmt::format("{}: {}: a number is allowed", key, name));
      all[name] = each.get<double>();
    }
  return all;
}

void StrictObject::done() const {
  for (const auto& item : json_.items())
    if (!read_.contains(item.key()))
      refuse(fmt::format("unknown key {}: {} are allowed", item.key(), fmt::join(read_, ", ")));
}

void for_rows(const Json& list, const std::string& file, const char* kind, const char* key,
              const std::function<void(StrictObject& row)>& use) {
  std::size_t number = 0;
  for (const Json& each : list) {
    const Json name = each.is_object() ? each.value(key, Json()) : Json();
    const Json& first = name.is_array() && !name.empty() ? name.front() : name;
    StrictObject row(each, fmt::format("{}: {} {}{}", file, kind, ++number,
                                       first.is_null() ? "" : " " + json_text(first)));
    use(row);
    row.done();
  }
}

}  // namespace shakedown::judge

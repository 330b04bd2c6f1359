#include "launch/node/soak/gathering.hpp"

#include <nlohmann/json.hpp>

#include "common/record.hpp"

namespace shakedown::node {
namespace {

Json to_json(const Mismatch& mismatch) {
  Json json{{"load", mismatch.load},     {"operation", mismatch.operation},
            {"where", mismatch.where},   {"outcome", static_cast<int>(mismatch.outcome)},
            {"cause", mismatch.cause},   {"action", mismatch.action},
            {"of_all", mismatch.of_all}, {"replay", mismatch.replay}};
  const auto add = [&](const char* key, const auto& value) {
    if (value) json[key] = *value;
  };
  add("index", mismatch.index);
  add("expected", mismatch.expected);
  add("found", mismatch.found);
  add("sm", mismatch.sm);
  add("reproduced", mismatch.reproduced);
  add("repeats", mismatch.repeats);
  if (mismatch.class_) json["class"] = static_cast<int>(*mismatch.class_);
  return json;
}

template <class T>
std::optional<T> optional_of(const Json& json, const char* key) {
  return json.contains(key) ? std::optional(json[key].get<T>()) : std::nullopt;
}

Mismatch mismatch_of(const Json& json) {
  Mismatch mismatch;
  mismatch.load = json["load"];
  mismatch.operation = json["operation"];
  mismatch.where = json["where"];
  mismatch.outcome = static_cast<Outcome>(json["outcome"].get<int>());
  mismatch.cause = json["cause"];
  mismatch.action = json["action"];
  mismatch.of_all = json["of_all"];
  mismatch.replay = json["replay"];
  mismatch.index = optional_of<std::uint64_t>(json, "index");
  mismatch.expected = optional_of<std::uint64_t>(json, "expected");
  mismatch.found = optional_of<std::uint64_t>(json, "found");
  mismatch.sm = optional_of<int>(json, "sm");
  mismatch.reproduced = optional_of<int>(json, "reproduced");
  mismatch.repeats = optional_of<int>(json, "repeats");
  mismatch.class_ = std::nullopt;
  if (json.contains("class")) mismatch.class_ = static_cast<Class>(json["class"].get<int>());
  return mismatch;
}

}  // namespace

std::vector<std::vector<Mismatch>> gather(const MpiSession& session,
                                          const std::vector<Mismatch>& found) {
  Json mine = Json::array();
  for (const Mismatch& mismatch : found) mine.push_back(to_json(mismatch));
  std::vector<std::vector<Mismatch>> by_rank;
  for (const std::string& text : session.all_gather(json_text(mine))) {
    by_rank.emplace_back();
    for (const Json& json : Json::parse(text)) by_rank.back().push_back(mismatch_of(json));
  }
  return by_rank;
}

std::vector<std::optional<std::vector<KernelEvent>>> gather(
    const MpiSession& session, const std::optional<std::vector<KernelEvent>>& events) {
  Json mine;  // null: unknown
  if (events) {
    mine = Json::array();
    for (const KernelEvent& event : *events) mine.push_back(to_json(event));
  }
  std::vector<std::optional<std::vector<KernelEvent>>> by_rank;
  for (const std::string& text : session.all_gather(json_text(mine))) {
    const Json json = Json::parse(text);
    by_rank.emplace_back();
    if (json.is_null()) continue;
    by_rank.back().emplace();
    for (const Json& event : json) by_rank.back()->push_back(kernel_event_of(event));
  }
  return by_rank;
}

}  // namespace shakedown::node

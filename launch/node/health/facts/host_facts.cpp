#include "launch/node/health/facts/host_facts.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/detached.hpp"

namespace shakedown::node {
namespace {

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

/// Null where the reading failed: a file had other contents than any kernel writes.
Json value_of(std::future<Json>& read) {
  try {
    return read.get();
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace

const std::string* FactSource::variable(const std::string& name) const {
  const auto found = environment.find(name);
  return found == environment.end() ? nullptr : &found->second;
}

std::string FactSource::line_of(const std::string& path) const {
  std::ifstream in(root + path);
  std::string line;
  std::getline(in, line);
  return trimmed(line);
}

std::vector<std::string> FactSource::lines_of(const std::string& path) const {
  std::ifstream in(root + path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> FactSource::names_in(const std::string& folder) const {
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator at(root + folder, error), end; !error && at != end;
       at.increment(error))
    names.push_back(at->path().filename());
  std::ranges::sort(names);
  return names;
}

FactSource facts_here(const std::string& root) {
  FactSource source{root, {}};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (const auto equals = text.find('='); equals != std::string::npos)
      source.environment[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return source;
}

std::vector<Fact> all_facts() {
  std::vector<Fact> all;
  for (const auto& group : {system_facts(), storage_facts(), bus_facts(), network_facts(),
                            software_facts(), nccl_facts()})
    all.insert(all.end(), group.begin(), group.end());
  return all;
}

Json read_facts(const FactSource& source, double deadline_s, const std::vector<Fact>& facts) {
  std::vector<std::future<Json>> reads;
  for (const Fact& fact : facts)
    reads.push_back(start_detached<Json>([source, fact] { return fact.read(source); }));
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(deadline_s);
  Json read = Json::object();
  for (std::size_t i = 0; i < facts.size(); ++i) {
    if (reads[i].wait_until(end) != std::future_status::ready) {
      read["stalled"].push_back(facts[i].name);
      continue;
    }
    if (const Json value = value_of(reads[i]); !value.is_null()) read[facts[i].name] = value;
  }
  return read;
}

}  // namespace shakedown::node

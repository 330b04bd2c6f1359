// The file system of a host as a test makes it up, and what the rules make of it.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "launch/node/health/rules/host_rules.hpp"

namespace shakedown::node {

/// A root folder that ends with the test.
class Tree {
 public:
  Tree() {
    std::string name = std::filesystem::temp_directory_path() / "shakedown_facts_XXXXXX";
    root_ = mkdtemp(name.data());
  }
  ~Tree() { std::filesystem::remove_all(root_); }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

inline MaybeOutcome outcome_of(const Json& facts, const std::string& rule) {
  std::vector<Judgement> judgements;
  for (const HostRule& each : host_rules())
    if (each.name == rule) judgements = each.judge(facts);
  return worst(judgements).outcome;
}

}  // namespace shakedown::node

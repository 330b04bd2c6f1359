// Which GPU and how many threads each rank uses, which node it is on, and the errors where ranks,
// GPUs and machines do not fit together: placement.txt has the cases.
#include "common/placement.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <sstream>

#include "common/usage_error.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/files.hpp"
#include "tests/support/transcript.hpp"

namespace shakedown {
namespace {

Texts split(const std::string& text, char by) {
  Texts parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, by);) parts.push_back(part);
  return parts;
}

/// "n1:G0,G1", of a rank that sees none "n1::driver too old" or "n1:::SLURM_GPUS=2".
RankView view_of(const std::string& word) {
  Texts parts = split(word, ':');
  parts.resize(4);
  return {parts[0], split(parts[1], ','), parts[2], parts[3]};
}

/// Of "NAME=VALUE" lines.
std::string requested_by(const Texts& lines) {
  std::map<std::string, std::string> environment;
  for (const std::string& line : lines)
    environment[line.substr(0, line.find('='))] = line.substr(line.find('=') + 1);
  return gpu_request([&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

/// "n1:0,1,2": the cores that each rank may use.
std::string threads_of(const Texts& ranks, int requested, long online) {
  Texts hosts, answers;
  std::vector<std::vector<int>> cores;
  for (const std::string& rank : ranks) {
    hosts.push_back(rank.substr(0, rank.find(':')));
    cores.emplace_back();
    for (const std::string& core : split(rank.substr(rank.find(':') + 1), ','))
      cores.back().push_back(std::stoi(core));
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const ThreadChoice choice = choose_threads(hosts, cores, rank, requested, online);
    answers.push_back(fmt::format("{} of {} cores{}", choice.threads, choice.cores, choice.remark));
  }
  return fmt::format("{}", fmt::join(answers, "\n"));
}

/// "n1/1/0": host, boot id and local rank of each.
std::string checked(const Texts& ranks, int requested) {
  Texts hosts, boots;
  std::vector<int> local;
  for (const std::string& rank : ranks) {
    const Texts parts = split(rank, '/');
    hosts.push_back(parts[0]);
    boots.push_back(parts[1]);
    local.push_back(std::stoi(parts[2]));
  }
  check_machines(hosts, boots, local, requested);
  return "as meant";
}

std::string nodes_of(const NodeMap& map) {
  return fmt::format("{}; node of each rank {}; its place there {}; ranks per node {}",
                     fmt::join(map.names, " "), fmt::join(map.node_of, " "),
                     fmt::join(map.local_rank, " "), fmt::join(map.ranks_per_node(), " "));
}

/// Of a case of placement.txt: its first word, arguments, and the lines below it.
std::string placement_of(const std::string& given) {
  Texts lines = split(given, '\n');
  Texts words = split(lines.front(), ' ');
  lines.erase(lines.begin());
  for (std::string& line : lines) line.erase(0, 1);
  const std::string what = words.front();
  words.erase(words.begin());
  std::vector<RankView> views;
  for (const std::string& line : lines) views.push_back(view_of(line));
  if (what == "gpus") return fmt::format("{}", fmt::join(place_on_gpus(views), " "));
  if (what == "backend") return name_of(choose_backend(words[0], views, words.size() == 1));
  if (what == "request") return requested_by(lines);
  if (what == "threads") return threads_of(lines, std::stoi(words[0]), std::stol(words[1]));
  if (what == "machines") return checked(lines, std::stoi(words[0]));
  if (what == "nodes") return nodes_of(map_nodes(words));
  if (what == "pretended") return nodes_of(map_nodes(lines, std::stoi(words[0])));
  const test::Variable hosts("SHAKEDOWN_HOSTS", words.empty() ? "" : words[0]);
  return std::to_string(requested_hosts());
}

}  // namespace

TEST_CASE("ranks, GPUs, cores, nodes and machines", "[placement][nodes][closed]") {
  test::check_transcript("tests/common/placement.txt", [](const std::string& given) {
    try {
      return placement_of(given);
    } catch (const Error& error) {
      return fmt::format("{}: {}", static_cast<int>(error.code()), error.what());
    }
  });
  CHECK(requested_by({"CUDA_VISIBLE_DEVICES= ", "SLURM_JOB_GPUS=0"}).empty());
  unsetenv("SHAKEDOWN_HOSTS");
  CHECK(requested_hosts() == 0);
}

}  // namespace shakedown

// What is read of a host, from made-up trees, and what the rules make of it.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "launch/node/health/check/check.hpp"
#include "launch/node/health/facts/host_facts.hpp"
#include "launch/node/health/rules/rules.hpp"
#include "tests/catch.hpp"
#include "tests/node/made_up.hpp"
#include "tests/support/transcript.hpp"

namespace shakedown::node {
namespace {

/// \n, \t and \0 are what they are; "@redirecting" the configuration of a bridge with access
/// control.
std::string content_of(const std::string& text) {
  if (text == "@redirecting") {
    std::string config(4096, '\0');
    config[0x100] = 0x01, config[0x103] = 0x14;  // another capability, the next at 0x140
    config[0x140] = 0x0d, config[0x146] = 0x1d;  // access control: redirects
    return config;
  }
  const std::map<char, char> special{{'n', '\n'}, {'t', '\t'}, {'0', '\0'}};
  std::string content;
  for (std::size_t i = 0; i < text.size(); ++i)
    content += text[i] == '\\' ? special.at(text[++i]) : text[i];
  return content;
}

/// Of "facts NAME..." or "rules NAME...", then lines "/FILE CONTENT" (executable as #!...),
/// "/LINK -> NAME" and "VARIABLE=VALUE": these facts and what these rules find, or all facts and
/// what does not pass.
std::string answer_of(const std::string& given) {
  std::istringstream in(given), words;
  std::string line;
  std::getline(in, line);
  words.str(line);
  std::set<std::string> wanted;
  for (std::string word; words >> word;) wanted.insert(word);
  const bool all = wanted.size() == 1;
  const Tree tree;
  FactSource source{tree.path, {}};
  while (std::getline(in >> std::ws, line)) {
    const std::string path = line.substr(0, line.find(' '));
    const std::string text = path.size() < line.size() ? line.substr(path.size() + 1) : "";
    if (path[0] != '/')
      source.environment[line.substr(0, line.find('='))] = line.substr(line.find('=') + 1);
    else if (text.starts_with("-> ")) {
      const std::filesystem::path link = tree.path + path;
      std::filesystem::create_directories(link.parent_path());
      std::filesystem::create_symlink(text.substr(3), link);
    } else
      tree.write(path, content_of(text));
    if (text.starts_with("#!")) chmod((tree.path + path).c_str(), 0700);
  }
  Json facts = read_facts(source, 20);
  for (const char* of_this_machine : {"current_folder", "libraries", "revision"})
    facts.erase(of_this_machine);
  std::string answer;
  for (auto& [key, value] : facts.items()) {
    if (!all && !wanted.contains(key)) continue;
    if (key == "shm")
      for (const char* size : {"total_bytes", "free_bytes", "inodes", "free_inodes"})
        value.erase(size);  // this machine's
    answer += key + ": " + value.dump() + "\n";
  }
  for (const HostRule& rule : host_rules())
    if (all || wanted.contains(rule.name))
      for (const Judgement& judgement : rule.judge(facts))
        if (!all || judgement.outcome == Outcome::warn || judgement.outcome == Outcome::fail)
          answer += std::string(rule.name) + ": " + line_of(judgement) + "\n";
  return answer.empty() ? "nothing" : answer;
}

int passes() { return 0; }
int stops() {
  std::raise(SIGSTOP);
  return 0;
}

}  // namespace

TEST_CASE("facts are read from the kernel's files, and sick ones found", "[node][facts][closed]") {
  test::check_transcript("tests/node/facts.txt", answer_of);
}

TEST_CASE("nothing readable passes no rule of the host", "[node][facts][closed]") {
  const Json nothing = Json::object();
  for (const HostRule& rule : host_rules()) {
    INFO(rule.name);
    if (rule.name != std::string("host-stall"))
      CHECK(worst(rule.judge(nothing)).outcome == Outcome::unknown);
  }
}

TEST_CASE("CHS: a file that cannot be read in time fails, others are read",
          "[node][facts][closed]") {
  const Tree tree;
  tree.write("/proc/sys/kernel/osrelease", "6.1.0-test\n");
  std::filesystem::create_directories(tree.path + "/etc");
  REQUIRE(mkfifo((tree.path + "/etc/os-release").c_str(), 0600) == 0);  // opening it blocks
  const Json facts = read_facts({tree.path, {}}, 1);
  CHECK(facts.at("stalled") == Json{"os"});
  CHECK(facts.at("kernel") == "6.1.0-test");
  CHECK(outcome_of(facts, "host-stall") == Outcome::fail);
  // Lets the reader go.
  tree.write("/etc/os-release", "x");
}

// A check in a process of its own: it ends in time whatever its calls do.

TEST_CASE("the code of a check in its own process is that of the check", "[node][own_process]") {
  CHECK(run_in_own_process(20, passes).code == 0);
  CHECK(run_in_own_process(20, [] { return 3; }).code == 3);
  CHECK(run_in_own_process(20, []() -> int { std::_Exit(5); }).code == 5);
}

TEST_CASE("a check that cannot end or that dies is no pass", "[node][own_process][closed]") {
  const auto start = std::chrono::steady_clock::now();
  // As a process in uninterruptible sleep: it makes no step more.
  const Ended stopped = run_in_own_process(0.2, stops);
  CHECK_FALSE(stopped.code);
  CHECK(stopped.why == "it did not end within 0.2 s");
  const Ended died = run_in_own_process(20, [] {
    std::signal(SIGUSR2, SIG_DFL);
    std::raise(SIGUSR2);
    return 0;
  });
  CHECK_FALSE(died.code);
  CHECK(died.why == "it died of signal " + std::to_string(SIGUSR2));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("a check that hangs is reported by later ones", "[node][own_process][closed]") {
  const Tree tree;
  const std::string note = tree.path + "/note";
  CHECK(run_in_own_process(0.2, stops, note).why == "it did not end within 0.2 s");
  CHECK(run_in_own_process(20, passes, note).code == 0);  // SIGKILL has ended that one
  // This process, in the place of one that it cannot end.
  note_left_over(note, getpid());
  const Ended recent = run_in_own_process(20, passes, note);
  CHECK_FALSE(recent.code);
  CHECK_FALSE(recent.hangs);
  CHECK_THAT(recent.why, ContainsSubstring(fmt::format("pid {}", getpid())) &&
                             ContainsSubstring("no other was started"));
  std::string pid, started;
  REQUIRE(std::ifstream(note) >> pid >> started);
  const auto noted = [&](const std::string& since, long long killed) {
    std::ofstream(note) << fmt::format("{} {} {}\n", pid, since, killed);
    return run_in_own_process(20, passes, note);
  };
  const std::chrono::duration<double> up = std::chrono::steady_clock::now().time_since_epoch();
  CHECK(noted(started, std::llround(up.count()) - 100).hangs);
  CHECK_FALSE(noted(started, std::llround(up.count()) - 9).hangs);
  CHECK(noted("1", 0).code == 0);  // another process has the number now
  std::ofstream(note) << "nonsense";
  CHECK(run_in_own_process(20, passes, note).code == 0);
}

}  // namespace shakedown::node

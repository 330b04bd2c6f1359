// What the kernel's messages say of GPUs and NVSwitches, in every form in which drivers write it.
#include "launch/node/health/facts/kernel_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <random>
#include <sstream>

#include "launch/node/health/rules/rules.hpp"
#include "tests/catch.hpp"
#include "tests/node/made_up.hpp"
#include "tests/support/transcript.hpp"

namespace shakedown::node {
namespace {

using enum Outcome;

std::optional<KernelLog> log_of(const std::string& messages, double uptime_s = 100) {
  const Tree tree;
  tree.write("/kmsg", messages);
  return read_kernel_log(tree.path + "/kmsg", uptime_s);
}

std::string message(const std::string& text, int level = 4) {
  return fmt::format("{},7,90000000,-;{}\n", level, text);
}
/// The lines of kernel_log.txt as the kernel's messages: from the boot on, but where they are raw.
std::string messages_of(std::istream& lines) {
  std::string messages = "6,0,0,-;Linux version 6\n SUBSYSTEM=pci\n";
  for (std::string line; std::getline(lines >> std::ws, line);) {
    const bool is_raw = line.starts_with("raw ");
    if (is_raw && messages.starts_with("6,0,0,-;Linux version 6\n SUB")) messages.clear();
    if (is_raw)
      messages += line.substr(4) + "\n";
    else
      messages += line[0] == '<' ? message(line.substr(4), line[1] - '0') : message(line);
  }
  return messages;
}

std::string xid(const std::string& text, const std::string& device = "PCI:0000:18:00") {
  return message("NVRM: Xid (" + device + "): " + text);
}
KernelEvent xid_74(double age_s, const char* device, const char* text) {
  return {age_s, KernelEventKind::xid, device, 74, text};
}

}  // namespace

TEST_CASE("what is found in the kernel's messages", "[node][kernel_log][closed]") {
  test::check_transcript("tests/node/kernel_log.txt", [](const std::string& given) {
    std::istringstream lines(given);
    std::string word;
    double uptime_s = 0;
    lines >> word >> uptime_s;
    const auto log = log_of(messages_of(lines), uptime_s);
    REQUIRE(log);
    std::string found;
    for (const Judgement& judgement : found_by_rule({{kKernelLogFact, *log}}, kKernelLog))
      found += line_of(judgement) + "\n";
    return found;
  });
}

TEST_CASE("in a soak nothing cures, and the window is the user's", "[node][kernel_log]") {
  const auto log = log_of(xid("48, DBE") +
                          xid("154, GPU recovery action changed from 0x1 (Reset) to 0x0 (None)"));
  CHECK(worst(judge_kernel_events(log->events)).outcome == fail);
  const Json facts{{kKernelLogFact, Json(*log_of("6,900000,1000000000,-;audit\n", 1300))}};
  CHECK(outcome_of(facts, kKernelLog) == unknown);
  CHECK(worst(found_by_rule(facts, kKernelLog, 0.05)).outcome == pass);  // which it covers
}

TEST_CASE("messages that cannot be read are unknown, not clean", "[node][kernel_log][closed]") {
  CHECK_FALSE(read_kernel_log("/nonexistent/kmsg", 1));
  CHECK_FALSE(log_of("no message of a kernel\n"));
  CHECK(outcome_of(Json::object(), "kernel-log") == unknown);
  CHECK(outcome_of({{kKernelLogFact, Json(KernelLog{})}}, "kernel-log") == pass);
}

TEST_CASE("an XID that repeats is one line; the window says what fails", "[node][kernel_log]") {
  std::vector<KernelEvent> events(300, xid_74(50 * 3600, "0000:18:00", "Link 3"));
  events.push_back(xid_74(30, "0000:19:00", "Link 5"));
  auto judgements = judge_kernel_events(events, 24);
  REQUIRE(judgements.size() == 2);
  CHECK(judgements[0].outcome == warn);
  CHECK(judgements[0].cause ==
        "XID 74 (NVLink error) of 0000:18:00, 300 times, last 2 days ago: Link 3");
  CHECK(judgements[1].outcome == fail);
  CHECK(judgements[1].cause == "XID 74 (NVLink error) of 0000:19:00, 30 s ago: Link 5");
  judgements = judge_kernel_events(events, 60);
  CHECK(judgements[0].outcome == fail);
}

TEST_CASE("messages at random: none crashes, no XID is skipped", "[node][kernel_log][closed]") {
  const std::string seeds[] = {
      xid("79, pid=1, GPU has fallen off the bus."),
      xid("95, Uncontained", "PCI:0000:3b:00 GPU-I:05 GPU-CI:02"),
      message("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30"),
      message("NVRM: GPU 0000:05:00.0: RmInitAdapter failed! (0x24:0x72:1447)", 3)};
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string line = seeds[random() % std::size(seeds)];
    for (unsigned changes = random() % 4; changes > 0; --changes) {
      const std::size_t at = 15 + random() % (line.size() - 15);
      const auto byte = static_cast<char>(random() % 256);
      switch (random() % 4) {
        case 0: line[at] = byte; break;
        case 1: line.insert(at, random() % 20 == 0 ? 100000 : 1, byte); break;
        case 2: line.erase(at, random() % 8); break;
        case 3: line.resize(at); break;
      }
      if (line.size() < 17) line.resize(17, ' ');
    }
    std::string small = line.substr(0, line.find('\n'));
    std::ranges::transform(small, small.begin(), [](unsigned char c) { return std::tolower(c); });
    const auto log = log_of("6,0,0,-;Linux\n" + line);
    REQUIRE(log);
    if (small.find("xid (") != small.npos) CHECK_FALSE(log->events.empty());
    for (const KernelEvent& event : log->events) CHECK(event.text.size() <= 1000);
    for (const Judgement& judgement : judge_kernel_events(log->events))
      CHECK_FALSE(judgement.cause.empty());
    Json(*log).dump(-1, ' ', false, Json::error_handler_t::replace);
  }
}

TEST_CASE("a watch of the kernel's messages has the GPU's new events alone", "[node][kernel_log]") {
  const Tree tree;
  tree.write("/proc/uptime", "100.0 1.0");
  KernelWatch watch("0000:1B:00.0", tree.path);
  CHECK(!watch.events());
  const auto line = [](int second, const std::string& device) {  // a message a second
    return fmt::format("4,{0},{0}000000,-;NVRM: Xid (PCI:{1}): 48, DBE\n", second, device);
  };
  tree.write("/proc/uptime", "120.0 1.0");
  tree.write("/dev/kmsg",
             line(99, "0000:1b:00") + line(110, "0000:1b:00") + line(111, "0000:1c:00"));
  const auto events = watch.events();
  REQUIRE(events);
  REQUIRE(events->size() == 1);
  CHECK(events->front().age_s == Approx(10));
  CHECK(watch.events()->empty());
  const auto other = [](int second) { return fmt::format("6,{0},{0}000000,-;audit\n", second); };
  tree.write("/dev/kmsg", other(112) + line(113, "0000:1b:00 GPU-I:05"));
  REQUIRE(watch.events());
  tree.write("/dev/kmsg", other(114));
  CHECK(watch.events());
  tree.write("/dev/kmsg", other(116));  // number 115 was overwritten
  CHECK_FALSE(watch.events());
  tree.write("/dev/kmsg", other(118) + line(119, "0000:1b:00"));  // and 117, but this one was kept
  REQUIRE(watch.events());
  tree.write("/dev/kmsg",
             other(119) + "3,120,120000000,-;NVRM: GPU at 0000:1b:00.0 has fallen off the bus\n");
  CHECK(watch.events()->size() == 1);
  CHECK(same_pci_device("0000:1b:00", "00000000:1B:00.0"));
  CHECK_FALSE(same_pci_device("", ""));
}

}  // namespace shakedown::node

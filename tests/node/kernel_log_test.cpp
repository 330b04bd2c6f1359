// What the kernel's messages say of GPUs and NVSwitches, in every form in which drivers write it.
#include "launch/node/health/facts/kernel_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <random>

#include "launch/node/health/facts/at_work.hpp"
#include "launch/node/health/rules/host_rules.hpp"
#include "tests/catch.hpp"
#include "tests/node/made_up.hpp"

namespace shakedown::node {
namespace {

using enum Outcome;

std::optional<KernelLog> log_of(const std::string& messages, double uptime_s = 100) {
  const Tree tree;
  tree.write("/kmsg", messages);
  return read_kernel_log(tree.path + "/kmsg", uptime_s);
}

/// What bin/node_check says of a kernel whose messages, from the boot on, end with these.
MaybeOutcome outcome(const std::string& messages, double uptime_s = 100) {
  const auto log = log_of("6,0,0,-;Linux version 6\n SUBSYSTEM=pci\n" + messages, uptime_s);
  REQUIRE(log);
  return outcome_of({{kKernelLogFact, to_json(*log)}}, "kernel-log");
}

std::string message(const std::string& text, int level = 4) {
  return fmt::format("{},7,90000000,-;{}\n", level, text);
}
std::string xid(const std::string& text, const std::string& device = "PCI:0000:18:00") {
  return message("NVRM: Xid (" + device + "): " + text);
}
KernelEvent xid_74(double age_s, const char* device, const char* text) {
  return {age_s, KernelEventKind::xid, device, 74, text};
}

}  // namespace

TEST_CASE("XIDs: fatal ones fail, an application's do not", "[node][kernel_log]") {
  CHECK(outcome("") == pass);
  CHECK(outcome(xid("79, pid='<unknown>', GPU has fallen off the bus.")) == fail);
  CHECK(outcome(xid("48, pid=1, Double Bit ECC Error")) == fail);
  CHECK(outcome(xid("63, Row Remapper: New row marked")) == warn);
  CHECK(outcome(xid("13, pid=1, Graphics Exception")) == pass);
  CHECK(outcome(xid("31, pid=1, MMU Fault")) == pass);
  CHECK(outcome(xid("43, pid=1, Ch 00000008")) == pass);
  CHECK(outcome(xid("45, pid=1, Ch 00000008")) == pass);  // 8,000 per healthy node
  CHECK(outcome(xid("62, caused by previous Xid 79")) == pass);
  // DCGM called this fatal (NVSentinel#1357).
  CHECK(outcome(xid("145, RLW_REMAP Nonfatal XC0 i0 Link 08")) == warn);
  CHECK(outcome(xid("145, RLW_REMAP Fatal XC0 i0 Link 08")) == fail);
  CHECK(outcome(xid("145, RLW_REMAP XC0 i0 Link 08")) == unknown);
  CHECK(outcome(xid("163, x")) == warn);
  CHECK(outcome(xid("163, x") + xid("162, y")) == pass);  // NVSentinel#1252
  CHECK(outcome(xid("9999, new")) == warn);
  CHECK(outcome(xid("154, no words")) == unknown);
  CHECK(outcome(xid("79, GPU has fallen off the bus."), 90 + 25 * 3600) == warn);  // long ago
  const std::string sxid = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, ";
  CHECK(outcome(message(sxid + "Fatal, Link 30 LTSSM Fault Up")) == fail);
  CHECK(outcome(message(sxid + "Non-fatal, Link 30") +
                message(sxid + "Severity 0 Engine instance 30 Sub-engine instance 00") +
                message(sxid + "Data {0x00000001, 0x00000000}")) == warn);
}

TEST_CASE("a lost GPU without an XID is found by other messages", "[node][kernel_log][closed]") {
  const std::string off =
      "NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: (PCI ID: 10de:2330) "
      "installed in this system has\\x0aNVRM: fallen off the bus and is not "
      "responding to commands.";
  CHECK(outcome(message(off)) == fail);  // NVSentinel#155
  CHECK(log_of(message(off))->events.at(0).pci_id == "0000:b3:00");
  CHECK(outcome(message("NVRM: GPU at 0000:01:00.0 has fallen off the bus.")) == fail);
  CHECK(outcome(message("NVRM: GPU 0000:05:00.0: RmInitAdapter failed! (0x24:0x72:1447)", 3)) ==
        fail);
  CHECK(outcome(message("NVRM: The NVIDIA probe routine failed for 1 device(s).", 3)) == fail);
  CHECK(outcome(message("nvidia 0000:67:00.0: probe with driver nvidia failed with error -1")) ==
        fail);
  CHECK(outcome(message("nvidia: probe of 0000:01:00.0 failed with error -1")) == fail);
  CHECK(outcome(message("NVRM: None of the NVIDIA graphics adapters were initialized!", 3)) ==
        fail);
}

TEST_CASE("XIDs of MIG, and in unknown forms, are not skipped", "[node][kernel_log][closed]") {
  const char* text = "95, pid=7062, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No";
  CHECK(outcome(xid(text, "PCI:0000:3b:00 GPU-I:05")) == fail);
  CHECK(outcome(xid(text, "PCI:0000:3b:00 GPU-I:05 GPU-CI:02")) == fail);
  CHECK(outcome(xid(text, "0000:3b:00")) == fail);  // an old driver's
  const auto log = log_of(xid(text, "PCI:0000:3b:00 GPU-I:05"));
  CHECK(log->events.at(0).pci_id == "0000:3b:00");
  CHECK(log->events.at(0).text.starts_with("GPU-I:05: pid=7062"));
  CHECK(outcome(xid(text, "GPU-5f3a")) == unknown);
  CHECK(outcome(message("NVRM: Xid (PCI:0000:3b:00): ninety-five")) == unknown);
  CHECK(outcome(message("NVRM: Xid (PCI:0000:3b:00")) == unknown);
  CHECK(outcome("NVRM: Xid (PCI:0000:3b:00") == unknown);  // without a header
  CHECK(outcome(message("NVRM: a new kind of error", 3)) == unknown);
  // What is no error, or no message of the driver.
  CHECK(outcome(message("NVRM: nvAssertOkFailedNoLog: Assertion failed", 4)) == pass);
  CHECK(outcome(message("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580", 3)) ==
        pass);
  CHECK(outcome(message("EXT4-fs error: NVRM: fallen off the bus", 3)) == pass);
}

TEST_CASE("what was cured is no fault: advice withdrawn, driver loaded again",
          "[node][kernel_log]") {
  const std::string advice = "154, GPU recovery action changed from 0x0 (None) to ";
  const std::string none = xid("154, GPU recovery action changed from 0x1 (Reset) to 0x0 (None)");
  CHECK(outcome(xid(advice + "0x1 (GPU Reset Required)")) == fail);
  CHECK(outcome(xid(advice + "0x2 (Node Reboot Required)")) == fail);
  CHECK(outcome(xid(advice + "0x1 (GPU Reset Required)") + none) == pass);
  CHECK(outcome(xid("48, DBE") + none) == pass);
  CHECK(outcome(xid("48, DBE", "PCI:0000:18:00 GPU-I:01") + none) == pass);
  CHECK(outcome(xid("48, DBE", "PCI:0000:19:00") + none) == fail);  // of another GPU
  CHECK(outcome(none + xid("48, DBE")) == fail);                    // once more
  CHECK(outcome(xid("48, DBE") + none + xid("48, DBE")) == fail);
  const std::string loading =
      message("nvidia-nvlink: Nvlink Core is being initialized, major device number 236");
  const std::string loaded = message("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.65.06");
  const std::string off = message("NVRM: GPU at 0000:01:00.0 has fallen off the bus.");
  CHECK(outcome(xid("79, GPU has fallen off the bus.") + loading + loaded) == pass);
  CHECK(outcome(off + loading + loaded) == pass);
  // The driver says that it is loading after it has probed its devices.
  CHECK(outcome(loading + off + loaded) == fail);
  // In a soak nothing cures.
  const auto log = log_of(xid("48, DBE") + none);
  CHECK(worst(judge_kernel_events(log->events)).outcome == fail);
}

TEST_CASE("messages that cannot be read are unknown, not clean", "[node][kernel_log][closed]") {
  CHECK_FALSE(read_kernel_log("/nonexistent/kmsg", 1));
  CHECK_FALSE(log_of("no message of a kernel\n"));
  CHECK(outcome_of(Json::object(), "kernel-log") == unknown);
  CHECK(outcome_of({{kKernelLogFact, to_json(KernelLog{})}}, "kernel-log") == pass);
}

TEST_CASE("a ring that does not reach back over the window says so", "[node][kernel_log][closed]") {
  const auto judged = [](const std::string& messages, double uptime_s) {
    return outcome_of({{kKernelLogFact, to_json(*log_of(messages, uptime_s))}}, "kernel-log");
  };
  const std::string recent = "6,900000,1000000000,-;audit\n", first = "6,0,1000000000,-;audit\n";
  CHECK(judged(recent, 1300) == unknown);
  CHECK(judged(first, 1300) == pass);  // nothing was lost
  CHECK(judged(recent, 1000 + 25 * 3600) == pass);
  CHECK(judged(recent + xid("48, DBE"), 1300) == fail);
  const auto log = log_of(recent, 1300);
  Json facts{{kKernelLogFact, to_json(*log)}};
  for (const HostRule& rule : host_rules(0.05))  // a window that it covers
    if (rule.name == std::string(kKernelLog)) CHECK(worst(rule.judge(facts)).outcome == pass);
}

TEST_CASE("an XID names GPU, time and what to do", "[node][kernel_log]") {
  const auto judgements =
      judge_kernel_events({{7200, KernelEventKind::xid, "0000:18:00", 79, "fallen"}});
  REQUIRE(judgements.size() == 1);
  CHECK(judgements[0].cause ==
        "XID 79 (GPU has fallen off the bus) of 0000:18:00, 2.0 h ago: fallen");
  CHECK_THAT(judgements[0].action, ContainsSubstring("reboot"));
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
    to_json(*log).dump(-1, ' ', false, Json::error_handler_t::replace);
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

// The options and the steps of bin/node_check.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

#include "common/backend.hpp"
#include "common/exit_code.hpp"
#include "common/record.hpp"
#include "launch/node/health/facts/node_report.hpp"
#include "launch/node/health/rules/finding.hpp"
#include "launch/node/health/rules/rules.hpp"

namespace shakedown {

class MpiSession;
class OptionSet;

}  // namespace shakedown

namespace shakedown::node {

struct CheckOptions {
  Expected expected;
  bool strict = false;
  bool passive = false;
  double deadline_s = 5;
  std::string record, fault;
  ReportSource source;
  BackendOptions backend;
};
void declare_options(OptionSet& set, CheckOptions& options);

/// Reads and judges all nodes of the job, prints and records what was found; then, where the nodes
/// are fit for it, sums over all ranks while the links are looked at. Collective.
ExitCode check_nodes(const CheckOptions& options, MpiSession& session, Record& record);

/// The same of this host alone, only reading, with a watchdog. Of several processes of a host the
/// first alone looks.
ExitCode check_passively(const CheckOptions& options, Record& record);

// A passive check runs in a process of its own: a call can hang in the kernel, of a driver or of a
// file system whose server is gone, where no signal ends it, and a process does not end before its
// threads.

struct Ended {
  std::optional<int> code;  // none: `why`
  std::string why;          // "it did not end within 5 s", "it died of signal 11"
  bool hangs = false;       // in the kernel: it was killed long ago, and still has not ended
  bool died = false;        // of a signal that is not ours
};
/// Runs `body`, which returns an exit code, in a child process and passes on what it prints. A
/// child that has not ended after `seconds` is killed and left to itself: where it lives on in the
/// kernel, later calls with this `note`, a file in which it is named, report it and start no other.
/// To be called before this process has threads.
Ended run_in_own_process(double seconds, const std::function<int()>& body,
                         const std::string& note = "");

/// Names a process of which SIGKILL was no end in the note.
void note_left_over(const std::string& note, pid_t child);

/// Where that note is: in a folder that nobody but this user can write to; empty: there is none.
std::string note_of_left_over_check();

/// What a passive check comes to that did not end by itself. One that surely hangs is FAIL.
ExitCode conclude_hung(const Ended& ended, Record& record);

/// Whether a launcher itself started this process as another than the first of its host. A process
/// that only inherits the launcher's variables checks.
bool is_another_of_its_host();

}  // namespace shakedown::node

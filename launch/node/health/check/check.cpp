#include "launch/node/health/check/check.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "common/fault.hpp"
#include "common/host_name.hpp"
#include "common/identity.hpp"
#include "common/mpi_session.hpp"
#include "common/program.hpp"
#include "common/watchdog.hpp"
#include "launch/node/health/check/findings_table.hpp"
#include "launch/node/health/check/work.hpp"
#include "launch/node/health/facts/health_record.hpp"
#include "launch/node/health/rules/host_rules.hpp"
#include "launch/node/health/rules/node_rules.hpp"

namespace shakedown::node {
namespace {

// Shares of --deadline: the time by which all is read, and the time at which what is known by then
// is printed.
constexpr double kReading = 0.8, kReporting = 0.95;

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

void write(Record& record, const std::vector<NodeReport>& reports) {
  for (const NodeReport& report : reports)
    for (const GpuReading& gpu : report.gpus.gpus)
      record.write("health", health_record(report.host, utc_now(), report.reading_ms, gpu));
}
void write(Record& record, const std::vector<Finding>& findings) {
  for (const Finding& finding : findings)
    if (finding.outcome > Outcome::pass) record.write("verdict", record_of(finding));
}

ExitCode conclude(const std::vector<Finding>& findings, bool strict, Record& record) {
  const Verdict job = verdict_of_job(findings, strict);
  record.write("verdict", record_of(job));
  print(line_of(job) + "\n");
  return exit_code_of(job.outcome);
}

/// The checks without which ranks, which depend on one another, would wait for a node in vain.
std::vector<std::string> unfit_for_work(const std::vector<Finding>& findings) {
  constexpr const char* kNeeded[] = {"gpu-count",    "management",       "management-stall",
                                     "driver",       "management-error", "compute-mode",
                                     "nvlink-fabric"};
  std::set<std::string> failed;
  for (const Finding& finding : findings)
    if ((finding.outcome == Outcome::fail || finding.outcome == Outcome::inconclusive) &&
        std::ranges::find(kNeeded, finding.check) != std::end(kNeeded))
      failed.insert(finding.check);
  return {failed.begin(), failed.end()};
}

void stall(std::vector<NodeReport>& reports, const std::string& host) {
  for (NodeReport& report : reports) {
    if (report.host != host) continue;
    const std::string call = "a call that was injected";
    auto& stalled = report.gpus.gpus.empty() ? report.gpus.stalled : report.gpus.gpus[0].stalled;
    stalled.push_back(call);
    if (report.gpus.gpus.empty()) report.gpus.problem = call + " did not return";
  }
}

/// Shared with the watchdog's thread, which prints them while another hangs.
class FindingsSoFar {
 public:
  void add(const std::vector<Finding>& more) {
    const std::lock_guard lock(mutex_);
    findings_.insert(findings_.end(), more.begin(), more.end());
  }
  std::vector<Finding> all() const {
    const std::lock_guard lock(mutex_);
    return findings_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Finding> findings_;
};

/// The findings of the work, or why there was none.
std::vector<Finding> work(const CheckOptions& options, MpiSession& session,
                          const std::vector<NodeReport>& reports,
                          const std::vector<Finding>& findings, bool corrupts, Record& record) {
  const auto not_done = [](const std::string& why) {
    return finding_of("all-reduce", not_known(why), Scope::job, "node_check");
  };
  if (!options.source.readings.empty()) return {not_done("not run: the readings are of a file")};
  if (const auto failed = unfit_for_work(findings); !failed.empty())
    return {
        not_done(fmt::format("not run: its ranks would hang, as {} did not pass", listed(failed)))};
  std::vector<Finding> found;
  try {
    look_at_work(options, session, reports, corrupts, found);
    return found;
  } catch (const TimeoutError& error) {
    found.push_back(not_done(
        fmt::format("the sum over {} ranks did not end: {}", session.world_size(), error.what())));
    if (session.is_root()) {
      print(findings_table(found));
      write(record, found);
    }
    if (count(findings).fail + count(found).fail > 0) throw FailError(error.what());
    throw;
  }
}

}  // namespace

ExitCode check_nodes(const CheckOptions& options, MpiSession& session, Record& record) {
  const auto fault =
      parse_fault(options.fault, {FaultKind::stall, FaultKind::collective}, session.world_size());
  if (fault) say(session, line_of(*fault));
  ReportSource source = options.source;
  source.inforom = true;
  auto reports = gather_reports(session, source);
  read_clocks(session, reports);
  if (fault && fault->kind == FaultKind::stall)
    stall(reports, session.hosts()[static_cast<std::size_t>(fault->rank)]);
  auto findings = judge_nodes(reports, options.expected);
  std::ranges::move(judge_inforoms(reports), std::back_inserter(findings));
  if (session.is_root()) {
    print(findings_table(findings));
    write(record, reports);
    write(record, findings);
  }

  const bool corrupts =
      fault && fault->kind == FaultKind::collective && fault->rank == session.rank();
  const auto at_work = work(options, session, reports, findings, corrupts, record);
  findings.insert(findings.end(), at_work.begin(), at_work.end());
  if (!session.is_root()) return exit_code_of(verdict_of_job(findings, options.strict).outcome);
  print(findings_table(at_work));
  write(record, at_work);
  return conclude(findings, options.strict, record);
}

ExitCode check_passively(const CheckOptions& options, Record& record) {
  const std::string host = host_name();
  FindingsSoFar known;
  const Watchdog watchdog(kReporting * options.deadline_s, [&] {
    const Finding late = finding_of(
        "deadline",
        not_known(
            fmt::format("the check did not end within {:g} s (--deadline)", options.deadline_s),
            kHangs),
        Scope::job, "node_check");
    known.add({late});
    print(findings_table(known.all()));
    record.write("verdict", record_of(late));
  });
  const auto fault = parse_fault(options.fault, {FaultKind::stall}, 1);
  if (fault) print(line_of(*fault) + "\n");
  ReportSource source = options.source;
  source.call_s = source.whole_s = kReading * options.deadline_s;
  source.facts_s = std::min(source.facts_s, kReading * options.deadline_s);
  std::vector<NodeReport> reports{read_node(host, source, [&](const Json& facts) {
    known.add(judge_host(host, facts, options.expected.xid_window_h));
  })};
  if (fault) stall(reports, host);
  Expected expected = options.expected;
  expected.uses_gpus = false;
  const auto findings = judge_nodes(reports, expected);
  print(findings_table(findings));
  write(record, reports);
  write(record, findings);
  return conclude(findings, options.strict, record);
}

bool is_another_of_its_host() {
  const auto is_not_first = [](const char* variable) {
    const char* const rank = std::getenv(variable);
    return rank != nullptr && std::strcmp(rank, "0") != 0;
  };
  if (is_not_first("SLURM_LOCALID")) {
    const char* const task = std::getenv("SLURM_TASK_PID");
    return task != nullptr && std::atoi(task) == getpid();
  }
  if (!is_not_first("OMPI_COMM_WORLD_LOCAL_RANK") && !is_not_first("MPI_LOCALRANKID")) return false;
  std::ifstream in(fmt::format("/proc/{}/comm", getppid()));
  std::string parent;
  std::getline(in, parent);
  constexpr const char* kLaunchers[] = {"mpirun", "mpiexec",       "orted",          "prterun",
                                        "prted",  "mpiexec.hydra", "hydra_pmi_proxy"};
  return std::ranges::find(kLaunchers, parent) != std::end(kLaunchers);
}

}  // namespace shakedown::node

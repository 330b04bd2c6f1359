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
#include <vector>

#include "common/error.hpp"
#include "common/host.hpp"
#include "common/identity.hpp"
#include "common/mpi_session.hpp"
#include "common/options.hpp"
#include "common/program.hpp"
#include "common/watch.hpp"
#include "launch/node/health/facts/gpu_reading.hpp"
#include "launch/node/health/facts/host_facts.hpp"
#include "launch/node/health/facts/node_report.hpp"
#include "launch/node/health/rules/finding.hpp"
#include "launch/node/health/rules/rules.hpp"

namespace shakedown::node {
namespace {

// Shares of --deadline: the time by which all is read, and the time at which what is known by then
// is printed.
constexpr double kReading = 0.8, kReporting = 0.95;
constexpr const char* kHangs = "drain the node; reboot if it comes back";

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

void show(const std::vector<Finding>& findings, Record& record) {
  print(findings_table(findings));
  write(record, findings);
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

// A little work on all devices of the job, during which their links are looked at.

constexpr std::size_t kCopyBytes = 256u << 20;
constexpr int kCopies = 200;  // a second at 55 GB/s
constexpr std::size_t kElements = 1u << 20;

/// The reports while every rank's GPU is busy, without the hosts' facts. Collective.
std::vector<NodeReport> reports_under_load(const CheckOptions& options, MpiSession& session,
                                           Backend& backend) {
  Device& device = *backend.device;
  const auto stream = device.make_stream();
  const auto done = device.make_event();
  const Buffer from(device, kCopyBytes, Place::host), to(device, kCopyBytes);
  for (int i = 0; i < kCopies; ++i) device.copy(to.data(), from.data(), kCopyBytes, *stream);
  done->record(*stream);
  ReportSource gpus_alone = options.source;
  gpus_alone.facts = false;
  auto reports = gather_reports(session, gpus_alone);
  auto busy = session.all_gather(done->done() ? std::string() : device.identity().uuid);
  std::erase(busy, "");
  for (NodeReport& report : reports) report.loaded_gpus = busy;
  backend.world->wait(*done, HostWait::polite);
  return reports;
}

std::vector<RankPlace> places_of_ranks(const MpiSession& session, const Device& device) {
  const DeviceIdentity identity = device.identity();
  const auto gpus = session.all_gather(identity.uuid);
  const auto near = session.all_gather(NearDevice(identity.pci_id).text());
  std::vector<RankPlace> ranks;
  for (std::size_t rank = 0; rank < gpus.size(); ++rank)
    ranks.push_back({session.hosts()[rank], gpus[rank], near[rank]});
  return ranks;
}

/// Wrong elements of a sum over all ranks, on this rank. Collective.
std::size_t wrong_elements(Backend& backend, bool corrupts) {
  Device& device = *backend.device;
  const auto stream = device.make_stream();
  const auto done = device.make_event();
  const Buffer buffer(device, kElements * sizeof(float));
  std::vector<float> values(kElements);
  // Small integers: their sum is exact in any order.
  for (std::size_t i = 0; i < kElements; ++i)
    values[i] = static_cast<float>(backend.world->rank() + 1 + static_cast<int>(i % 7));
  upload<float>(device, *stream, buffer.data(), values);
  const View view = buffer.view(DataType::float32);
  backend.world->all_reduce(view, view, Reduction::sum, *stream);
  done->record(*stream);
  backend.world->wait(*done, HostWait::polite);
  auto sums = download<float>(device, *stream, buffer.data(), kElements);
  if (corrupts) sums[kElements / 3] += 1;
  const int n = backend.world->size();
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < kElements; ++i)
    wrong += sums[i] != static_cast<float>(n * (n + 1) / 2 + n * static_cast<int>(i % 7));
  return wrong;
}

std::vector<Finding> judge_sums(const MpiSession& session, const std::vector<double>& wrong) {
  std::vector<Finding> found;
  for (std::size_t rank = 0; rank < wrong.size(); ++rank)
    if (wrong[rank] > 0)
      found.push_back(finding_of("all-reduce",
                                 failure(Class::hardware,
                                         fmt::format("{:.0f} of {} elements are wrong on rank {}",
                                                     wrong[rank], kElements, rank),
                                         "inspect links of this rank: bin/link_matrix, bin/soak"),
                                 Scope::rank, std::to_string(rank), session.hosts()[rank]));
  if (found.empty())
    found.push_back(finding_of(
        "all-reduce",
        wrong.size() == 1 ? not_applicable("one rank: nothing is exchanged")
                          : passed(fmt::format("the sum over {} ranks is right", wrong.size())),
        Scope::job, "node_check"));
  return found;
}

/// Keeps each rank's GPU busy with copies from the host while the first rank of each node reads the
/// GPUs again, then sums over all ranks and compares every element. A rank that `corrupts` changes
/// one. Throws TimeoutError when a rank does not come: `found` then has what was found until then.
/// Collective.
void look_at_work(const CheckOptions& options, MpiSession& session,
                  const std::vector<NodeReport>& before, bool corrupts,
                  std::vector<Finding>& found) {
  Backend backend = open_backend(options.backend, session);
  const auto add = [&](std::vector<Finding> more) {
    std::ranges::move(more, std::back_inserter(found));
  };
  const bool on_gpus = backend.kind == BackendKind::gpu;
  if (on_gpus) add(judge_places(before, places_of_ranks(session, *backend.device)));
  add(judge_load(before, on_gpus ? reports_under_load(options, session, backend) : before,
                 options.expected));
  const auto wrong = session.all_gather(static_cast<double>(wrong_elements(backend, corrupts)));
  add(judge_sums(session, wrong));
  if (on_gpus) add(judge_growth(before, gather_reports(session, options.source), options.expected));
}

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
    if (session.is_root()) show(found, record);
    if (count(findings, Outcome::fail) + count(found, Outcome::fail) > 0)
      throw FailError(error.what());
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
  show(at_work, record);
  return conclude(findings, options.strict, record);
}

ExitCode check_passively(const CheckOptions& options, Record& record) {
  const std::string host = host_name();
  std::mutex mutex;  // the watchdog's thread prints what is known while another hangs
  std::vector<Finding> known;
  const Watchdog watchdog(kReporting * options.deadline_s, [&] {
    const Finding late = finding_of(
        "deadline",
        not_known(
            fmt::format("the check did not end within {:g} s (--deadline)", options.deadline_s),
            kHangs),
        Scope::job, "node_check");
    const std::lock_guard lock(mutex);
    known.push_back(late);
    print(findings_table(known));
    record.write("verdict", record_of(late));
  });
  const auto fault = parse_fault(options.fault, {FaultKind::stall}, 1);
  if (fault) print(line_of(*fault) + "\n");
  ReportSource source = options.source;
  source.call_s = source.whole_s = kReading * options.deadline_s;
  source.facts_s = std::min(source.facts_s, kReading * options.deadline_s);
  std::vector<NodeReport> reports{read_node(host, source, [&](const Json& facts) {
    const std::lock_guard lock(mutex);
    known = judge_host(host, facts, options.expected.xid_window_h);
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

ExitCode conclude_hung(const Ended& ended, Record& record) {
  const Judgement judgement =
      ended.hangs ? failure(Class::hardware, ended.why, kHangs)
                  : Judgement{Outcome::inconclusive, ended.why, std::nullopt, kHangs};
  const std::vector<Finding> findings{finding_of(ended.died ? "dead-check" : "hung-check",
                                                 judgement, Scope::node, host_name(), host_name())};
  show(findings, record);
  return conclude(findings, false, record);
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

void declare_options(OptionSet& set, CheckOptions& options) {
  set.heading("Check");
  set.add("--expect-gpus", options.expected.gpus, "GPUs that each node should have; fewer is FAIL")
      .at_least(0)
      .metavar("N")
      .default_text("Slurm's variables, else most nodes, else the PCI bus");
  set.add("--expect-mig", options.expected.mig,
          "layout of MIG that each GPU should have, PROFILE:NUMBER,..., as 1g.18gb:7, or 'any'; "
          "another, or MIG that is off, is FAIL")
      .metavar("LAYOUT")
      .default_text("none: a GPU that is divided is WARN");
  set.check([&options] { options.expected.mig = mig_layout(options.expected.mig); });
  set.add("--xid-window", options.expected.xid_window_h,
          "age up to which a fatal XID is FAIL; an older one is WARN")
      .at_least(0)
      .metavar("HOURS");
  set.add("--strict", options.strict,
          "exit with 3 (INCONCLUSIVE) when a check is UNKNOWN or WARN and none is FAIL");
  set.add("--passive", options.passive,
          "only read: no GPU context, no communication, at most --deadline; safe next to a running "
          "job, for Slurm's HealthCheckProgram. Each process checks its own node");
  set.add("--deadline", options.deadline_s,
          "time within which a passive check ends. What has not been read by then is UNKNOWN; a "
          "call of the driver that has not returned is FAIL, or UNKNOWN and exit code 3 where it "
          "opens "
          "the GPUs and persistence mode is not known to be on")
      .at_least(1)
      .metavar("SECONDS")
      .only_with({"--passive"});
  set.add("--record", options.record, ".jsonl file to which the findings are appended")
      .metavar("FILE");
  set.add_text("--list-checks", "print every check with what it looks at, and exit",
               list_of_checks);
  shakedown::declare_options(set, options.backend);
  set.heading("");
  set.add("--readings", options.source.readings, "file with the GPUs' readings").metavar("FILE");
  set.add("--root", options.source.root, "folder in the place of / before /proc and /sys")
      .metavar("DIR");
  declare_fault_option(set, options.fault);
}

}  // namespace shakedown::node

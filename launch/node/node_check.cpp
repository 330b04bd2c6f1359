// bin/node_check: the environment of every node of a job, its GPUs' health, and how nodes differ.
#include <cstdio>
#include <functional>

#include "common/host.hpp"
#include "common/identity.hpp"
#include "common/mpi_session.hpp"
#include "common/options.hpp"
#include "common/program.hpp"
#include "common/record.hpp"
#include "launch/node/health/check/check.hpp"

namespace shakedown::node {
namespace {

ExitCode node_check(const CheckOptions& options, const OptionSet& set, MpiSession& session) {
  Record record(session.is_root() ? options.record : "");
  record.write("run", describe_process(set, session.hosts(), session.boot_ids()));
  return recorded(record, [&] { return check_nodes(options, session, record); });
}

ExitCode passive_check(const CheckOptions& options, const OptionSet& set) {
  if (is_another_of_its_host()) {
    std::fputs("node_check: not the first process of its host, which checks it\n", stderr);
    return ExitCode::pass;
  }
  // Appends a run to the record; the check's own process and this one each have theirs.
  const auto run = [&](const std::function<ExitCode(Record&)>& body) {
    return run_alone([&] {
      Record record(options.record);
      record.write("run", describe_process(set, {host_name()}, {boot_id()}));
      return recorded(record, [&] { return body(record); });
    });
  };
  const auto check = [&] {
    return run([&](Record& record) { return check_passively(options, record); });
  };
  const Ended ended = run_in_own_process(options.deadline_s, check, note_of_left_over_check());
  if (ended.code) return static_cast<ExitCode>(*ended.code);
  return static_cast<ExitCode>(run([&](Record& record) { return conclude_hung(ended, record); }));
}

}  // namespace
}  // namespace shakedown::node

int main(int argc, char** argv) {
  using namespace shakedown;
  node::CheckOptions options;
  OptionSet set(
      "node_check",
      "Checks the environment and the GPUs of every node of a job, and how nodes differ.");
  node::declare_options(set, options);
  if (const auto code = parse_options(set, argc, argv)) return static_cast<int>(*code);
  if (options.passive) return run_alone([&] { return node::passive_check(options, set); });
  return run_program(set, argc, argv,
                     [&](MpiSession& session) { return node::node_check(options, set, session); });
}

// bin/soak: hours of checked work on all GPUs, judged by a jury of them; and the replay of what was
// wrong.
#include "common/identity.hpp"
#include "common/options.hpp"
#include "common/program.hpp"
#include "launch/node/compute/results.hpp"
#include "launch/node/soak/capsule.hpp"
#include "launch/node/soak/soak_run.hpp"

namespace shakedown::node {
namespace {

ExitCode soak(const SoakOptions& options, const OptionSet& set, MpiSession& session) {
  if (options.replay.empty()) check_capsules(options.output, session.rank());
  const auto before = options.replay.empty() ? read_processes(session) : std::vector<NodeReport>();
  Backend backend = open_backend(options.backend, session);
  Record record(session.is_root() ? record_or_launchers(options.record) : "");
  record.write("run", describe_run(set, session, backend));
  say(session, backend.remark);
  const ExitCode code = recorded(record, [&] {
    if (!options.replay.empty()) return replay_capsule(options, backend, session, record);
    return run_soak(options, before, backend, session, record);
  });
  if (options.replay.empty()) say(session, text_of_report(options.record));
  return code;
}

}  // namespace
}  // namespace shakedown::node

int main(int argc, char** argv) {
  using namespace shakedown;
  node::SoakOptions options;
  OptionSet set("soak",
                "Repeats and checks work on every GPU for a time, and names what is wrong.");
  node::declare_options(set, options);
  if (const auto code = parse_options(set, argc, argv)) return static_cast<int>(*code);
  return run_program(set, argc, argv,
                     [&](MpiSession& session) { return node::soak(options, set, session); });
}

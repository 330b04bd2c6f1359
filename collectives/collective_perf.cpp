// bin/collective_perf, and under nccl-tests' names all_reduce_perf and the others: speed and
// correctness of the collectives.
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "collectives/perf/plan.hpp"
#include "collectives/perf/sweep.hpp"
#include "common/identity.hpp"
#include "common/options.hpp"
#include "common/output_file.hpp"
#include "common/program.hpp"

namespace shakedown::collectives {
namespace {

ExitCode collective_perf(const PerfOptions& options, const OptionSet& set, MpiSession& session) {
  check_distinct({{"--record", options.record}, {"--output-file", options.json}});
  const Plan plan = make_plan(options, set, session.world_size());

  if (options.cta_policy >= 0)  // NCCL reads it when it starts
    setenv("NCCL_CTA_POLICY", std::to_string(options.cta_policy).c_str(), 1);
  NcclPath path(options.path);
  Backend backend = open_backend(options.backend, session);
  Record record(session.is_root() ? options.record : "");
  record.write("run", describe_run(set, session, backend));
  return recorded(record, [&] { return sweep(options, plan, backend, session, path, record); });
}

}  // namespace
}  // namespace shakedown::collectives

int main(int argc, char** argv) {
  using namespace shakedown;
  using namespace shakedown::collectives;
  PerfOptions options = default_options(std::filesystem::path(argv[0]).filename().string());
  OptionSet set(options.program,
                "Measures collectives, and checks every result.\n"
                "Exit codes: 0 pass; 1 wrong data, or below a bar; 2 usage; 3 inconclusive (a "
                "time-out, a bar that judged nothing); 4 internal error.");
  declare_options(set, options);
  set.check([&] { plan_of(options, set); });
  if (const auto code = parse_options(set, argc, argv)) return static_cast<int>(*code);
  relaunch_for_gpus(options, argc, argv);
  return run_program(set, argc, argv,
                     [&](MpiSession& session) { return collective_perf(options, set, session); });
}

// bin/compute_perf: the rates of matrix products, device memory and host links of every GPU,
// verified and compared.
#include "common/identity.hpp"
#include "common/options.hpp"
#include "common/program.hpp"
#include "launch/node/compute/compute_run.hpp"

namespace shakedown::node {
namespace {

ExitCode compute_perf(const ComputeOptions& options, const OptionSet& set, MpiSession& session) {
  const auto before = read_processes(session);
  Backend backend = open_backend(options.backend, session);
  Record record(session.is_root() ? options.record : "");
  record.write("run", describe_run(set, session, backend));
  return recorded(record, [&] { return run_compute(options, backend, session, before, record); });
}

}  // namespace
}  // namespace shakedown::node

int main(int argc, char** argv) {
  using namespace shakedown;
  node::ComputeOptions options;
  OptionSet set("compute_perf",
                "Measures matrix products, device memory and host links of every GPU, verifies the "
                "results and names the GPUs that are slow.");
  node::declare_options(set, options);
  if (const auto code = parse_options(set, argc, argv)) return static_cast<int>(*code);
  return run_program(set, argc, argv, [&](MpiSession& session) {
    return node::compute_perf(options, set, session);
  });
}

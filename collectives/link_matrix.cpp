// bin/link_matrix: bandwidth and latency between every pair of ranks, and which of them are slow.
#include <nlohmann/json.hpp>

#include "collectives/links/measurement.hpp"
#include "common/identity.hpp"
#include "common/options.hpp"
#include "common/program.hpp"

namespace shakedown::collectives {
namespace {

ExitCode link_matrix(const LinkOptions& options, const OptionSet& set, MpiSession& session) {
  Backend backend = open_backend(options.backend, session);
  Record record(session.is_root() ? options.record : "");
  record.write("run", describe_run(set, session, backend));
  return recorded(record, [&] { return measure_links(options, backend, session, record); });
}

}  // namespace
}  // namespace shakedown::collectives

int main(int argc, char** argv) {
  using namespace shakedown;
  collectives::LinkOptions options;
  OptionSet set("link_matrix",
                "Measures the links between every pair of ranks and names those that are slow.");
  collectives::declare_options(set, options);
  if (const auto code = parse_options(set, argc, argv)) return static_cast<int>(*code);
  return run_program(set, argc, argv, [&](MpiSession& session) {
    return collectives::link_matrix(options, set, session);
  });
}

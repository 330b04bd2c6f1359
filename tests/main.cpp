// Runs the tests of one program on every rank. Rank 0 reports to the terminal; another rank's
// report is shown when it failed.
#define CATCH_CONFIG_RUNNER
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "common/communicator.hpp"
#include "common/mpi_session.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown::test {
namespace {

#if CATCH_VERSION_MAJOR >= 3
using ListenerBase = Catch::EventListenerBase;
#else
using ListenerBase = Catch::TestEventListenerBase;
#endif

MpiSession* current_session = nullptr;

/// The cases that ran on this rank.
struct Count {
  std::string name, skipped_now;  // of the case that runs; why it is skipped
  int passed = 0;
  std::map<std::string, int> skipped;  // by reason
} count;

class Counter : public ListenerBase {
 public:
  using ListenerBase::ListenerBase;
  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    count.name = info.name;
    count.skipped_now.clear();
  }
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    if (!stats.totals.assertions.allOk()) return;
    if (count.skipped_now.empty())
      ++count.passed;
    else
      ++count.skipped[count.skipped_now];
  }
};
CATCH_REGISTER_LISTENER(Counter)

/// As tests/python and tests/faults/run print theirs: tests/run adds them up.
void print_count() {
  int all = 0;
  std::string reasons;
  for (const auto& [why, cases] : count.skipped) {
    all += cases;
    reasons += (reasons.empty() ? " (" : "; ") + std::to_string(cases) + " " + why;
  }
  std::printf("cases: %d passed, %d skipped%s%s\n", count.passed, all, reasons.c_str(),
              reasons.empty() ? "" : ")");
}

}  // namespace

void skip_case(const std::string& why) {
  if (count.skipped_now.empty() && current_session->is_root())
    std::printf("skipped, %s: %s\n", why.c_str(), count.name.c_str());
  count.skipped_now = why;
}

MpiSession& session() { return *current_session; }

std::vector<BackendKind> backends() {
  std::vector<BackendKind> kinds;
  if (cpu::built()) kinds.push_back(BackendKind::cpu);
  std::string problem;
  if (!gpu::visible_devices(problem).empty()) kinds.push_back(BackendKind::gpu);
  return kinds;
}

bool has(BackendKind kind) {
  for (BackendKind one : backends())
    if (one == kind) return true;
  return false;
}

std::unique_ptr<Device> open_device(BackendKind kind) {
  const int threads = session().local_size() == 1 ? 2 : 1;  // two cores are enough for all tests
  omp_set_num_threads(threads);
  return kind == BackendKind::gpu ? gpu::make_device(session().local_rank())
                                  : cpu::make_device(threads);
}

Backend open_backend_of(BackendKind kind) {
  Backend backend;
  backend.kind = kind;
  backend.device = open_device(kind);
  backend.session = &session();
  backend.world = kind == BackendKind::gpu ? gpu::make_communicator(session(), *backend.device)
                                           : make_mpi_communicator(session(), *backend.device);
  backend.host = make_mpi_communicator(session(), *backend.device);
  return backend;
}

std::vector<float> random_values(std::size_t count, std::uint64_t seed, double low, double high) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& v : values) v = static_cast<float>(low + (high - low) * random.uniform());
  return values;
}

}  // namespace shakedown::test

int main(int argc, char** argv) {
  using namespace shakedown;
  MpiSession session(&argc, &argv);
  session.set_timeout(60);  // a rank whose test failed leaves the others waiting
  test::current_session = &session;

  if (test::backends().empty()) {
    if (session.is_root())
      std::cerr << "tests need a backend: cpu is not built, and there is no GPU for gpu\n";
    return 2;
  }
  std::vector<const char*> arguments(argv, argv + argc);
  const std::string report =
      std::string(argv[0]) + ".rank" + std::to_string(session.rank()) + ".txt";
  arguments.insert(arguments.end(), std::begin(kPlainText), std::end(kPlainText));
  if (session.rank() > 0) arguments.insert(arguments.end(), {"-o", report.c_str()});

  int failed = 0;
  {
    Catch::Session catch_session;
    failed = catch_session.applyCommandLine(static_cast<int>(arguments.size()), arguments.data());
    if (failed == 0) failed = catch_session.run();
  }
  const auto codes = session.all_gather(static_cast<double>(failed));
  if (session.is_root() && session.world_size() == 1)
    for (BackendKind kind : {BackendKind::cpu, BackendKind::gpu}) {
      const auto kinds = test::backends();
      if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end())
        std::printf("not tested here: the %s backend (not built, or no device)\n", name_of(kind));
    }
  for (int r = 1; r < session.world_size(); ++r) {
    if (codes[r] != 0 && r == session.rank())
      std::cerr << "---- rank " << r << ":\n" << std::ifstream(report).rdbuf() << std::flush;
    session.barrier();
  }
  if (session.rank() > 0) std::remove(report.c_str());
  if (session.is_root()) test::print_count();
  return *std::max_element(codes.begin(), codes.end()) == 0 ? 0 : 1;
}

// In place of collectives/measurers.cpp: collective_perf and link_matrix of BUILD/injected are late
// or wrong, as SHAKEDOWN_TEST_DELAY and SHAKEDOWN_TEST_FAULT have it.
#include <cstdlib>

#include "tests/support/injection.hpp"

namespace shakedown::collectives {
namespace {

Injection injection(const MpiSession& session) {
  const auto value_of = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value ? value : "");
  };
  return parse_injection(value_of("SHAKEDOWN_TEST_FAULT"), value_of("SHAKEDOWN_TEST_DELAY"),
                         session.world_size());
}

}  // namespace

std::unique_ptr<CollectiveBench> make_bench(Communicator& communicator, Backend& backend,
                                            const MpiSession& session,
                                            const BenchSettings& settings,
                                            std::size_t largest_bytes) {
  return injected_bench(injection(session), communicator, backend, session, settings,
                        largest_bytes);
}

std::unique_ptr<LinkMessages> make_messages(Backend& backend, const MpiSession& session,
                                            const MessageSettings& settings) {
  return injected_messages(injection(session), backend, session, settings);
}

}  // namespace shakedown::collectives

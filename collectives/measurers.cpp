// What measures, in a file of its own: tests link the programs with one that is late or wrong
// (tests/collectives/injected.cpp).
#include "collectives/links/links.hpp"
#include "collectives/perf/bench.hpp"

namespace shakedown::collectives {

std::unique_ptr<CollectiveBench> make_bench(Communicator& communicator, Backend& backend,
                                            const MpiSession& session,
                                            const BenchSettings& settings,
                                            std::size_t largest_bytes) {
  return std::make_unique<CollectiveBench>(communicator, backend, session, settings, largest_bytes);
}

std::unique_ptr<LinkMessages> make_messages(Backend& backend, const MpiSession& /*session*/,
                                            const MessageSettings& settings) {
  return std::make_unique<LinkMessages>(backend, settings);
}

}  // namespace shakedown::collectives

#include "training/measure/clock.hpp"

#include <algorithm>
#include <chrono>
#include <limits>

#include "common/mpi_session.hpp"

namespace shakedown::training {
namespace {

constexpr int kRounds = 20;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

double seconds_ahead_of_root(const MpiSession& session) {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    const double sent = now_s();
    const double root_sent = session.all_gather(sent)[0];
    const double received = now_s();
    const double root_received = session.all_gather(received)[0];
    low = std::max(low, sent - root_received);
    high = std::min(high, received - root_sent);
  }
  return session.is_root() ? 0 : (low + high) / 2;
}

}  // namespace shakedown::training

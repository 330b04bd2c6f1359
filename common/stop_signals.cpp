#include "common/stop_signals.hpp"

#include <string.h>

namespace shakedown {
namespace {

constexpr int kSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

volatile std::sig_atomic_t noted = 0;  // a handler can reach nothing that is not static

extern "C" void note(int number) {
  if (noted != 0) {
    std::signal(number, SIG_DFL);
    std::raise(number);  // delivered when this handler returns
  }
  noted = number;
}

}  // namespace

StopSignals::StopSignals() {
  noted = 0;
  for (const int number : kSignals) {
    struct sigaction before {};
    sigaction(number, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;
    struct sigaction noting {};
    noting.sa_handler = note;
    noting.sa_flags = SA_RESTART;
    sigaction(number, &noting, nullptr);
    before_.emplace_back(number, before);
  }
}

StopSignals::~StopSignals() {
  for (const auto& [number, before] : before_) sigaction(number, &before, nullptr);
}

std::string StopSignals::received() const {
  return noted == 0 ? "" : std::string("SIG") + sigabbrev_np(noted);
}

}  // namespace shakedown

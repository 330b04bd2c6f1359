#include "launch/node/soak/load.hpp"

namespace shakedown::node {

LoadCount& LoadCount::operator+=(const LoadCount& more) {
  checked += more.checked;
  wrong += more.wrong;
  self_compared += more.self_compared;
  bytes += more.bytes;
  flop += more.flop;
  seconds += more.seconds;
  return *this;
}

}  // namespace shakedown::node

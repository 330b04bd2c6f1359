#include "launch/node/soak/load.hpp"

namespace shakedown::node {

LoadCount& LoadCount::operator+=(const LoadCount& more) {
  checked += more.checked;
  wrong += more.wrong;
  bytes += more.bytes;
  flop += more.flop;
  seconds += more.seconds;
  return *this;
}

}  // namespace shakedown::node

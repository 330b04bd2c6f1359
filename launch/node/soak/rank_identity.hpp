// Who a rank is, in a soak's verdicts.
#pragma once

#include <fmt/format.h>

#include <string>

#include "common/verdict.hpp"

namespace shakedown::node {

/// Who the ranks are.
struct RankIdentity {
  std::string host;
  std::string uuid;    // empty on cpu
  std::string serial;  // empty: not known
  std::string model;
  std::string stalled = "";    // calls of the driver that did not return in time
  bool remap_pending = false;  // memory waits for a reset to be replaced
  bool lacks_ecc = false;      // or it is off
};

/// A verdict of this check on the rank's GPU, or on the rank where it has none.
inline Verdict on_rank(int rank, const RankIdentity& identity, const char* check) {
  Verdict verdict;
  verdict.check = check;
  verdict.scope = identity.uuid.empty() ? Scope::rank : Scope::gpu;
  verdict.name = identity.uuid.empty() ? std::to_string(rank) : identity.uuid;
  verdict.hosts = {identity.host};
  return verdict;
}

/// "rank 3 on n017, serial 1652923".
inline std::string place_of(int rank, const RankIdentity& identity) {
  return fmt::format("rank {} on {}{}", rank, identity.host,
                     identity.serial.empty() ? "" : ", serial " + identity.serial);
}

}  // namespace shakedown::node

// The ranks' clocks against one another.
#pragma once

namespace shakedown {
class MpiSession;
}  // namespace shakedown

namespace shakedown::training {

/// Seconds that this rank's std::chrono::steady_clock is ahead of rank 0's. A value that another
/// rank read out before it sent it lies before the moment it arrives, which bounds the difference
/// from both sides; the middle of the narrowest bounds of some rounds. Every rank calls it.
double seconds_ahead_of_root(const MpiSession& session);

}  // namespace shakedown::training

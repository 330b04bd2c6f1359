// The kernels of Peers: what one rank's GPU does with the memory of others.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/communicator.hpp"

namespace shakedown {
class Stream;
}  // namespace shakedown

namespace shakedown::gpu {

/// A rank's words in its device memory: zeros at first. Others write `arrived` alone.
struct PeerWords {
  /// [meeting % 2][rank]: 2 * the last such meeting that the rank came to, + 1 where its flag was
  /// set. Two, as a rank may come to the next meeting before all have read this one's flags; not to
  /// the one after that.
  std::uint64_t arrived[2][kMostPeers];
  std::uint64_t meetings;  // this rank's, counted on the device: a graph launches each anew
  std::int32_t stopped;
};

/// In pinned host memory, for both sides.
struct PeerStatus {
  std::int32_t aborted;  // set by the host
  std::int32_t missing;  // set by the device: 1 + a rank that did not come
};

struct PeerTable {
  PeerWords* words[kMostPeers];  // by rank
  PeerStatus* status;            // of this rank
  int rank;
  int ranks;
  std::uint64_t timeout_ns;

  PeerWords* own() const { return words[rank]; }
};

/// Places by rank, or in the order in which they are visited.
struct PeerPlaces {
  void* at[kMostPeers];
};

/// Peers::meet, and Peers::agree where `flag` is not null: one warp.
void launch_meet(const PeerTable& table, std::int32_t* flag, Stream& stream);
/// Peers::average, of `from` in the order in which they are summed; few blocks, as it runs next to
/// backward.
void launch_average(const PeerTable& table, const PeerPlaces& from, View to, std::int32_t* finite,
                    Stream& stream);
/// Peers::push_chunks.
void launch_push_chunks(const PeerTable& table, const PeerPlaces& to, std::size_t chunks,
                        const float* from, const std::int64_t* sources, Stream& stream);
/// copy_of_peers by all SMs.
void launch_copy(View to, ConstView from, Stream& stream);

}  // namespace shakedown::gpu

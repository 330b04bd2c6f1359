// GPUs of one node that read and write one another's memory, without NCCL: each rank's process maps
// the memory of the others, and their streams meet where one needs what another wrote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/types.hpp"

namespace shakedown {

class Communicator;
class Device;
class Stream;

/// At most this many ranks are peers.
inline constexpr int kMostPeers = 16;

/// One Buffer of each rank, mapped into this process for as long as this lives. Every rank releases
/// it at the same place: a rank's Buffer must not be freed while others have it mapped.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  /// By rank; this rank's own is what it brought. No data where `problems` has why not.
  virtual const std::vector<View>& views() const = 0;
  /// By rank; empty where its memory is mapped.
  virtual const std::vector<std::string>& problems() const = 0;
};

/// All operations but map() are enqueued on a stream, can be a part of graphs, and come in the same
/// order on every rank. Memory is ordered by meetings alone: what a rank wrote before one can be
/// read by the others after it, and what it read before can be overwritten by them. A rank that
/// does not come to a meeting within the timeout stops the peers for good: what follows does
/// nothing, and check() throws.
class Peers {
 public:
  virtual ~Peers() = default;

  /// Collective: `own` is a whole Buffer of device memory, as large on every rank. Throws
  /// UsageError on every rank where one cannot map it.
  virtual std::unique_ptr<PeerMemory> map(View own) = 0;

  /// What follows on the stream starts after every rank has come here.
  virtual void meet(Stream& stream) = 0;
  /// The same, and *flag becomes the minimum over the ranks of 0 or 1; 0 where peers have stopped.
  virtual void agree(std::int32_t* flag, Stream& stream) = 0;
  /// to[i] = the mean over the ranks of from[rank][i], summed in float32. `to` may be this rank's
  /// `from`. Views have the same type and a multiple of kFlatAlignment elements. *finite = 0 if an
  /// element of `to` is infinite or not a number; null: not checked.
  virtual void average(std::span<const View> from, View to, std::int32_t* finite,
                       Stream& stream) = 0;
  /// Chunks of kFlatAlignment float32 elements: chunk c of every rank's `to` is from's chunk
  /// sources[c]; where that is -1 it stays as it is. `sources` is device memory.
  virtual void push_chunks(std::span<const View> to, ConstView from, const std::int64_t* sources,
                           Stream& stream) = 0;

  /// From any thread: operations that wait for other ranks end, and later ones do nothing.
  virtual void abort() noexcept = 0;
  /// Throws TimeoutError naming a rank that did not come; call it when the work is done.
  virtual void check() const = 0;
};

namespace gpu {
/// Collective. `host` spans the same ranks over MPI, and must outlive this as the device must.
/// Throws UsageError on every rank, with the reason, where one cannot map another's memory.
std::unique_ptr<Peers> make_peers(Communicator& host, Device& device, double timeout_s);
/// Peers::map of those ranks whose GPU this rank's reaches; the others are named in `problems`, and
/// may differ between ranks. Collective.
std::unique_ptr<PeerMemory> map_reachable(Communicator& host, Device& device, View own);

/// By which of the GPU that it is enqueued on.
enum class CopyBy { engine, sms };
/// Enqueues a copy between this GPU's memory and mapped memory of a peer: to it (SMs store), or
/// from it (SMs load). Both are aligned to 16 bytes, and the bytes a multiple of that.
void copy_of_peers(View to, ConstView from, CopyBy by, Stream& stream);
}  // namespace gpu

}  // namespace shakedown

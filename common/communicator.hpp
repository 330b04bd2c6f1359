// Collective and point-to-point operations between the ranks of a group, by MPI (in every build, on
// host memory; device memory is staged through the host) or NCCL (gpu).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/device.hpp"
#include "common/types.hpp"

namespace shakedown {

class MpiSession;
class Peers;

/// Operations a communicator has enqueued since it was made, each launch of a graph included.
struct Traffic {
  std::uint64_t operations = 0;
  double sent_bytes = 0;           // by this rank: see Communicator::count
  double received_bytes = 0;       // by this rank, the same
  std::uint64_t staged_bytes = 0;  // copied between device and host for a host transport
};
Traffic operator+(const Traffic& a, const Traffic& b);
Traffic operator-(const Traffic& a, const Traffic& b);

/// Memory made for a transport: host memory for MPI, device memory that peers can map for NCCL.
class TransportMemory {
 public:
  virtual ~TransportMemory() = default;
  virtual void* data() const = 0;
  virtual Place place() const = 0;
};

/// How memory is made known to the transport before it is used. `local`: ncclCommRegister;
/// `symmetric`: ncclCommWindowRegister, with the same offsets on every rank.
enum class Registration { none, local, symmetric };

/// How the host waits for the device: leaving the core to others after a millisecond, or, where the
/// end is being timed, not for a tenth of a second.
enum class HostWait { polite, timed };
inline double spin_seconds(HostWait how) { return how == HostWait::timed ? 0.1 : 0.001; }

/// How all_reduce and reduce_scatter go over MPI: `library` by the MPI library's own algorithms;
/// `own` by MpiExchange where the buffer is so large that this is faster.
enum class MpiAlgorithm { library, own };
inline const char* name_of(MpiAlgorithm algorithm) {
  return algorithm == MpiAlgorithm::own ? "own" : "library";
}

/// All operations are enqueued on a stream, in the same order on every rank, and read and write
/// their buffers in stream order. `send` and `recv` may be the same memory where both have the same
/// count ("in place"). Counts are elements; n is size(). Errors of the transport throw
/// InternalError, a lost peer and an operation past the timeout InconclusiveError.
class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() { drop_graphs(); }

  virtual const char* transport() const = 0;  // "mpi" or "nccl"
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Whether elements of this type can be exchanged, and reduced, here.
  virtual bool supports(DataType type) const = 0;

  void all_reduce(ConstView send, View recv, Reduction op, Stream& stream) {
    request({Exchange::all_reduce, send, recv, op}, stream);
  }
  void reduce(ConstView send, View recv, Reduction op, int root, Stream& stream) {
    request({Exchange::reduce, send, recv, op, root}, stream);
  }
  void broadcast(ConstView send, View recv, int root, Stream& stream) {
    request({Exchange::broadcast, send, recv, Reduction::sum, root}, stream);
  }
  /// recv.count = n * send.count.
  void all_gather(ConstView send, View recv, Stream& stream) {
    request({Exchange::all_gather, send, recv}, stream);
  }
  /// send.count = n * recv.count.
  void reduce_scatter(ConstView send, View recv, Reduction op, Stream& stream) {
    request({Exchange::reduce_scatter, send, recv, op}, stream);
  }
  /// At the root recv.count = n * send.count; elsewhere recv is not used.
  void gather(ConstView send, View recv, int root, Stream& stream) {
    request({Exchange::gather, send, recv, Reduction::sum, root}, stream);
  }
  /// At the root send.count = n * recv.count; elsewhere send is not used.
  void scatter(ConstView send, View recv, int root, Stream& stream) {
    request({Exchange::scatter, send, recv, Reduction::sum, root}, stream);
  }
  /// send.count = recv.count, a multiple of n. Not in place.
  void all_to_all(ConstView send, View recv, Stream& stream) {
    request({Exchange::all_to_all, send, recv}, stream);
  }
  void send(ConstView view, int peer, Stream& stream) {
    request({Exchange::send, view, View(), Reduction::sum, peer}, stream);
  }
  void recv(View view, int peer, Stream& stream) {
    request({Exchange::recv, ConstView(), view, Reduction::sum, peer}, stream);
  }

  /// Operations issued by `body` are started together: exchanges that wait for one another, such
  /// as a send and a recv to the same peer, must be grouped.
  template <class Body>
  void group(Body&& body) {
    begin_group();
    body();
    end_group();
  }

  /// Collective where `registration` is not none: every rank must request the same size. The
  /// memory must not outlive the communicator. Throws UsageError where the transport cannot
  /// register.
  virtual std::unique_ptr<TransportMemory> allocate(std::size_t bytes,
                                                    Registration registration) = 0;

  /// Blocks the host until every rank has entered.
  virtual void barrier() = 0;

  /// Between hosts, outside the stream's order: where a rank does not know which peer comes next.
  struct Notice {
    int from = 0;
    int value = 0;
  };
  virtual void notify(int peer, int value) = 0;
  /// Blocks the host until some rank has notified this one; a rank's notices come in order.
  virtual Notice next_notice() = 0;

  /// A communicator of the ranks that pass the same color, ordered by key. Every rank calls it.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  /// Blocks the host until it is done, watching for asynchronous errors and the timeout.
  void wait(const Event& event, HostWait how) {
    wait_until([&] { return event.done(); }, how);
  }
  void wait(const Stream& stream, HostWait how) {
    wait_until([&] { return stream.done(); }, how);
  }
  virtual void wait_until(const std::function<bool()>& done, HostWait how) = 0;

  /// The ranks' GPUs as peers, which end with this. Collective when it is first called. Throws
  /// UsageError on every rank where one cannot map another's memory.
  virtual Peers& peers();
  /// Counts an exchange of peers as traffic: each rank's part of `bytes` has come to it from all,
  /// or gone to all.
  void count_peers(std::size_t bytes) { add_ring(bytes, 1); }

  /// Whether operations can be a part of graphs.
  virtual bool capturable() const { return false; }
  /// Device::capture, of a body that enqueues operations of this communicator. Not the capture but
  /// each launch counts as traffic. Transports wait for what holds operations of theirs before they
  /// end, so the graph ends with the communicator, if it has not before: then it cannot be
  /// launched.
  std::unique_ptr<Graph> capture(Device& device, Stream& stream, const std::function<void()>& body);

  Traffic traffic() const { return traffic_ + launched_; }

 protected:
  /// Ends the graphs: before the transport does.
  void drop_graphs() noexcept;
  virtual std::unique_ptr<Graph> capture_uncounted(Device& device, Stream& stream,
                                                   const std::function<void()>& body) {
    return device.capture(stream, body);
  }

  virtual void begin_group() = 0;
  virtual void end_group() = 0;

  /// One operation; a view that this rank does not use may have no elements.
  struct Exchange {
    enum Kind {
      all_reduce,
      reduce,
      broadcast,
      all_gather,
      reduce_scatter,
      gather,
      scatter,
      all_to_all,
      send,
      recv
    };
    Kind kind;
    ConstView from;
    View to;
    Reduction op = Reduction::sum;
    int peer = 0;  // the root, or the other rank of a message

    const char* name() const;
  };
  /// It is counted already.
  virtual void enqueue(const Exchange& exchange, Stream& stream) = 0;
  /// Requests it of another one.
  static void pass_on(Communicator& to, const Exchange& exchange, Stream& stream) {
    to.request(exchange, stream);
  }

  Traffic traffic_;  // of the operations requested

 private:
  class Captured;

  void request(const Exchange& exchange, Stream& stream);
  void count(const Exchange& exchange);
  /// An operation in which this rank sends, and receives, these multiples of `bytes` to and from
  /// others.
  void add(std::size_t bytes, double sends, double receives);
  /// Each pass moves all but one of n parts; an exchange of every pair is one, too.
  void add_ring(std::size_t bytes, int passes);

  Traffic launched_;  // in addition: launches of graphs, less what was only captured
  std::vector<Captured*> graphs_;
};

inline bool is_mpi(const Communicator& communicator) {
  return std::string(communicator.transport()) == "mpi";
}

// GPUs of one node that read and write one another's memory, without NCCL: each rank's process maps
// the memory of the others, and their streams meet where one needs what another wrote.

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

// Operations slowed down to a given rate, on the stream: on a fast node one sees what a slow
// network would make of an exchange.

/// Forwards every operation to `fast`. Each rank behaves as if connected by one full-duplex link of
/// `gbs` (1e9 bytes/s each way), which it shares with all communicators split from this one:
///
/// - An operation starts after what this rank sends in it over the rate, and what it receives over
///   the rate, as Traffic counts them; so nobody has finished before the rank that moves most could
///   have. Operations of a group, on one stream, count together. What the operation itself takes on
///   the fast transport comes on top.
/// - Operations that streams have under way at the same time share the rate.
/// - The host waits no more than without: a GPU spins with one thread before the operation.
///
/// `device` must outlive it.
std::unique_ptr<Communicator> make_throttled_communicator(std::unique_ptr<Communicator> fast,
                                                          Device& device, double gbs);

/// The communicator that is in every build, of all ranks of the session: MPI on host memory. Device
/// memory is staged through pinned host memory, and the bytes so copied are counted. So is memory
/// that the device does not own, uncounted: MPI may use it for longer than its owner lives.
/// `device` makes the staging copies and must outlive the communicator; after a time-out its memory
/// is never released.
std::unique_ptr<Communicator> make_mpi_communicator(const MpiSession& session, Device& device,
                                                    MpiAlgorithm algorithm = MpiAlgorithm::own);

}  // namespace shakedown

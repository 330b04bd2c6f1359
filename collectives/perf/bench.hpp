// Times one operation at one size, and proves every timed iteration.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "collectives/operations.hpp"
#include "collectives/verifier.hpp"
#include "collectives/wrong_data.hpp"
#include "common/backend.hpp"
#include "common/mpi_session.hpp"

namespace shakedown::collectives {

/// Over ranks, as nccl-tests' -a.
enum class Average { rank0, mean, min, max };

/// After each iteration, as nccl-tests' -z: nothing; wait, then a barrier; wait; wait, then a
/// barrier that is not timed.
enum class Blocking { no, barrier, wait, untimed_barrier };

struct BenchSettings {
  int iterations = 20;      // a sample's
  int warmup = 5;           // operations of each size in warm_up
  int repeats = 5;          // samples
  int aggregate = 1;        // operations a group; an iteration is one group
  bool one_by_one = false;  // events around each iteration, which then is a sample
  int skip = 0;             // of the first iterations one by one, in what statistics see
  bool graph = false;       // the iterations of a sample captured in a graph
  bool check = true;
  Average average = Average::mean;
  Blocking blocking = Blocking::no;
  Registration registration = Registration::none;
  std::size_t ring_bytes = std::size_t{16} << 30;  // of device memory, at most
};

struct Trial {
  const Operation* operation = nullptr;
  DataType type = DataType::float32;
  Reduction reduction = Reduction::sum;
  int root = 0;
  Counts counts;
  bool in_place = false;
  std::size_t requested_bytes = 0;  // the size before it was divided between ranks

  /// nccl-tests' size: that of the larger buffer.
  std::size_t bytes() const { return counts.larger() * size_of(type); }
};

struct WrongElement {
  int rank = 0;
  long iteration = 0;
  std::uint64_t index = 0;
  std::uint64_t expected = 0;  // bits
  std::uint64_t found = 0;
};

/// The same on every rank.
struct Measurement {
  std::vector<double> samples_us;  // a sample's time by the host clock for each of its operations
  std::vector<double> rank_us;     // of each rank, the mean over samples
  std::vector<double> enqueue_us;  // of that, the time until the last was enqueued
  std::vector<std::vector<double>> iteration_us;  // [rank][iteration] by events, one by one alone
  std::vector<double> slowest_iteration_us;       // of these, over ranks
  std::size_t skipped = 0;                        // of them, which statistics leave out
  long iterations = 0;
  long iterations_checked = 0;
  std::uint64_t wrong = 0;  // elements, over all ranks and iterations
  std::optional<WrongElement> first_wrong;
  Diagnosis diagnosis;  // of some of their regions
};

/// Iterations write to a ring of slots, so that all results can be checked after a batch as long as
/// the ring, outside of the timed region.
class CollectiveBench {
 public:
  /// Collective. Slots for buffers of up to `largest_bytes`, at most largest_possible(), are
  /// allocated.
  CollectiveBench(Communicator& communicator, Backend& backend, const MpiSession& session,
                  const BenchSettings& settings, std::size_t largest_bytes);
  CollectiveBench(const CollectiveBench&) = delete;
  CollectiveBench& operator=(const CollectiveBench&) = delete;
  virtual ~CollectiveBench() = default;

  /// The largest buffer for which every rank has room for two in each slot of a group. Collective.
  static std::size_t largest_possible(const Communicator& communicator, const Backend& backend,
                                      const MpiSession& session, int aggregate);

  /// Runs what is about to be measured, in steps of at least twice the size, so that connections
  /// are made, kernels loaded and clocks up before the smallest is timed. Collective; throws as
  /// `measure`.
  void warm_up(const std::vector<Trial>& trials);

  /// Collective. Throws InconclusiveError naming operation and size past the timeout.
  Measurement measure(const Trial& trial);

 protected:
  struct Slot {
    Call call;
    Operands operands;
    long operation = 0;  // the number of the one that uses it, counted from the trial's first
  };
  struct Times {
    double total_us = 0;
    double enqueue_us = 0;
  };

  // Tests override these two, to be late or wrong on purpose (tests/support/injection).
  /// Times one operation for each of the first `slots` slots of the ring.
  virtual Times run(const Trial& trial, std::size_t slots);
  /// Enqueues the operations of ring slots [begin, end): one iteration.
  virtual void enqueue_iteration(const Trial& trial, std::size_t begin, std::size_t end);

  std::span<const Slot> ring() const { return ring_; }
  /// What this rank received in a slot, and what it should be.
  Received received(const Trial& trial, const Slot& slot) const;

 private:
  Slot make_slot(const Trial& trial, std::size_t index) const;
  void run_untimed(const Trial& trial, int times);
  void prepare(const Trial& trial, std::size_t slots);
  void enqueue(const Trial& trial, std::size_t slots);
  void check(const Trial& trial, std::size_t slots, Measurement& result);
  WrongElement describe_wrong(const Received& received, const Slot& slot, std::uint64_t index);
  void add_sample(Measurement& result, const Times& mine, int operations) const;
  void gather_iterations(Measurement& result);
  double over_ranks(const std::vector<double>& all) const;
  void complete();

  Communicator& communicator_;
  Backend& backend_;
  const MpiSession& session_;
  BenchSettings settings_;
  std::unique_ptr<Verifier> verifier_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<TransportMemory> arena_;
  std::size_t arena_bytes_ = 0;
  Buffer mismatches_;  // one a slot
  std::vector<Slot> ring_;
  Slot spare_;                // for what is not timed
  bool spare_is_own_ = true;  // not the ring's first, for which memory would not suffice
  std::vector<std::unique_ptr<Event>> marks_;  // before and after each iteration of a batch
  std::vector<double> my_iterations_us_;
  double waited_us_ = 0;            // in barriers that are not timed
  std::uint64_t sequence_ = 0;      // of operations: their iteration
  std::uint64_t regions_left_ = 0;  // to be decoded
};

std::unique_ptr<CollectiveBench> make_bench(Communicator& communicator, Backend& backend,
                                            const MpiSession& session,
                                            const BenchSettings& settings,
                                            std::size_t largest_bytes);

// Separates waiting from transfer. An operation in which each rank receives from all ends on all
// ranks together, so the rank that enters it last spends the shortest time in it: the time of the
// transfer. The others waited for the rest of their time.

struct WaitingTimes {
  double transfer_us = 0;            // median over iterations of the shortest rank's time
  std::vector<double> wait_us;       // of each rank: median of its time beyond that
  int straggler = -1;                // the rank that all others waited for; -1: none
  double wait_for_straggler_us = 0;  // median of the longest wait
};

/// From iteration_us[rank][iteration], at least one of each. A straggler has the shortest time in
/// most iterations, and the others wait for it for more than a quarter of the transfer and 20 us.
WaitingTimes analyse_waiting(const std::vector<std::vector<double>>& iteration_us);

}  // namespace shakedown::collectives

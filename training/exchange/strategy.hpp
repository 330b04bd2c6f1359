// Strategies exchange gradients and weights. The step drives: it notifies the strategy of what
// comes next and of what backward has finished; at the end the strategy returns the averaged
// gradients that this rank holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/communicator.hpp"
#include "common/device.hpp"
#include "common/kernels.hpp"
#include "common/types.hpp"
#include "resnet/architecture.hpp"
#include "resnet/recorder.hpp"
#include "resnet/weights.hpp"

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::training {

// The scalars of a training step that live on the device, so that a step needs no host.

struct StepScalars {
  float learning_rate = 0;
  float loss_scale = 1;
  std::int32_t finite = 1;         // 0 once a non-finite gradient was seen in this step
  std::int32_t updates = 0;        // steps applied
  std::int32_t skipped = 0;        // steps skipped for non-finite gradients
  std::int32_t since_rescale = 0;  // steps applied since the loss scale last changed
  float clip = 1;                  // what the gradients of this step are multiplied by
  float grad_norm = 0;             // Euclidean norm of all gradients, before clipping; if measured
};

// Gradients grouped into buckets: contiguous ranges of the flat buffer, exchanged as one.

/// Which of the buckets is the small one: the first, PyTorch's default, or the last to become
/// ready, which backward cannot hide (PyTorch's DDP_SET_LAST_BUCKET_CAP=1).
enum class SmallBucket { first, last };

/// PyTorch DDP's rule: parameters in the order in which backward finishes them are added to a
/// bucket until it has `small_cap_mb` MiB or more (the small one), or `cap_mb` (the others);
/// parameters are never split. `last`: buckets are formed from the last parameter on, so that the
/// first one has what remains. Bytes are the payload's in float32, as PyTorch counts them.
std::vector<Range> ddp_buckets(const ParameterTable& table, double small_cap_mb, double cap_mb,
                               SmallBucket small = SmallBucket::first);

/// Follows backward through the flat buffer and reports the buckets that have become complete.
class BucketProgress {
 public:
  explicit BucketProgress(std::vector<Range> buckets) : buckets_(std::move(buckets)) {}

  const std::vector<Range>& buckets() const { return buckets_; }
  void restart();
  /// `range` continues what was finished before. Returns the buckets that it completes, in order.
  std::vector<Range> finished(Range range);

 private:
  std::vector<Range> buckets_;
  std::size_t next_ = 0;  // first bucket that is not complete
  std::size_t end_ = 0;   // gradients before this element are finished
};

// A range of the flat buffers sharded over ranks: what each rank owns, and the two exchanges.

/// Equal shards in multiples of kFlatAlignment elements; the last rank's also has what they leave.
Range shard_of(Range range, int rank, int ranks);

/// Enqueues: `own` is this rank's shard of the average over the ranks of `whole`, in place or out
/// of place.
void reduce_to_shards(Communicator& ranks, ConstView whole, View own, Stream& stream);
/// Enqueues: `whole` is every rank's shard, of which this rank brings `own`, in place or out of
/// place.
void gather_shards(Communicator& ranks, ConstView own, View whole, Stream& stream);

// The exchange of a step as data: from a strategy's transfers follow the bytes that a rank sends,
// with which measured traffic is compared, and the time that results/report predicts.

/// Bytes that a rank exchanges in a step, as they travel.
struct StepVolume {
  double gradients = 0;
  double weights = 0;
  // Bytes of the weights of the network's first two blocks, and of its last two.
  double first_blocks = 0;
  double last_blocks = 0;
  int accumulate = 1;  // micro-batches
};
/// The volume of a network whose gradients and weights are exchanged in these types.
StepVolume volume_of(const ParameterTable& table, DataType gradients, DataType weights,
                     int accumulate);

enum class Volume { gradients, weights, inputs };

/// Ways in which all ranks exchange a volume. The first two are collectives, counted as their
/// bandwidth-optimal rings (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009); the others
/// are sends and receives, after which the receiver averages gradients itself.
enum class Pattern {
  all_reduce,  // two passes
  pass,        // a reduce-scatter or all-gather
  shards,      // each rank sends every other rank its shard
  star,        // gradients and inputs between rank 0 and each other rank
  chain,       // weights from rank 0 along a chain, which the last rank ends
};
/// Units of an exchange, and when they are exchanged. `whole` follows backward; the others overlap
/// it.
enum class Pieces {
  whole,
  buckets,          // of --bucket-cap-mb
  blocks,           // of the network
  gathered_blocks,  // the same, and a block's weights are gathered before its forward and backward
};

struct Transfer {
  Volume volume;
  Pattern pattern;
  Pieces pieces = Pieces::whole;
  bool each_micro_batch = false;  // else once per update

  bool overlaps() const { return pieces > Pieces::whole; }
};

/// "gradients all_reduce buckets", as `step` records have it.
std::string text_of(const Transfer& transfer);

/// Bytes that `rank` of `ranks` sends. Inputs are not counted.
double sent_in(const std::vector<Transfer>& transfers, const StepVolume& step, int ranks, int rank);

struct StrategyOptions {
  std::string strategy = "ddp";
  double bucket_cap_mb = 25;                 // MiB
  double small_bucket_mb = 1;                // MiB, of the small bucket
  std::string bucket_order = "small-first";  // or small-last
  std::string grad_dtype = "auto";           // what is exchanged; auto: what was computed
  bool no_overlap = false;                   // the compute stream exchanges too
  std::string norm_stats = "first";          // or average, or broadcast: see --norm-stats
  int invariant = 0;                         // virtual shards of the global batch; 0: off
  int staleness = 4;  // parameter-server-async: steps a worker may be ahead of the slowest
};
void declare_options(OptionSet& options, StrategyOptions& values);
SmallBucket small_bucket(const StrategyOptions& options);
/// The type of the gradients that the strategy exchanges if they are computed in `computed`. Throws
/// UsageError if it cannot exchange the type of --grad-dtype, except for `none`: it exchanges
/// nothing, and others are compared with it.
DataType exchanged_type(const StrategyOptions& options, DataType computed);

/// A part that this rank updates after a step.
struct Share {
  Range range;
  View gradient;  // averaged over the ranks that compute
  /// Memory of other ranks that the update stores the new weights in, too, as their network reads
  /// them.
  std::vector<View> copies = {};
};

/// The objects that a strategy works on. They outlive it.
struct StrategyContext {
  Device& device;
  Stream& compute;
  Communicator& world;  // of the strategy's ranks
  const ParameterTable& table;
  const Weights& weights;  // in the strategy's layout from its first step on
  StepScalars* scalars;    // device memory
  bool scaled;             // the loss is, so gradients may overflow
  const StrategyOptions& options;
  Recorder& recorder;

  Range all() const { return {0, table.stored_count()}; }
  // This rank's shards.
  Range own_shard(Range range) const;
  std::vector<Range> own_shards(const std::vector<Range>& ranges) const;
  /// The layout of a rank that computes with everything and updates `owned` alone.
  WeightsLayout updating(const std::vector<Range>& owned) const;

  /// Enqueues `body` on the stream, and records it as an exchange of `view`.
  template <class Body>
  void exchange(const char* what, ConstView view, Stream& stream, Body&& body) const {
    recorder.exchange(what, static_cast<double>(view.bytes()), stream, std::forward<Body>(body));
  }
  /// Enqueues the agreement of all ranks on whether every gradient is finite.
  void agree_on_finite() const;
  /// Enqueues the same, of gradients that nobody has looked at yet.
  void check_and_agree(ConstView gradients) const;
  /// Enqueues: every rank has the vectors that their owners hold.
  void exchange_vectors() const;
};

/// What a strategy fixes when it is made.
struct Plan {
  /// The parts of the weights and gradients that this rank holds.
  WeightsLayout layout;
  /// The ranges that this rank updates, step after step: everything, or each element on one rank.
  std::vector<Range> owned;
  /// The ranges that are exchanged as one; empty where there are none.
  std::vector<Range> buckets = {};
  /// Gradients are exchanged after each micro-batch, as they are not kept here.
  bool each_micro_batch = false;
  /// Of such a strategy: finish() sums this many micro-batches itself, and has shares only after
  /// the last. 0: the step sums the shares of all.
  int sums = 0;
  /// After finish() all ranks know whether every gradient was finite. Else the step checks the
  /// shares, and where they are parts, it has the ranks agree.
  bool agreed = false;
  /// How often in a step this rank finishes an exchange, updates and publishes: once, but on a
  /// server that applies each worker's gradients as they come.
  int rounds = 1;
  /// The share of the learning rate that one update here uses.
  double rate_share = 1;

  // From the table's entry: the class of this rank.
  const char* strategy = "";
  bool computes = true;  // on a part of the batch
  int first_computing = 0;
  int ranks_computing = 1;
  bool ranks_agree = true;        // those that compute have the same weights after every step
  bool updates_all = true;        // each of them updates everything
  bool parts = false;             // each of them updates a part, and none serves
  bool first_has_inputs = false;  // rank 0 scatters the batches
};

/// This rank computes with everything and updates everything.
Plan whole_plan(const StrategyContext& context);
/// It computes with everything and updates its shard of each of these ranges.
Plan sharded_plan(const StrategyContext& context, const std::vector<Range>& ranges);

/// What the compute stream comes to next.
enum class Next {
  update,    // the first forward pass of an update
  forward,   // the block's: it must have the block's weights
  backward,  // the block's: it must have these too, and room for the block's gradients
};

/// What set the weights that are published.
enum class Published {
  update,    // of the shares
  exchange,  // alone: no update has stored them
  load,      // outside a step
};

class Strategy {
 public:
  Strategy(const StrategyContext& context, Plan plan);
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;
  virtual ~Strategy() = default;

  const Plan& plan() const { return plan_; }

  virtual void before(Next /*next*/, int /*block*/) {}
  /// Backward has enqueued, on the compute stream, the work that finishes this block's gradients;
  /// blocks come in the flat buffer's order. Called for the last micro-batch of an update, or for
  /// each.
  virtual void gradients_ready(int /*block*/) {}
  /// After backward, or in its place where the rank does not compute: makes the compute stream wait
  /// for the exchange, and returns plan().owned with the gradients; nothing where a worker had
  /// none.
  virtual std::vector<Share> finish() = 0;
  /// Every rank that computes gets the weights that their owners hold.
  virtual void publish(Published /*how*/) {}

  // After the shares were checked, where ranks update parts.
  /// Enqueues the agreement of all on whether every gradient is finite, if finish() has not.
  void agree_on_finite() const;
  /// Enqueues: `sums` over each rank's shares become sums over all gradients.
  void add_up(View sums) const;

  /// On a server whose workers do not wait for one another: element i is the number of gradients
  /// that were i updates older than the weights they were applied to.
  const std::vector<long>& staleness() const { return staleness_; }

 protected:
  /// plan().owned in the network's own gradients.
  std::vector<Share> shares_in_place() const;

  const StrategyContext context_;
  std::vector<long> staleness_;

 private:
  Plan plan_;
};

/// The ranks of a strategy.
struct StrategyRanks {
  int least = 1;                  // it needs this many
  bool first_serves = false;      // rank 0 does not compute
  bool first_has_inputs = false;  // rank 0 reads every rank's images and scatters them
};

struct StrategyEntry {
  const char* name;
  const char* summary;
  /// The strategy whose weights it must match after the same steps; "": it is the reference, or its
  /// ranks do not agree.
  const char* reference = "all-reduce";
  const char* waived = "";  // why there is no certificate where they do not
  /// Whether every rank that computes does so with the same weights after every step.
  bool ranks_agree = true;
  bool each_updates_all = false;  // else each element is updated on one rank
  bool peers = false;             // it needs Communicator::peers()
  bool any_type = false;  // it can exchange gradients in another type than they were computed in
  /// A step can be a graph: the host enqueues the same work every time and does not wait within it.
  /// finish() joins other streams to the one that computes, and what the host keeps of a step is as
  /// before it.
  bool capturable = true;
  StrategyRanks ranks = {};
  std::vector<Transfer> transfers;
  std::unique_ptr<Strategy> (*make)(const StrategyContext& context);

  bool overlaps() const;  // it exchanges while the rank computes
  bool bucketed() const;  // it exchanges buckets, whose cap then is part of the configuration
  /// Ranks wait for one another in each step, so that its time can be predicted.
  bool synchronous() const { return ranks_agree || transfers.empty(); }
  /// Bytes that `rank` of `ranks` sends in a step, of gradients and weights.
  double bytes_sent(const StepVolume& step, int ranks, int rank) const;
  int first_computing() const { return ranks.first_serves ? 1 : 0; }
  bool computes(int rank) const { return rank >= first_computing(); }
  int computing(int world_size) const { return world_size - first_computing(); }
  /// Its number among the ranks that compute; a rank that does not compute has the first one's.
  int computing_rank(int rank) const { return computes(rank) ? rank - first_computing() : 0; }
};

/// The exchange whose weights those of `options` must match after the same steps, where gradients
/// are computed in `computed`; none: `options` are the reference. The reference itself, where it
/// exchanges another type or by a tree, is compared with what it is without.
std::optional<StrategyOptions> reference_of(const StrategyOptions& options, DataType computed);

/// The one list of strategies.
const std::vector<StrategyEntry>& strategies();
/// Throws UsageError listing the known names.
const StrategyEntry& find_strategy(const std::string& name);

}  // namespace shakedown::training

// In the order in which programs list them.
#define SHAKEDOWN_STRATEGIES(STRATEGY) \
  STRATEGY(none)                       \
  STRATEGY(all_reduce)                 \
  STRATEGY(ddp)                        \
  STRATEGY(parameter_server)           \
  STRATEGY(parameter_server_sharded)   \
  STRATEGY(parameter_server_async)     \
  STRATEGY(data_parallel)              \
  STRATEGY(zero1)                      \
  STRATEGY(zero2)                      \
  STRATEGY(fsdp)                       \
  STRATEGY(peer)

namespace shakedown::training {

// The strategies: a line each here, and a file each that defines `StrategyEntry NAME_strategy()`.

#define DECLARE_STRATEGY(name) StrategyEntry name##_strategy();
SHAKEDOWN_STRATEGIES(DECLARE_STRATEGY)
#undef DECLARE_STRATEGY

template <class T>
std::unique_ptr<Strategy> make(const StrategyContext& context) {
  return std::make_unique<T>(context);
}

}  // namespace shakedown::training

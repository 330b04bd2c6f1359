// As zero1, over peer memory in the place of NCCL (GPUs of one node): while backward runs, each
// rank averages its shard of a bucket from all ranks' gradients; when all have agreed that they are
// finite, its update stores the new weights in every rank's memory.
#include <optional>

#include "common/communicator.hpp"
#include "training/exchange/bucket_stream.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {
namespace {

/// The buffers of every rank, mapped here.
struct PeerBuffers {
  PeerBuffers(Peers& peers, const Weights& weights)
      : gradients(peers.map(weights.gradients())), compute(peers.map(weights.compute())) {
    if (weights.vectors().count > 0) vectors = peers.map(weights.vectors());
  }

  std::unique_ptr<PeerMemory> gradients;
  std::unique_ptr<PeerMemory> compute;
  std::unique_ptr<PeerMemory> vectors;  // null where the network reads none
};

Plan plan_of_peer(const StrategyContext& context) {
  Plan plan = sharded_plan(context, buckets_of(context));
  plan.buckets = buckets_of(context);
  plan.agreed = true;
  return plan;
}

class Peer final : public Strategy {
 public:
  explicit Peer(const StrategyContext& context)
      : Strategy(context, plan_of_peer(context)),
        peers_(context.world.peers()),
        stream_(context, "reduce_scatter") {}

  /// Gradients are read until the next meeting of all, and not written before publish() has come to
  /// the last: each rank averages its own shard in place.
  void gradients_ready(int block) override {
    stream_.gradients_ready(block, [&](Range bucket, Stream& stream) {
      const Range shard = context_.own_shard(bucket);
      peers_.meet(stream);
      peers_.average(of_all(*buffers().gradients, shard), context_.weights.gradients(shard),
                     context_.scaled ? finite() : nullptr, stream);
      context_.world.count_peers(context_.weights.gradients(bucket).bytes());
    });
  }

  /// All agree also where the loss is not scaled: if a rank does not come, none updates.
  std::vector<Share> finish() override {
    stream_.join();
    std::vector<Share> shares = shares_in_place();
    for (Share& share : shares) share.copies = of_others(share.range);
    peers_.agree(finite(), context_.compute);
    return shares;
  }

  void publish(Published how) override {
    if (how == Published::load) peers_.meet(context_.compute);  // the others have set theirs
    if (how == Published::update) return meet();
    context_.exchange("all_gather", context_.weights.compute(), context_.compute, [&] {
      for (const Range& range : plan().owned) {
        const View own = context_.weights.compute(range);
        for (const View& other : of_others(range))
          context_.device.copy(other.data, own.data, own.bytes(), context_.compute);
      }
      meet();
    });
  }

 private:
  /// The weights are stored: all ranks had ended backward, as they came to the meeting of its last
  /// bucket.
  void meet() {
    context_.world.count_peers(context_.weights.compute().bytes());
    if (const auto& vectors = buffers().vectors) {
      context_.weights.push_vectors(peers_, vectors->views(), context_.compute);
      context_.world.count_peers(context_.weights.vectors().bytes());
    }
    peers_.meet(context_.compute);
  }

  /// Mapped at the first use, by when the weights have this strategy's layout.
  PeerBuffers& buffers() {
    if (!buffers_) buffers_.emplace(peers_, context_.weights);
    return *buffers_;
  }

  static std::vector<View> of_all(const PeerMemory& memory, Range range) {
    std::vector<View> views;
    for (const View& whole : memory.views())
      views.push_back(whole.slice(range.begin, range.count()));
    return views;
  }
  std::vector<View> of_others(Range range) {
    std::vector<View> views = of_all(*buffers().compute, range);
    views.erase(views.begin() + context_.world.rank());
    return views;
  }

  std::int32_t* finite() const { return &context_.scalars->finite; }

  Peers& peers_;
  BucketStream stream_;
  std::optional<PeerBuffers> buffers_;
};

}  // namespace

StrategyEntry peer_strategy() {
  return {
      .name = "peer",
      .summary = "as zero1, but GPUs of one node read and write one another's memory themselves",
      .peers = true,
      .transfers = {{Volume::gradients, Pattern::pass, Pieces::buckets},
                    {Volume::weights, Pattern::pass}},
      .make = make<Peer>};
}

}  // namespace shakedown::training

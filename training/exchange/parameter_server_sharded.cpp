// Every rank computes and serves a shard of the weights: gradients are pushed to their shard's
// rank, which averages and updates, and everyone pulls every shard (BytePS's and ps-lite's layout
// with servers beside the workers). Sends and receives; zero1 does the same by collectives.
#include "training/exchange/entries.hpp"
#include "training/exchange/shards.hpp"

namespace shakedown::training {
namespace {

class Sharded final : public Strategy {
 public:
  explicit Sharded(const StrategyContext& context) : Strategy(context) {
    const std::size_t own = owned().front().count();
    const DataType type = context.weights.type();
    received_ = Buffer(context.device,
                       static_cast<std::size_t>(context.world.size()) * own * size_of(type));
    if (type != DataType::float32) sum_ = Buffer(context.device, own * sizeof(float));
  }

  WeightsLayout layout() const override { return updating(owned()); }
  std::vector<Range> owned() const override { return {own(context_.all())}; }

  std::vector<Share> finish() override {
    exchange("push", context_.weights.gradients(), context_.compute, [&] {
      with_each_peer([&](int peer, Range theirs) {
        context_.world.send(context_.weights.gradients(theirs), peer, context_.compute);
        context_.world.recv(received(peer), peer, context_.compute);
      });
    });
    return {average()};
  }
  void agree_on_finite() override { context_.agree_on_finite(); }

  void publish() override {
    const Range mine = own(context_.all());
    exchange("pull", context_.weights.compute(), context_.compute, [&] {
      with_each_peer([&](int peer, Range theirs) {
        context_.world.send(context_.weights.compute(mine), peer, context_.compute);
        context_.world.recv(context_.weights.compute(theirs), peer, context_.compute);
      });
    });
    context_.exchange_vectors();
  }

 private:
  template <class Body>
  void for_each_peer(Body&& body) const {
    for (int peer = 0; peer < context_.world.size(); ++peer)
      if (peer != context_.world.rank())
        body(peer, shard_of(context_.all(), peer, context_.world.size()));
  }

  template <class Body>
  void with_each_peer(Body&& body) const {
    context_.world.group([&] { for_each_peer(body); });
  }

  View received(int peer) const {
    const std::size_t count = own(context_.all()).count();
    return received_.view(context_.weights.type())
        .slice(static_cast<std::size_t>(peer) * count, count);
  }

  Share average() {
    const Kernels& kernels = context_.device.kernels();
    const Range mine = own(context_.all());
    const View gradient = context_.weights.gradients(mine);
    const View sum = sum_.bytes() == 0 ? gradient : sum_.view(DataType::float32);
    if (sum_.bytes() > 0) kernels.accumulate(sum, gradient, true, context_.compute);
    for_each_peer(
        [&](int peer, Range) { kernels.accumulate(sum, received(peer), false, context_.compute); });
    kernels.scale(sum, gradient, 1.0F / static_cast<float>(context_.world.size()),
                  context_.compute);
    return {mine, gradient};
  }

  Buffer received_;  // this rank's shard from every rank
  Buffer sum_;       // float32, where gradients are not
};

}  // namespace

StrategyEntry parameter_server_sharded_strategy() {
  return {.name = "parameter-server-sharded",
          .summary = "every rank computes and serves a shard",
          .reference = "all-reduce",
          .waived = "",
          .ranks_agree = true,
          .each_updates_all = false,
          .overlaps = false,
          .ranks = {},
          .make = make<Sharded>};
}

}  // namespace shakedown::training

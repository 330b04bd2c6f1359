// Every rank computes and serves a shard of the weights: gradients are pushed to their shard's
// rank, which averages and updates, and everyone pulls every shard (BytePS's and ps-lite's layout
// with a server next to each worker). Sends and receives; zero1 does the same by collectives.
#include "training/exchange/star.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {
namespace {

class Sharded final : public Strategy {
 public:
  explicit Sharded(const StrategyContext& context)
      : Strategy(context, sharded_plan(context, {context.all()})),
        received_(context, context.world.size() - 1, plan().owned.front()) {}

  std::vector<Share> finish() override {
    context_.exchange("push", context_.weights.gradients(), context_.compute, [&] {
      with_each_peer([&](int peer, Range theirs) {
        context_.world.send(context_.weights.gradients(theirs), peer, context_.compute);
        context_.world.recv(received_.from(sender(peer)), peer, context_.compute);
      });
    });
    return {received_.average(true)};
  }

  void publish(Published) override {
    const Range mine = plan().owned.front();
    context_.exchange("pull", context_.weights.compute(), context_.compute, [&] {
      with_each_peer([&](int peer, Range theirs) {
        context_.world.send(context_.weights.compute(mine), peer, context_.compute);
        context_.world.recv(context_.weights.compute(theirs), peer, context_.compute);
      });
    });
    context_.exchange_vectors();
  }

 private:
  template <class Body>
  void with_each_peer(Body&& body) const {
    context_.world.group([&] {
      for (int peer = 0; peer < context_.world.size(); ++peer)
        if (peer != context_.world.rank())
          body(peer, shard_of(context_.all(), peer, context_.world.size()));
    });
  }
  int sender(int peer) const { return peer < context_.world.rank() ? peer : peer - 1; }

  ReceivedGradients received_;
};

}  // namespace

StrategyEntry parameter_server_sharded_strategy() {
  return {.name = "parameter-server-sharded",
          .summary = "every rank computes and serves a shard",
          .transfers = {{Volume::gradients, Pattern::shards}, {Volume::weights, Pattern::shards}},
          .make = make<Sharded>};
}

}  // namespace shakedown::training

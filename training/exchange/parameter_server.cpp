// Rank 0 holds the weights and updates them; the others compute, push their gradients to it and
// pull the weights back: the synchronous parameter server (Li et al. 2014), as a true star of sends
// and receives. Or, for comparison, as what many call so: a reduce to rank 0 and a broadcast.
#include <fmt/format.h>

#include <algorithm>

#include "common/error.hpp"
#include "training/exchange/star.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {
namespace {

constexpr int kServer = 0;

/// Pieces of whole chunks, of at most `mib` MiB; 0: one piece.
std::vector<Range> pieces_of(Range all, double mib, DataType type) {
  auto most =
      static_cast<std::size_t>(mib * kMebibyte) / size_of(type) / kFlatAlignment * kFlatAlignment;
  if (mib == 0) most = all.count();
  most = std::max(most, kFlatAlignment);
  std::vector<Range> pieces;
  for (std::size_t begin = all.begin; begin < all.end; begin += most)
    pieces.push_back({begin, std::min(begin + most, all.end)});
  return pieces;
}

class Server : public Strategy {
 public:
  using Strategy::Strategy;
  WeightsLayout layout() const override { return updating(owned()); }
  std::vector<Range> owned() const override {
    return serves() ? std::vector<Range>{context_.all()} : std::vector<Range>{};
  }

 protected:
  bool serves() const { return context_.world.rank() == kServer; }
};

class SendReceive final : public Server {
 public:
  explicit SendReceive(const StrategyContext& context)
      : Server(context),
        pieces_(pieces_of(context.all(), context.options.ps_partition_mb, context.weights.type())),
        star_(context, pieces_.front().count()) {}

  std::vector<Share> finish() override {
    if (pieces_.size() == 1) {
      push_all();
      context_.agree_on_finite();
      return {};
    }
    context_.check_and_agree(context_.weights.gradients());  // before the first piece is applied
    pipeline([](Range) {});
    return {};
  }
  void serve(const Updates& updates) override {
    if (pieces_.size() == 1) {
      push_all();
      const Share share = star_.average(context_.all(), false);
      context_.check_and_agree(share.gradient);
      updates.apply(share);
    } else {
      context_.agree_on_finite();
      pipeline([&](Range piece) { updates.apply(star_.average(piece, false)); });
    }
    updates.complete();
  }

  void publish() override {
    if (pieces_.size() == 1) pull_all();
    context_.exchange_vectors();
  }
  void distribute() override {
    pull_all();
    context_.exchange_vectors();
  }

 private:
  /// Each piece is pulled while the next is pushed.
  template <class Pushed>
  void pipeline(Pushed&& pushed) {
    for (std::size_t i = 0; i <= pieces_.size(); ++i) {
      const View piece = context_.weights.gradients(pieces_[std::min(i, pieces_.size() - 1)]);
      exchange("push_pull", piece, context_.compute, [&] {
        context_.world.group([&] {
          if (i < pieces_.size()) star_.push(pieces_[i]);
          if (i > 0) star_.pull(pieces_[i - 1]);
        });
      });
      if (i < pieces_.size()) pushed(pieces_[i]);
    }
  }
  void push_all() {
    exchange("push", context_.weights.gradients(), context_.compute,
             [&] { context_.world.group([&] { star_.push(context_.all()); }); });
  }
  void pull_all() {
    exchange("pull", context_.weights.compute(), context_.compute,
             [&] { context_.world.group([&] { star_.pull(context_.all()); }); });
  }

  std::vector<Range> pieces_;
  Star star_;
};

class ReduceBroadcast final : public Server {
 public:
  explicit ReduceBroadcast(const StrategyContext& context) : Server(context) {
    if (serves() && context.weights.type() != DataType::float32)
      wide_ = Buffer(context.device, context.all().count() * sizeof(float));
  }

  std::vector<Share> finish() override {
    reduce(View());
    context_.agree_on_finite();
    return {};
  }
  void serve(const Updates& updates) override {
    const View gradients = context_.weights.gradients();
    context_.device.zero(gradients.data, gradients.bytes(), context_.compute);
    reduce(gradients);
    // the average is over the server too, whose gradients are zero
    const Kernels& kernels = context_.device.kernels();
    const View sum = wide_.bytes() > 0 ? wide_.view(DataType::float32) : gradients;
    if (wide_.bytes() > 0) kernels.convert(gradients, sum, context_.compute);
    const auto ranks = static_cast<float>(context_.world.size());
    kernels.scale(sum, gradients, ranks / (ranks - 1), context_.compute);
    context_.check_and_agree(gradients);
    updates.apply({context_.all(), gradients});
    updates.complete();
  }
  void publish() override {
    const View weights = context_.weights.compute();
    exchange("pull", weights, context_.compute,
             [&] { context_.world.broadcast(weights, weights, kServer, context_.compute); });
    context_.exchange_vectors();
  }

 private:
  void reduce(View to) {
    exchange("push", context_.weights.gradients(), context_.compute, [&] {
      context_.world.reduce(context_.weights.gradients(), to, Reduction::avg, kServer,
                            context_.compute);
    });
  }

  Buffer wide_;  // float32, where gradients are not
};

std::unique_ptr<Strategy> make_server(const StrategyContext& context) {
  if (context.options.ps_exchange == "reduce-broadcast")
    return std::make_unique<ReduceBroadcast>(context);
  return std::make_unique<SendReceive>(context);
}

}  // namespace

StrategyEntry parameter_server_strategy() {
  return {.name = "parameter-server",
          .summary = "rank 0 updates, the others compute, push gradients and pull weights",
          .ranks = {.least = 2, .first_serves = true},
          .transfers = {{Volume::gradients, Pattern::star, Pieces::partitions},
                        {Volume::weights, Pattern::star, Pieces::partitions}},
          .by_collectives = {{Volume::gradients, Pattern::star}, {Volume::weights, Pattern::chain}},
          .make = make_server};
}

}  // namespace shakedown::training

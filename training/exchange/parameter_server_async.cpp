// The parameter server whose workers do not wait for one another: each gradient is applied as it
// comes, to weights that others have moved since it was computed from them. A worker that is more
// than `staleness` steps ahead of the slowest waits: stale synchronous parallelism (Ho et al.
// 2013).
#include <algorithm>

#include "training/exchange/star.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {
namespace {

constexpr int kServerRank = 0;

/// The content of a worker's notice: its gradients follow, or were not finite and do not.
enum Notice { skipped = 0, pushes = 1 };

Plan plan_of_async(const StrategyContext& context) {
  const int workers = context.world.size() - 1;
  Plan plan = plan_of_star(context);
  plan.agreed = true;
  // As many notices as there are workers, from any of them.
  if (context.world.rank() == kServerRank) plan.rounds = workers;
  // As many pushes as there are workers move the weights about as far as a synchronous step.
  plan.rate_share = 1.0 / workers;
  return plan;
}

class ParameterServerAsync final : public Strategy {
 public:
  explicit ParameterServerAsync(const StrategyContext& context)
      : Strategy(context, plan_of_async(context)), computed_(context.device.make_event()) {
    if (!serves()) return;
    const auto ranks = static_cast<std::size_t>(context.world.size());
    steps_.resize(ranks, 0);
    pulled_.resize(ranks, 0);
    waiting_.resize(ranks, false);
  }

  std::vector<Share> finish() override { return serves() ? take() : push(); }

  /// A worker waits for its weights after each push, so that none runs ahead.
  void publish(Published how) override {
    if (how == Published::load)
      distribute();
    else if (serves())
      answer_those_who_may_go_on();
    else
      pull();
  }

 private:
  bool serves() const { return context_.world.rank() == kServerRank; }
  View loss_scale() const {
    return {&context_.scalars->loss_scale, 1, DataType::float32, Place::device};
  }

  /// The host waits for backward: only then does it know that this rank comes next.
  std::vector<Share> push() {
    const View gradients = context_.weights.gradients();
    if (context_.scaled)
      context_.device.kernels().check_finite(gradients, &context_.scalars->finite,
                                             context_.compute);
    computed_->record(context_.compute);
    context_.world.wait(*computed_, HostWait::polite);
    const auto scalars =
        download<StepScalars>(context_.device, context_.compute, context_.scalars, 1);
    const bool finite = scalars.front().finite != 0;
    context_.world.notify(kServerRank, finite ? pushes : skipped);
    if (finite)
      context_.exchange("push", gradients, context_.compute, [&] {
        context_.world.group([&] {
          context_.world.send(gradients, kServerRank, context_.compute);
          context_.world.send(loss_scale(), kServerRank, context_.compute);
        });
      });
    return {};
  }

  /// The gradients of the worker that comes next; nothing where it skips the step.
  std::vector<Share> take() {
    const Communicator::Notice notice = context_.world.next_notice();
    const auto worker = static_cast<std::size_t>(notice.from);
    ++steps_[worker];
    waiting_[worker] = true;
    if (notice.value != pushes) return {};
    const View gradients = context_.weights.gradients();
    context_.exchange("push", gradients, context_.compute, [&] {
      context_.world.group([&] {
        context_.world.recv(gradients, notice.from, context_.compute);
        context_.world.recv(loss_scale(), notice.from, context_.compute);
      });
    });
    count(updates_ - pulled_[worker]);
    ++updates_;
    return {{context_.all(), gradients}};
  }

  void answer_those_who_may_go_on() {
    const long slowest = *std::min_element(steps_.begin() + 1, steps_.end());
    for (int worker = 1; worker < context_.world.size(); ++worker) {
      const auto w = static_cast<std::size_t>(worker);
      if (!waiting_[w] || steps_[w] - slowest > context_.options.staleness) continue;
      waiting_[w] = false;
      pulled_[w] = updates_;
      context_.weights.pack_vectors(context_.compute);
      context_.exchange("pull", context_.weights.compute(), context_.compute, [&] {
        context_.world.group([&] {
          context_.world.send(context_.weights.compute(), worker, context_.compute);
          if (const View vectors = context_.weights.vectors(); vectors.count > 0)
            context_.world.send(vectors, worker, context_.compute);
        });
      });
    }
  }

  void pull() {
    context_.exchange("pull", context_.weights.compute(), context_.compute, [&] {
      context_.world.group([&] {
        context_.world.recv(context_.weights.compute(), kServerRank, context_.compute);
        if (const View vectors = context_.weights.vectors(); vectors.count > 0)
          context_.world.recv(vectors, kServerRank, context_.compute);
      });
    });
  }

  void distribute() {
    const View weights = context_.weights.compute();
    context_.world.broadcast(weights, weights, kServerRank, context_.compute);
    context_.exchange_vectors();
    pulled_.assign(pulled_.size(), updates_);
  }

  void count(long updates_missed) {
    const auto missed = static_cast<std::size_t>(updates_missed);
    if (staleness_.size() <= missed) staleness_.resize(missed + 1, 0);
    ++staleness_[missed];
  }

  std::unique_ptr<Event> computed_;
  // The server's, by rank.
  std::vector<long> steps_;
  std::vector<long> pulled_;  // updates that its weights had
  std::vector<bool> waiting_;
  long updates_ = 0;
};

}  // namespace

StrategyEntry parameter_server_async_strategy() {
  return {.name = "parameter-server-async",
          .summary = "parameter server whose workers do not wait for one another",
          .reference = "",
          .waived = "asynchronous updates have no synchronous reference; staleness is reported",
          .ranks_agree = false,
          .capturable = false,
          .ranks = {.least = 2, .first_serves = true},
          .transfers = {{Volume::gradients, Pattern::star}, {Volume::weights, Pattern::star}},
          .make = make<ParameterServerAsync>};
}

}  // namespace shakedown::training

#include "training/step/step.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "common/error.hpp"
#include "common/mpi_session.hpp"

namespace shakedown::training {

void Step::run(const LoadBatch& load_batch, double learning_rate) {
  recorder_.begin_step();  // where the previous step ends, however late the host is
  limit_host_lead();
  backend_.session->progress();
  const ProfilerRange named(device(), "step");
  model_.set_learning_rate(learning_rate);
  const bool replays = graphs_ && graphs_->captured();
  for (int m = 0; m < micro_batches(); ++m) {
    if (computes()) {
      load_batch(m);
      recorder_.mark(Phase::input);
    }
    if (m == 0 && before_update_) before_update_();
    replays ? graphs_->launch(m) : enqueue(m);
  }
  model_.network().count_batches(plan().sums > 0 ? 1 : settings_.accumulate);
  end_step();
  if (replays)
    ++graph_steps_;
  else if (graphs_)
    graphs_->capture(micro_batches(), [this](int m) { enqueue(m); });
}

/// The contents of a graph: a micro-batch that is loaded and, after the last one, the rest of the
/// step.
void Step::enqueue(int micro_batch) {
  if (computes()) {
    if (micro_batch == 0) strategy_->before(Next::update, 0);
    forward();
    backward(micro_batch, [this](int block) { model_.network().backward(block); });
    if (!exchanges_after(micro_batch)) return;
  }
  for (int round = 0; round < plan().rounds; ++round) {
    const std::vector<Share> shares = finish_exchange(micro_batch);
    if (!is_last(micro_batch)) return;
    if (computes() || !shares.empty()) apply(shares);
    publish();
  }
}

void Step::forward() {
  for (int block = 0; block < model_.network().blocks(); ++block) {
    const ProfilerRange named(device(), forward_names_[static_cast<std::size_t>(block)]);
    strategy_->before(Next::forward, block);
    model_.network().forward(block, Pass::training);
    recorder_.mark(Phase::forward, block);
  }
}

/// `compute` enqueues what makes a block's gradients.
template <class Compute>
void Step::backward(int micro_batch, Compute&& compute) {
  Network& network = model_.network();
  for (int block = network.blocks() - 1; block >= 0; --block) {
    const ProfilerRange named(device(), backward_names_[static_cast<std::size_t>(block)]);
    const Range range = network.block_range(block);
    strategy_->before(Next::backward, block);
    compute(block);
    if (!exchanges_each()) add_to_sum(range, network.weights().gradients(range), micro_batch);
    recorder_.mark(Phase::backward, block);
    if (exchanges_after(micro_batch)) strategy_->gradients_ready(block);
  }
}

std::vector<Share> Step::finish_exchange(int micro_batch) {
  const std::vector<Share> shares = strategy_->finish();
  recorder_.mark(Phase::exchange);
  if (exchanges_each()) {
    for (const Share& share : shares) add_to_sum(share.range, share.gradient, micro_batch);
    recorder_.mark(Phase::update);
  }
  return shares;
}

/// The update of a rank that computes, and of one that serves.
void Step::apply(const std::vector<Share>& shares) {
  if (!plan().agreed) model_.check_finite(shares);
  model_.optimizer().measure_norms(shares);
  recorder_.mark(Phase::update);
  strategy_->agree_on_finite();
  strategy_->add_up(model_.optimizer().norm_sums());
  recorder_.mark(Phase::exchange);
  model_.optimizer().update(shares, model_.scalars());
  model_.finish_update();
  recorder_.mark(Phase::update);
}

void Step::publish() {
  const ProfilerRange named(device(), "publish");
  strategy_->publish(Published::update);
  recorder_.mark(Phase::exchange);
}

/// The sum over the micro-batches; after the last one, `gradient` becomes their average.
void Step::add_to_sum(Range range, View gradient, int micro_batch) {
  if (sum_.empty()) return;
  const View sum = sum_.at(range);
  const Kernels& kernels = device().kernels();
  kernels.accumulate(sum, gradient, micro_batch == 0, stream_);
  if (is_last(micro_batch))
    kernels.scale(sum, gradient, 1.0F / static_cast<float>(settings_.accumulate), stream_);
}

// The host runs at most two steps ahead; one when micro-batches make a step many operations.
void Step::limit_host_lead() {
  const long ahead = settings_.accumulate > 1 ? 1 : 2;
  if (steps_ >= ahead)
    backend_.world->wait(*step_done_[static_cast<std::size_t>((steps_ - ahead) % 2)],
                         HostWait::polite);
}

void Step::end_step() {
  step_done_[static_cast<std::size_t>(steps_ % 2)]->record(stream_);
  ++steps_;
}

void Step::compute_gradients(const std::function<void(int block)>& ready) {
  Network& network = model_.network();
  for (int block = 0; block < network.blocks(); ++block) network.forward(block, Pass::training);
  for (int block = network.blocks() - 1; block >= 0; --block) {
    strategy_->before(Next::backward, block);
    network.backward(block);
    ready(block);
  }
}

void Step::exchange_alone() {
  recorder_.begin_step();
  limit_host_lead();
  const int blocks = model_.network().blocks();
  const int times = computes() && exchanges_each() ? settings_.accumulate : 1;
  if (computes()) strategy_->before(Next::update, 0);
  for (int i = 0; i < times; ++i) {
    if (i > 0) strategy_->finish();
    for (int block = 0; computes() && block < blocks; ++block)
      strategy_->before(Next::forward, block);
    for (int block = blocks - 1; computes() && block >= 0; --block) {
      strategy_->before(Next::backward, block);
      strategy_->gradients_ready(block);
    }
  }
  end_exchange([this] { strategy_->finish(); });
}

void Step::exchange_gradients(const WriteGradients& write, const ReadShare& read) {
  recorder_.begin_step();
  limit_host_lead();
  const Network& network = model_.network();
  const int last = micro_batches() - 1;
  for (int m = 0; computes() && m <= last; ++m) {
    if (m == 0) strategy_->before(Next::update, 0);
    for (int block = 0; block < network.blocks(); ++block) strategy_->before(Next::forward, block);
    backward(m, [&](int block) {
      const Range range = network.block_range(block);
      write(network.weights().gradients(range), range, m);
    });
    if (m < last && exchanges_each()) finish_exchange(m);
  }
  end_exchange([&] {
    for (const Share& share : finish_exchange(last)) read(share);
  });
}

/// The end of an exchange whose gradients are not applied; `finish` finishes it.
template <class Finish>
void Step::end_exchange(Finish&& finish) {
  for (int round = 0; round < plan().rounds; ++round) {
    finish();
    strategy_->agree_on_finite();
    model_.discard_update();
    strategy_->publish(Published::exchange);
  }
  recorder_.mark(Phase::exchange);
  end_step();
}

Step::Step(const EngineSettings& settings, Backend& backend, ModelState& model)
    : settings_(settings),
      backend_(backend),
      model_(model),
      stream_(model.stream()),
      recorder_(model.network().recorder()) {
  for (auto& event : step_done_) event = device().make_event();
  for (const std::string& block : block_names(settings.network.architecture)) {
    forward_names_.push_back("forward " + block);
    backward_names_.push_back("backward " + block);
  }
  use_strategy(settings.strategy);
}

void Step::use_strategy(const StrategyOptions& options, Communicator& ranks) {
  settings_.strategy = options;
  entry_ = &find_strategy(options.strategy);
  if (ranks.size() < entry_->ranks.least)
    throw UsageError(fmt::format("--strategy {}: at least {} ranks, not {}", entry_->name,
                                 entry_->ranks.least, ranks.size()));
  graphs_.reset();
  strategy_.reset();  // its memory first
  ranks_ = &ranks;
  const Network& network = model_.network();
  strategy_ = settings_.make_strategy(
      *entry_, {device(), stream_, ranks, network.table(), network.weights(), model_.scalars(),
                scales_loss(), settings_.strategy, recorder_});
  model_.use(*strategy_, scales_loss());
  sum_ = FlatBuffer();
  ENSURE(plan().sums == 0 || plan().sums == settings_.accumulate, "a micro-batch per shard");
  if (settings_.accumulate > 1 && computes() && plan().sums == 0)
    sum_ = FlatBuffer(
        device(), stream_, DataType::float32,
        exchanges_each() ? packed(plan().owned) : whole_weights(network.table()).gradients);
  if (why_no_graph().empty()) graphs_.emplace(device(), stream_, ranks, recorder_);
}

void Step::set_repeatable(bool repeatable) {
  drop_graphs();
  model_.network().set_repeatable(repeatable);
}

void Step::drop_graphs() {
  if (graphs_) graphs_->drop();
}

std::string Step::why_no_graph() const {
  if (!device().has_graphs()) return fmt::format("{} has none", name_of(device().kind()));
  if (!settings_.no_graph.empty()) return settings_.no_graph;
  if (!entry_->capturable) return fmt::format("{} needs the host in each step", entry_->name);
  if (!ranks_->capturable())
    return fmt::format("{} operations run on the host", ranks_->transport());
  return "";
}

DataType Step::exchanged_type() const {
  return training::exchanged_type(settings_.strategy, model_.network().weights().type());
}

// What is exchanged in float16 has float16's range, whatever it was computed in: small gradients
// would vanish, and large ones become infinite unseen. (PyTorch's fp16_compress_hook leaves it to
// the user to scale the loss.)
bool Step::scales_loss() const {
  return shakedown::scales_loss(settings_.network.precision) ||
         exchanged_type() == DataType::float16;
}

void StepGraphs::capture(int micro_batches, const std::function<void(int micro_batch)>& enqueue) {
  std::vector<MarkedGraph> captured(static_cast<std::size_t>(micro_batches));
  try {
    for (int m = 0; m < micro_batches; ++m) {
      MarkedGraph& made = captured[static_cast<std::size_t>(m)];
      made.marks = recorder_.captured(
          [&] { made.graph = ranks_.capture(device_, compute_, [&] { enqueue(m); }); });
    }
  } catch (const InternalError& error) {
    throw InternalError(std::string("the step cannot be captured as a CUDA graph here, --graph off "
                                    "runs without: ") +
                        error.what());
  }
  graphs() = std::move(captured);
}

void StepGraphs::launch(int micro_batch) {
  const MarkedGraph& made = graphs().at(static_cast<std::size_t>(micro_batch));
  recorder_.launched(made.marks);
  made.graph->launch(compute_);
}

}  // namespace shakedown::training

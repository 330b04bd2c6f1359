#include "training/step/engine.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/error.hpp"
#include "common/mpi_session.hpp"
#include "training/step/soundness.hpp"

namespace shakedown::training {

Engine::Engine(const EngineSettings& settings, Backend& backend)
    : settings_(settings),
      backend_(backend),
      stream_(backend.device->make_stream()),
      timeline_(*backend.device),
      scalars_(*backend.device, sizeof(StepScalars)),
      network_(settings.network, *backend.device, *stream_,
               static_cast<const StepScalars*>(scalars_.data())),
      optimizer_(settings.optimizer, *backend.device, *stream_, network_.table(),
                 network_.weights()) {
  for (auto& event : step_done_) event = device().make_event();
  for (const std::string& block : block_names(settings.network.architecture)) {
    forward_names_.push_back("forward " + block);
    backward_names_.push_back("backward " + block);
  }
  use_strategy(settings.strategy);
}

void Engine::allocate(int ranks_on_device) {
  check_memory(ranks_on_device);
  restart();  // before the convolutions are tuned: zero weights would run faster
  if (computes()) {
    for (int block = 0; block < network_.blocks(); ++block)
      strategy_->before_forward(block);  // where blocks take turns, weights are there only then
    finish();
  }
  if (graphs_) graphs_->drop();
  allocate_activations();
}

void Engine::use_strategy(const StrategyOptions& options, Communicator& ranks) {
  settings_.strategy = options;
  const StrategyEntry& entry = strategy_entry();
  if (ranks.size() < entry.ranks.least)
    throw UsageError(fmt::format("--strategy {}: at least {} ranks, not {}", entry.name,
                                 entry.ranks.least, ranks.size()));
  graphs_.reset();
  strategy_.reset();  // its memory first
  ranks_ = &ranks;
  strategy_ = entry.make({device(), *stream_, ranks, network_.table(), network_.weights(),
                          static_cast<StepScalars*>(scalars_.data()), scales_loss(),
                          settings_.strategy, timeline_});
  network_.set_layout(strategy_->layout());
  optimizer_.own(strategy_->owned());
  sum_ = FlatBuffer();
  if (settings_.accumulate > 1 && computes())
    sum_ = FlatBuffer(device(), *stream_, DataType::float32,
                      strategy_->exchanges_each_micro_batch()
                          ? packed(strategy_->owned())
                          : whole_weights(network_.table()).gradients);
  if (why_no_graph().empty()) graphs_.emplace(device(), *stream_, ranks, timeline_);
}

void Engine::set_repeatable(bool repeatable) {
  if (graphs_) graphs_->drop();
  network_.set_repeatable(repeatable);
}

std::string Engine::why_no_graph() const {
  if (!device().has_graphs()) return fmt::format("{} has none", name_of(device().kind()));
  if (!settings_.no_graph.empty()) return settings_.no_graph;
  if (!strategy_entry().capturable)
    return fmt::format("the host takes part in steps by {}", strategy_entry().name);
  if (!ranks_->capturable())
    return fmt::format("operations of {} are the host's", ranks_->transport());
  return "";
}

void Engine::restart() {
  finish();  // what was enqueued may wait for other ranks
  if (seeded_.empty()) seeded_ = network_.seeded(settings_.seed);
  network_.reset_statistics();
  std::vector<float> loaded;
  if (const std::string& file = settings_.weights_file; !file.empty()) {
    loaded = seeded_;
    load_remarks_ = network_.take(read_safetensors(file), file, loaded);
    if (const auto tensor = unsound_tensor(network_.table(), loaded, statistics()); !tensor.empty())
      throw UsageError(fmt::format(
          "--weights {}: tensor {} is not finite, or is a negative variance", file, tensor));
  }
  optimizer_.reset();
  StepScalars scalars;
  if (scales_loss()) scalars.loss_scale = kInitialLossScale;
  upload<StepScalars>(device(), *stream_, scalars_.data(), std::span(&scalars, 1));
  learning_rate_ = -1;
  set_weights(loaded.empty() ? seeded_ : loaded);
}

void Engine::set_weights(const std::vector<float>& master) {
  finish();
  network_.set_weights(master);
  strategy_->distribute();
}

std::vector<float> Engine::own_master_weights() {
  finish();
  std::vector<float> own(network_.table().stored_count(), 0.0F);
  for (const Range& range : strategy_->owned()) {
    const auto part =
        download<float>(device(), *stream_, network_.weights().master(range).data, range.count());
    std::copy(part.begin(), part.end(), own.begin() + static_cast<std::ptrdiff_t>(range.begin));
  }
  return own;
}

std::vector<float> Engine::master_weights() {
  std::vector<float> all = own_master_weights();
  if (!strategy_entry().each_updates_all) {
    const View sum{std::span<float>(all)};
    backend_.host->all_reduce(sum, sum, Reduction::sum, *stream_);
  }
  return all;
}

std::vector<float> Engine::statistics() {
  finish();
  const View view = network_.weights().statistics();
  return download<float>(device(), *stream_, view.data, view.count);
}

std::vector<Tensor> Engine::state() {
  if (const int from = first_computing(); from > 0) {
    const View statistics = network_.weights().statistics();
    if (world().rank() == from) world().send(statistics, 0, *stream_);
    if (world().rank() == 0) world().recv(statistics, from, *stream_);
  }
  return network_.state(master_weights());
}

void Engine::accumulate(Range range, View gradient, int micro_batch) {
  if (settings_.accumulate == 1) return;
  const View sum = sum_.at(range);
  const Kernels& kernels = device().kernels();
  kernels.accumulate(sum, gradient, micro_batch == 0, *stream_);
  if (micro_batch + 1 == settings_.accumulate)
    kernels.scale(sum, gradient, 1.0F / static_cast<float>(settings_.accumulate), *stream_);
}

void Engine::check_finite(const Share& share) {
  WorkLog& log = network_.work_log();
  log.begin(Phase::update);
  log.run({"check_finite", -1, static_cast<double>(share.gradient.bytes())}, [&] {
    device().kernels().check_finite(share.gradient, static_cast<StepScalars*>(scalars_.data()),
                                    *stream_);
  });
}

void Engine::update(const Share& share) {
  WorkLog& log = network_.work_log();
  log.begin(Phase::update);
  log.run({settings_.optimizer.optimizer.c_str(), -1,
           optimizer_.bytes_moved(share.range, share.gradient)},
          [&] {
            optimizer_.update(share.range, share.gradient,
                              static_cast<const StepScalars*>(scalars_.data()));
          });
}

void Engine::enqueue_blocks(int micro_batch) {
  const bool each = strategy_->exchanges_each_micro_batch();
  if (micro_batch == 0) strategy_->begin_update();
  for (int block = 0; block < network_.blocks(); ++block) {
    const ProfilerRange range(device(), forward_names_[static_cast<std::size_t>(block)]);
    strategy_->before_forward(block);
    network_.forward(block, Pass::training);
    timeline_.mark(Part::forward, block);
  }
  for (int block = network_.blocks() - 1; block >= 0; --block) {
    const ProfilerRange named(device(), backward_names_[static_cast<std::size_t>(block)]);
    const Range range = network_.block_range(block);
    strategy_->before_backward(block);
    network_.backward(block);
    if (!each) accumulate(range, network_.weights().gradients(range), micro_batch);
    if (settings_.strategy.lose_share && block == 0 && world().rank() + 1 == world().size()) {
      const View lost = network_.weights().gradients(range);
      device().zero(lost.data, lost.bytes(), *stream_);
    }
    timeline_.mark(Part::backward, block);
    if (each || micro_batch + 1 == settings_.accumulate) strategy_->gradients_ready(block);
  }
}

// What is exchanged in float16 has float16's range, whatever it was computed in: small gradients
// would vanish, and large ones become infinite unseen. (PyTorch's fp16_compress_hook leaves it to
// the user to scale the loss.)
bool Engine::scales_loss() const {
  return shakedown::scales_loss(settings_.network.precision) ||
         exchanged_type() == DataType::float16;
}

// The host runs at most two steps ahead; one when micro-batches make a step many operations.
void Engine::wait_for_room() {
  const long ahead = settings_.accumulate > 1 ? 1 : 2;
  if (steps_ >= ahead)
    backend_.world->wait(*step_done_[static_cast<std::size_t>((steps_ - ahead) % 2)],
                         HostWait::polite);
}

void Engine::end_step() {
  step_done_[static_cast<std::size_t>(steps_ % 2)]->record(*stream_);
  ++steps_;
}

void Engine::apply(const std::vector<Share>& shares) {
  if (scales_loss())
    for (const Share& share : shares) check_finite(share);
  timeline_.mark(Part::update);
  strategy_->agree_on_finite();
  timeline_.mark(Part::exchange);
  for (const Share& share : shares) update(share);
}

void Engine::count_update() {
  device().kernels().finish_update(static_cast<StepScalars*>(scalars_.data()), scales_loss(),
                                   *stream_);
  timeline_.mark(Part::update);
}

// A micro-batch that is loaded, and behind the last one all that the step has left: what a graph
// holds.
void Engine::enqueue(int part) {
  if (computes()) {
    enqueue_blocks(part);
    const bool each = strategy_->exchanges_each_micro_batch();
    const bool last = part + 1 == settings_.accumulate;
    if (!each && !last) return;
    const std::vector<Share> shares = strategy_->finish();
    timeline_.mark(Part::exchange);
    if (each) {
      for (const Share& share : shares) accumulate(share.range, share.gradient, part);
      timeline_.mark(Part::update);
    }
    if (!last) return;
    apply(shares);
    count_update();
  } else {
    strategy_->serve({[&](const Share& share) {
                        timeline_.mark(Part::exchange);
                        update(share);
                        timeline_.mark(Part::update);
                      },
                      [&] { count_update(); }});
  }
  const ProfilerRange publishing(device(), "publish");
  strategy_->publish();
  timeline_.mark(Part::exchange);
}

void Engine::step(const LoadBatch& load_batch, double learning_rate) {
  timeline_.begin_step();  // where the one before ends, however late the host is
  wait_for_room();
  backend_.session->progress();
  const ProfilerRange named(device(), "step");
  if (learning_rate != learning_rate_)
    device().kernels().set_learning_rate(
        static_cast<StepScalars*>(scalars_.data()),
        static_cast<float>(learning_rate * strategy_->rate_share()), *stream_);
  learning_rate_ = learning_rate;

  const bool launches = graphs_ && graphs_->captured();
  for (int part = 0; part < parts(); ++part) {
    if (computes()) {
      load_batch(part);
      timeline_.mark(Part::input);
    }
    launches ? graphs_->launch(part) : enqueue(part);
  }
  network_.count_batches(settings_.accumulate);
  end_step();
  if (launches)
    ++graph_steps_;
  else if (graphs_)
    graphs_->capture(parts(), [this](int part) { enqueue(part); });
}

void Engine::exchange_alone() {
  timeline_.begin_step();
  wait_for_room();
  if (computes()) {
    strategy_->begin_update();
    const int times = strategy_->exchanges_each_micro_batch() ? settings_.accumulate : 1;
    for (int i = 0; i < times; ++i) {
      for (int block = 0; block < network_.blocks(); ++block) strategy_->before_forward(block);
      for (int block = network_.blocks() - 1; block >= 0; --block) {
        strategy_->before_backward(block);
        strategy_->gradients_ready(block);
      }
      strategy_->finish();
    }
    strategy_->agree_on_finite();
  } else {
    strategy_->serve({[](const Share&) {}, [] {}});
  }
  // Whatever was not finite is none of the next step's.
  device().kernels().finish_update(static_cast<StepScalars*>(scalars_.data()), false, *stream_);
  strategy_->publish();
  timeline_.mark(Part::exchange);
  end_step();
}

void Engine::evaluate() {
  for (int block = 0; block < network_.blocks(); ++block) {
    strategy_->before_forward(block);
    network_.forward(block, Pass::evaluation);
  }
}

void Engine::finish() {
  const auto everything = device().make_event();
  everything->record(*stream_);
  backend_.world->wait(*everything, HostWait::polite);
}

void Engine::copy_scalars(const Buffer& to) {
  device().copy(to.data(), scalars_.data(), sizeof(StepScalars), *stream_);
}

StepScalars Engine::read_scalars() {
  return download<StepScalars>(device(), *stream_, scalars_.data(), 1).front();
}

}  // namespace shakedown::training

#include "training/engine.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/error.hpp"
#include "training/batches.hpp"

namespace shakedown {

Engine::Engine(const EngineSettings& settings, Backend& backend)
    : settings_(settings),
      backend_(backend),
      stream_(backend.device->make_stream()),
      scalars_(*backend.device, sizeof(StepScalars)),
      network_(settings.network, *backend.device, *stream_,
               static_cast<const StepScalars*>(scalars_.data())),
      optimizer_(settings.optimizer, *backend.device, *stream_, network_.table(),
                 network_.weights()),
      sum_(*backend.device,
           settings.accumulate > 1 ? network_.table().stored_count() * sizeof(float) : 0) {
  for (auto& event : step_done_) event = device().make_event();
  use_strategy(settings.strategy);
}

void Engine::allocate(int ranks_on_device) {
  check_memory(ranks_on_device);
  restart();  // before the convolutions are tuned: zero weights would run faster
  network_.allocate();
}

std::size_t Engine::bytes_needed(const Network& network) const {
  // Room for what libraries take when they are first used.
  const std::size_t aside =
      device().kind() == BackendKind::gpu ? std::size_t{512} << 20 : std::size_t{64} << 20;
  const auto batches = static_cast<std::size_t>(settings_.batches_held);
  return network.activation_bytes() + batches * batch_bytes(network.settings()) + aside;
}

void Engine::check_memory(int ranks_on_device) const {
  const auto share = device().memory().free_bytes / static_cast<std::size_t>(ranks_on_device);
  const auto batch = settings_.network.batch_size;
  const std::size_t needed = bytes_needed(network_);
  if (needed <= share) return;

  // Weights are allocated already. What a batch needs is planned, not guessed: workspaces do not
  // grow with it.
  int largest = 0;
  for (int too_large = batch; too_large - largest > 1 + largest / 64;) {
    NetworkSettings smaller = settings_.network;
    smaller.batch_size = (largest + too_large) / 2;
    const Network planned(smaller, device(), *stream_, nullptr);
    (bytes_needed(planned) <= share ? largest : too_large) = smaller.batch_size;
  }
  std::string help;
  if (device().kind() == BackendKind::gpu && size_of(compute_type(settings_.network.precision)) > 2)
    help += "; --amp (fp16) takes about half";
  if (largest > 0)
    help += fmt::format("; --accumulate {} with a smaller batch keeps as many images an update",
                        (batch + largest - 1) / largest);
  for (const StrategyEntry& entry : strategies())
    if (entry.name == std::string("fsdp")) help += "; --strategy fsdp shares the weights' memory";
  throw UsageError(fmt::format("--batch-size {}: needs {} of {} memory, {} are free. {}{}", batch,
                               readable_bytes(static_cast<double>(needed)),
                               name_of(device().kind()), readable_bytes(static_cast<double>(share)),
                               largest > 0
                                   ? fmt::format("The largest batch that fits is about {}", largest)
                                   : std::string("Not even one image fits"),
                               help));
}

void Engine::use_strategy(const StrategyOptions& options) {
  settings_.strategy = options;
  strategy_ = strategy_entry().make({device(), *stream_, *backend_.world, network_.table(),
                                     network_.weights().gradients(), settings_.strategy});
}

void Engine::restart() {
  network_.initialise(settings_.seed);
  if (!settings_.weights_file.empty())
    load_remark_ = network_.load(read_safetensors(settings_.weights_file), settings_.weights_file);
  optimizer_.reset();
  StepScalars scalars;
  if (scales_loss(settings_.network.precision)) scalars.loss_scale = kInitialLossScale;
  upload<StepScalars>(device(), *stream_, scalars_.data(), std::span(&scalars, 1));
  learning_rate_ = -1;
}

void Engine::accumulate(Range range, int micro_batch) {
  if (settings_.accumulate == 1) return;
  const View gradient = network_.weights().gradients().slice(range.begin, range.count());
  const View sum = sum_.view(DataType::float32).slice(range.begin, range.count());
  const Kernels& kernels = device().kernels();
  kernels.accumulate(sum, gradient, micro_batch == 0, *stream_);
  if (micro_batch + 1 == settings_.accumulate)
    kernels.scale(sum, gradient, 1.0F / static_cast<float>(settings_.accumulate), *stream_);
}

void Engine::step(const LoadBatch& load_batch, double learning_rate) {
  // The host runs at most two steps ahead; one when micro-batches make a step long.
  const long ahead = settings_.accumulate > 1 ? 1 : 2;
  Event& done = *step_done_[static_cast<std::size_t>(steps_ % ahead)];
  if (steps_ >= ahead) backend_.world->wait(done, HostWait::polite);

  auto* scalars = static_cast<StepScalars*>(scalars_.data());
  const Kernels& kernels = device().kernels();
  if (learning_rate != learning_rate_)
    kernels.set_learning_rate(scalars, static_cast<float>(learning_rate), *stream_);
  learning_rate_ = learning_rate;

  for (int micro_batch = 0; micro_batch < settings_.accumulate; ++micro_batch) {
    load_batch(micro_batch);
    for (int block = 0; block < network_.blocks(); ++block) network_.forward(block, Pass::training);
    for (int block = network_.blocks() - 1; block >= 0; --block) {
      network_.backward(block);
      accumulate(network_.block_range(block), micro_batch);
      if (micro_batch + 1 == settings_.accumulate)
        strategy_->gradients_ready(network_.block_range(block));
    }
  }
  const std::vector<Range> ranges = strategy_->finish();
  const bool scaled = scales_loss(settings_.network.precision);
  if (scaled)
    for (const Range& range : ranges)
      kernels.check_finite(network_.weights().gradients().slice(range.begin, range.count()),
                           scalars, *stream_);
  optimizer_.update(ranges, scalars);
  kernels.finish_update(scalars, scaled, *stream_);

  done.record(*stream_);
  ++steps_;
}

void Engine::evaluate() {
  for (int block = 0; block < network_.blocks(); ++block) network_.forward(block, Pass::evaluation);
}

void Engine::finish() {
  const auto everything = device().make_event();
  everything->record(*stream_);
  backend_.world->wait(*everything, HostWait::polite);
}

StepScalars Engine::read_scalars() {
  return download<StepScalars>(device(), *stream_, scalars_.data(), 1).front();
}

}  // namespace shakedown

#include "training/step/model_state.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/error.hpp"
#include "training/step/soundness.hpp"

namespace shakedown::training {

ModelState::ModelState(const EngineSettings& settings, Backend& backend)
    : backend_(backend),
      seed_(settings.seed),
      weights_file_(settings.weights_file),
      optimizer_name_(settings.optimizer.optimizer),
      stream_(backend.device->make_stream()),
      scalars_(*backend.device, sizeof(StepScalars)),
      network_(settings.network, *backend.device, *stream_, scalars()),
      optimizer_(settings.optimizer, *backend.device, *stream_, network_.table(),
                 network_.weights()) {}

void ModelState::use(Strategy& strategy, const StrategyEntry& entry, bool scales_loss) {
  strategy_ = &strategy;
  entry_ = &entry;
  scales_loss_ = scales_loss;
  network_.set_layout(strategy.layout());
  optimizer_.allocate(strategy.owned());
}

void ModelState::set_learning_rate(double learning_rate) {
  if (learning_rate != learning_rate_)
    device().kernels().set_learning_rate(
        scalars(), static_cast<float>(learning_rate * strategy_->rate_share()), *stream_);
  learning_rate_ = learning_rate;
}

void ModelState::check_finite(const Share& share) {
  WorkLog& log = network_.work_log();
  log.begin(Phase::update);
  log.run({"check_finite", -1, static_cast<double>(share.gradient.bytes())},
          [&] { device().kernels().check_finite(share.gradient, scalars(), *stream_); });
}

void ModelState::update(const Share& share) {
  WorkLog& log = network_.work_log();
  log.begin(Phase::update);
  log.run({optimizer_name_.c_str(), -1, optimizer_.bytes_moved(share.range, share.gradient)},
          [&] { optimizer_.update(share.range, share.gradient, scalars()); });
}

void ModelState::finish_update() {
  device().kernels().finish_update(scalars(), scales_loss_, *stream_);
}

void ModelState::discard_update() { device().kernels().finish_update(scalars(), false, *stream_); }

void ModelState::evaluate() {
  for (int block = 0; block < network_.blocks(); ++block) {
    strategy_->before_forward(block);
    network_.forward(block, Pass::evaluation);
  }
}

void ModelState::gather_weights() {
  for (int block = 0; block < network_.blocks(); ++block) strategy_->before_forward(block);
  finish();
}

void ModelState::copy_scalars(const Buffer& to) {
  device().copy(to.data(), scalars_.data(), sizeof(StepScalars), *stream_);
}

void ModelState::finish() {
  const auto everything = device().make_event();
  everything->record(*stream_);
  backend_.world->wait(*everything, HostWait::polite);
}

void ModelState::restart() {
  finish();  // what was enqueued may wait for other ranks
  if (seeded_.empty()) seeded_ = network_.seeded(seed_);
  network_.reset_statistics();
  const std::vector<float> loaded = load_weights_file();
  optimizer_.reset();
  StepScalars initial;
  if (scales_loss_) initial.loss_scale = kInitialLossScale;
  set_scalars(initial);
  set_weights(loaded.empty() ? seeded_ : loaded);
}

/// Empty where there is none. Sets the running statistics too.
std::vector<float> ModelState::load_weights_file() {
  if (weights_file_.empty()) return {};
  std::vector<float> weights = seeded_;  // the classifier's, where the file's has other classes
  load_remarks_ = network_.take(read_safetensors(weights_file_), weights_file_, weights);
  if (const auto tensor = unsound_tensor(network_.table(), weights, statistics()); !tensor.empty())
    throw UsageError(fmt::format("--weights {}: tensor {} is not finite, or is a negative variance",
                                 weights_file_, tensor));
  return weights;
}

std::vector<float> ModelState::master_weights() {
  std::vector<float> all = own_master_weights();
  if (!entry_->each_updates_all) {
    const View sum{std::span<float>(all)};
    backend_.host->all_reduce(sum, sum, Reduction::sum, *stream_);
  }
  return all;
}

void ModelState::set_weights(const std::vector<float>& master) {
  finish();
  network_.set_weights(master);
  strategy_->distribute();
}

std::vector<Tensor> ModelState::state() {
  Communicator& world = *backend_.world;
  if (const int from = entry_->first_computing(); from > 0) {
    const View statistics = network_.weights().statistics();
    if (world.rank() == from) world.send(statistics, 0, *stream_);
    if (world.rank() == 0) world.recv(statistics, from, *stream_);
  }
  return network_.state(master_weights());
}

void ModelState::with_common_weights(const std::function<void()>& body) {
  struct Replaced {
    View view;
    int root;    // whose values all ranks get
    Buffer own;  // in host memory: the batch has planned the device's
  };
  const Weights& weights = network_.weights();
  std::vector<Replaced> replaced;
  const auto replace = [&](View view, int root) {
    replaced.push_back({view, root, Buffer(device(), view.bytes(), Place::host)});
    device().copy(replaced.back().own.data(), view.data, view.bytes(), *stream_);
    backend_.world->broadcast(view, view, root, *stream_);
  };
  replace(weights.statistics(), entry_->first_computing());
  if (!entry_->ranks_agree) {
    replace(weights.compute(), 0);
    if (weights.vectors().count > 0)
      replace(weights.vectors(), 0);
    else if (weights.has_copy())
      replace(weights.master(), 0);  // for the vectors
  }
  finish();
  body();
  for (const Replaced& r : replaced)
    device().copy(r.view.data, r.own.data(), r.view.bytes(), *stream_);
  finish();
}

std::vector<StateBuffer> ModelState::state_buffers() { return optimizer_.state_buffers(); }

View ModelState::ema_statistics() { return {}; }

void ModelState::set_scalars(const StepScalars& scalars) {
  upload<StepScalars>(device(), *stream_, scalars_.data(), std::span(&scalars, 1));
  learning_rate_ = -1;
}

std::vector<float> ModelState::own_master_weights() {
  finish();
  std::vector<float> own(network_.table().stored_count(), 0.0F);
  for (const Range& range : strategy_->owned()) {
    const auto values =
        download<float>(device(), *stream_, network_.weights().master(range).data, range.count());
    std::copy(values.begin(), values.end(), own.begin() + static_cast<std::ptrdiff_t>(range.begin));
  }
  return own;
}

std::vector<float> ModelState::statistics() {
  finish();
  const View view = network_.weights().statistics();
  return download<float>(device(), *stream_, view.data, view.count);
}

std::uint64_t ModelState::checksum() {
  finish();
  const Weights& weights = network_.weights();
  std::vector<View> views{weights.vectors()};
  if (weights.computes_with_all())
    views.push_back(entry_->each_updates_all ? weights.master() : weights.compute());
  std::uint64_t hash = 0xCBF29CE484222325U;  // FNV-1a over 32-bit words
  for (const View& view : views)
    for (std::uint32_t word : download<std::uint32_t>(device(), *stream_, view.data,
                                                      view.bytes() / sizeof(std::uint32_t)))
      hash = (hash ^ word) * 0x100000001B3U;
  return hash;
}

StepScalars ModelState::read_scalars() {
  return download<StepScalars>(device(), *stream_, scalars_.data(), 1).front();
}

}  // namespace shakedown::training

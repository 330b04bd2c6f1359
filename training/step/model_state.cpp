#include "training/step/model_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/device.hpp"
#include "common/hash.hpp"
#include "common/kernels.hpp"
#include "common/mpi_session.hpp"
#include "common/usage_error.hpp"

namespace shakedown::training {

ModelState::ModelState(const EngineSettings& settings, Backend& backend)
    : backend_(backend),
      settings_(settings),
      kernels_(make_update_kernels(*backend.device)),
      stream_(backend.device->make_stream()),
      scalars_(*backend.device, sizeof(StepScalars)),
      network_(settings.network, *backend.device, *stream_, &scalars()->loss_scale),
      optimizer_(settings.optimizer, network_, *kernels_) {
  if (settings.ema.ema > 0)
    ema_.emplace(settings.ema, *backend.device, *stream_, network_.weights(), *kernels_);
}

void ModelState::use(Strategy& strategy, bool scales_loss) {
  strategy_ = &strategy;
  if (settings_.strategy.norm_stats == "average" && !plan().ranks_agree &&
      plan().ranks_computing > 1)
    throw UsageError(
        fmt::format("--norm-stats average: the ranks of --strategy {} have weights of "
                    "their own, whose statistics have no average: choose first",
                    plan().strategy));
  scales_loss_ = scales_loss;
  network_.set_layout(plan().layout);
  optimizer_.allocate(plan().owned);
  if (ema_) ema_->allocate(plan().owned);
}

void ModelState::set_learning_rate(double learning_rate) {
  if (learning_rate != learning_rate_)
    kernels_->set_learning_rate(scalars(), static_cast<float>(learning_rate * plan().rate_share),
                                *stream_);
  learning_rate_ = learning_rate;
}

void ModelState::check_finite(const std::vector<Share>& shares) {
  if (!scales_loss_) return;
  Recorder& recorder = network_.recorder();
  recorder.begin(Phase::update);
  for (const Share& share : shares) {
    recorder.run({"check_finite", -1, static_cast<double>(share.gradient.bytes())}, [&] {
      device().kernels().check_finite(share.gradient, &scalars()->finite, *stream_);
    });
  }
}

void ModelState::finish_update() {
  if (ema_) {
    Recorder& recorder = network_.recorder();
    recorder.begin(Phase::update);
    recorder.run({"ema", -1, ema_->bytes_moved()}, [&] { ema_->update(scalars()); });
  }
  kernels_->finish_update(scalars(), scales_loss_, *stream_);
}

void ModelState::discard_update() { kernels_->finish_update(scalars(), false, *stream_); }

void ModelState::evaluate() {
  for (int block = 0; block < network_.blocks(); ++block) {
    strategy_->before(Next::forward, block);
    network_.forward(block, Pass::evaluation);
  }
}

void ModelState::gather_weights(const std::function<void(int block)>& gathered) {
  for (int block = 0; block < network_.blocks(); ++block) {
    strategy_->before(Next::forward, block);
    gathered(block);
  }
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
  network_.reset_statistics();
  if (first_.weights.empty()) first_ = first();
  if (!first_.statistics.empty()) {
    upload<float>(device(), *stream_, network_.weights().statistics().data, first_.statistics);
    network_.count_batches(static_cast<int>(first_.batches_tracked - network_.batches_tracked()));
  }
  optimizer_.reset();
  StepScalars initial;
  if (scales_loss_) initial.loss_scale = kInitialLossScale;
  set_scalars(initial);
  set_weights(first_.weights);
}

/// Seeded, or of --weights, which rank 0 reads: a file system serves it once, however many ranks
/// there are.
ModelState::First ModelState::first() {
  // a classifier for other classes than the file's too
  First first{network_.seeded(static_cast<std::uint64_t>(settings_.seed)), {}, 0};
  const std::string& file = settings_.model.weights;
  if (file.empty()) return first;
  const MpiSession& session = *backend_.session;
  if (session.is_root()) {
    load_remarks_ = named_by(
        "--weights", [&] { return network_.take(read_safetensors(file), file, first.weights); });
    first.batches_tracked = network_.batches_tracked();
  }
  first.statistics = statistics();
  for (std::vector<float>* values : {&first.weights, &first.statistics}) {
    const View view{std::span<float>(*values)};
    backend_.host->broadcast(view, view, 0, *stream_);
  }
  for (std::string* remark : {&load_remarks_.seeded, &load_remarks_.ignored})
    *remark = session.all_gather(*remark).front();
  const auto tracked = session.all_gather(static_cast<double>(first.batches_tracked));
  first.batches_tracked = static_cast<std::int64_t>(tracked.front());
  if (const auto tensor = unsound_tensor(network_.table(), first.weights, first.statistics);
      !tensor.empty())
    throw UsageError(fmt::format("--weights {}: tensor {} is not finite, or is a negative variance",
                                 file, tensor));
  return first;
}

std::vector<float> ModelState::master_weights() {
  std::vector<float> all = own_master_weights();
  if (!plan().updates_all) {
    const View sum{std::span<float>(all)};
    backend_.host->all_reduce(sum, sum, Reduction::sum, *stream_);
  }
  return all;
}

void ModelState::set_weights(const std::vector<float>& master) {
  load(master);
  if (ema_) ema_->reset();
}

void ModelState::load(const std::vector<float>& master) {
  finish();
  network_.set_weights(master);
  strategy_->publish(Published::load);
}

/// Enqueues: every rank has the running statistics that are validated and saved. Averages as timm's
/// distribute_bn(reduce=True) does, means and variances alike.
void ModelState::share_statistics() {
  Communicator& world = *backend_.world;
  const View statistics = network_.weights().statistics();
  if (settings_.strategy.norm_stats != "average") {
    world.broadcast(statistics, statistics, plan().first_computing, *stream_);
    return;
  }
  if (!plan().computes) device().zero(statistics.data, statistics.bytes(), *stream_);
  world.all_reduce(statistics, statistics, Reduction::sum, *stream_);
  const auto ranks = static_cast<float>(plan().ranks_computing);
  device().kernels().scale(statistics, statistics, 1 / ranks, *stream_);
}

ModelState::Kept ModelState::keep(View view) {
  Kept kept{view, Buffer(device(), view.bytes(), Place::host)};
  device().copy(kept.own.data(), view.data, view.bytes(), *stream_);
  return kept;
}

void ModelState::restore(const std::vector<Kept>& kept) {
  for (const Kept& k : kept) device().copy(k.view.data, k.own.data(), k.view.bytes(), *stream_);
  finish();
}

std::vector<Tensor> ModelState::state() {
  std::vector<Kept> kept;
  kept.push_back(keep(network_.weights().statistics()));
  share_statistics();
  std::vector<Tensor> tensors = network_.state(master_weights());
  restore(kept);
  return tensors;
}

std::vector<Tensor> ModelState::average_state() {
  std::vector<Tensor> tensors;
  with_average_weights([&] { tensors = state(); });
  return tensors;
}

void ModelState::with_common_weights(const std::function<void()>& body) {
  const Weights& weights = network_.weights();
  std::vector<Kept> kept;
  kept.push_back(keep(weights.statistics()));
  share_statistics();
  const auto replace = [&](View view) {
    kept.push_back(keep(view));
    backend_.world->broadcast(view, view, 0, *stream_);
  };
  if (!plan().ranks_agree) {
    replace(weights.compute());
    if (weights.vectors().count > 0)
      replace(weights.vectors());
    else if (weights.has_copy())
      replace(weights.master());  // for the vectors
  }
  finish();
  body();
  restore(kept);
}

void ModelState::with_average_weights(const std::function<void()>& body) {
  const std::vector<float> own = own_master_weights();
  std::vector<float> average(own.size(), 0.0F);
  for (const PlacedRange& placed : ema_->weights().layout())
    read(ema_->weights().at(placed.range), placed.range, average);
  const View statistics = network_.weights().statistics();
  std::vector<Kept> kept;
  kept.push_back(keep(statistics));
  load(average);
  device().copy(statistics.data, ema_->statistics().data, statistics.bytes(), *stream_);
  body();
  load(own);
  restore(kept);
}

std::vector<StateBuffer> ModelState::state_buffers() {
  std::vector<StateBuffer> buffers = optimizer_.state_buffers();
  if (ema_) buffers.push_back({"ema", &ema_->weights()});
  return buffers;
}

View ModelState::ema_statistics() { return ema_ ? ema_->statistics() : View(); }

void ModelState::set_scalars(const StepScalars& scalars) {
  upload<StepScalars>(device(), *stream_, scalars_.data(), std::span(&scalars, 1));
  learning_rate_ = -1;
}

/// A range of all weights, from the device.
void ModelState::read(ConstView from, Range range, std::vector<float>& to) {
  const auto values = download<float>(device(), *stream_, from.data, range.count());
  std::copy(values.begin(), values.end(), to.begin() + static_cast<std::ptrdiff_t>(range.begin));
}

std::vector<float> ModelState::own_master_weights() {
  finish();
  std::vector<float> own(network_.table().stored_count(), 0.0F);
  for (const Range& range : plan().owned) read(network_.weights().master(range), range, own);
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
    views.push_back(plan().updates_all ? weights.master() : weights.compute());
  const Buffer hashes(device(), views.size() * sizeof(std::uint64_t));
  device().zero(hashes.data(), hashes.bytes(), *stream_);
  auto* const of_view = static_cast<std::uint64_t*>(hashes.data());
  for (std::size_t i = 0; i < views.size(); ++i)
    if (views[i].count > 0) device().kernels().add_bit_hash(views[i], of_view + i, *stream_);
  finish();
  std::uint64_t hash = 0;
  for (const std::uint64_t of_one :
       download<std::uint64_t>(device(), *stream_, of_view, views.size()))
    hash = derive_seed(hash, of_one);
  return hash;
}

StepScalars ModelState::read_scalars() {
  return download<StepScalars>(device(), *stream_, scalars_.data(), 1).front();
}

std::string unsound_tensor(const ParameterTable& table, std::span<const float> master,
                           std::span<const float> statistics) {
  const auto finite = [](std::span<const float> values) {
    return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
  };
  for (const Parameter& p : table.parameters())
    if (!finite(master.subspan(p.offset, p.stored))) return p.name;
  if (statistics.empty()) return "";
  for (const RunningStatistics& s : table.statistics()) {
    const auto variance = statistics.subspan(s.offset + s.channels, s.channels);
    if (!finite(statistics.subspan(s.offset, s.channels))) return s.name + ".running_mean";
    if (!finite(variance) || *std::min_element(variance.begin(), variance.end()) < 0)
      return s.name + ".running_var";
  }
  return "";
}

std::unique_ptr<UpdateKernels> make_update_kernels(const Device& device) {
  return device.kind() == BackendKind::gpu ? gpu::make_update_kernels()
                                           : cpu::make_update_kernels();
}

}  // namespace shakedown::training

#include "training/checkpoint/snapshot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <tuple>

#include "common/usage_error.hpp"

namespace shakedown::training {
namespace {

std::string state_name(const std::string& what) { return kTrainingState + what; }
std::string prefix_of(const std::string& buffer) { return state_name(buffer) + "."; }
const std::string kStatistics = "statistics_of_ranks";

Layout whole(const Network& network) { return {{{0, network.table().stored_count()}, 0}}; }

std::span<const float> floats_of(View view) {
  return {static_cast<const float*>(view.data), view.count};
}

/// This rank's running statistics, and their average where there is one.
std::vector<View> statistics_of(ModelState& model) {
  std::vector<View> views{model.network().weights().statistics()};
  if (const View average = model.ema_statistics(); average.count > 0) views.push_back(average);
  return views;
}

std::size_t count_of(const std::vector<View>& views) {
  return std::accumulate(views.begin(), views.end(), std::size_t{0},
                         [](std::size_t sum, const View& view) { return sum + view.count; });
}

}  // namespace

Snapshot::Snapshot(Engine& engine, const MpiSession& session) : engine_(engine), session_(session) {
  Device& device = engine.device();
  const Plan& plan = engine.step.plan();
  parts_ = session.all_gather(rank() > 0 && plan.updates_all ? std::vector<Range>() : plan.owned);

  const auto add = [&](const std::string& name, const FlatBuffer* buffer) {
    const auto& mine = parts_[static_cast<std::size_t>(rank())];
    arrays_.push_back(
        {name, buffer,
         FlatBuffer(device, engine.stream(), DataType::float32,
                    rank() == 0 ? whole(engine.model.network()) : packed(mine), Place::host)});
  };
  add("", nullptr);
  for (const StateBuffer& state : engine.model.state_buffers()) add(state.name, state.buffer);

  const std::size_t bytes = count_of(statistics_of(engine.model)) * sizeof(float);
  own_statistics_ = Buffer(device, bytes, Place::host);
  if (rank() == 0)
    statistics_ =
        Buffer(device, bytes * static_cast<std::size_t>(session.world_size()), Place::host);
}

std::uint64_t Snapshot::bytes() const {
  std::uint64_t bytes = statistics_.bytes();
  for (const Array& array : arrays_) bytes += array.host.bytes();
  return bytes;
}

View Snapshot::on_device(const Array& array, Range range) const {
  return array.device != nullptr ? array.device->at(range)
                                 : engine_.model.network().weights().master(range);
}

double Snapshot::take(const InputTimes& input) {
  using Clock = std::chrono::steady_clock;
  ModelState& model = engine_.model;
  Device& device = engine_.device();
  engine_.finish();
  const auto start = Clock::now();
  for (const Array& array : arrays_)
    for (const Range& range : parts_[static_cast<std::size_t>(rank())]) {
      const View to = array.host.at(range);
      device.copy(to.data, on_device(array, range).data, to.bytes(), engine_.stream());
    }
  auto* to = static_cast<float*>(own_statistics_.data());
  for (const View& view : statistics_of(model)) {
    device.copy(to, view.data, view.bytes(), engine_.stream());
    to += view.count;
  }
  engine_.finish();
  numbers_ = session_.all_gather(
      RankNumbers{model.read_scalars(), model.network().read_metrics().total, input});
  batches_tracked_ = model.network().batches_tracked();
  gather_arrays();
  engine_.host().gather(own_statistics_.view(DataType::float32),
                        statistics_.view(DataType::float32), 0, engine_.stream());
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// To rank 0, what others alone have.
void Snapshot::gather_arrays() {
  Communicator& host = engine_.host();
  host.group([&] {
    for (const Array& array : arrays_)
      for (int from = 1; from < session_.world_size(); ++from)
        for (const Range& range : parts_[static_cast<std::size_t>(from)]) {
          if (range.count() == 0) continue;
          if (rank() == from) host.send(array.host.at(range), 0, engine_.stream());
          if (rank() == 0) host.recv(array.host.at(range), from, engine_.stream());
        }
  });
}

/// The running statistics that are validated, as ModelState has them: the first computing rank's,
/// or the average.
std::vector<float> Snapshot::shared_statistics() const {
  const std::span<const float> all = floats_of(statistics_.view(DataType::float32));
  const int ranks = static_cast<int>(numbers_.size());
  const std::size_t count = all.size() / numbers_.size();
  const auto of_rank = [&](int r) {
    return all.subspan(static_cast<std::size_t>(r) * count, count);
  };
  const std::span<const float> first = of_rank(engine_.step.first_computing());
  std::vector<float> shared(first.begin(), first.end());
  if (engine_.settings().strategy.norm_stats != "average") return shared;
  for (int r = engine_.step.first_computing() + 1; r < ranks; ++r)
    for (std::size_t i = 0; i < count; ++i) shared[i] += of_rank(r)[i];
  for (float& value : shared) value *= 1 / static_cast<float>(engine_.step.ranks_computing());
  return shared;
}

std::vector<Tensor> Snapshot::tensors() const {
  const Network& network = engine_.model.network();
  const std::span<const float> statistics = floats_of(statistics_.view(DataType::float32));
  const std::size_t ranks = numbers_.size();

  std::vector<Tensor> tensors;
  const auto append = [&](std::vector<Tensor> more) {
    std::move(more.begin(), more.end(), std::back_inserter(tensors));
  };
  append(network.unpacked(floats_of(arrays_.front().host.memory()), ""));
  append(network.statistics_tensors(shared_statistics(), batches_tracked_));
  for (std::size_t i = 1; i < arrays_.size(); ++i)
    append(network.unpacked(floats_of(arrays_[i].host.memory()), prefix_of(arrays_[i].name)));
  append({{state_name(kStatistics),
           {static_cast<std::int64_t>(ranks), static_cast<std::int64_t>(statistics.size() / ranks)},
           {statistics.begin(), statistics.end()}}});
  return tensors;
}

CheckpointState Snapshot::state() const {
  return {{}, {}, engine_.step.first_computing(), numbers_};
}

namespace {

const Tensor& statistics_in(const std::vector<Tensor>& tensors, const std::string& file) {
  const std::string name = state_name(kStatistics);
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const Tensor& tensor) { return tensor.name == name; });
  if (found == tensors.end()) throw UsageError(fmt::format("{}: no tensor {}", file, name));
  return *found;
}

/// Each rank's running statistics, as rank 0 has them in a file of perhaps other ranks.
void restore_statistics(Engine& engine, const MpiSession& session, const CheckpointState& state,
                        const std::vector<Tensor>& tensors, const std::string& file) {
  const std::vector<View> views = statistics_of(engine.model);
  const std::size_t count = count_of(views);
  const auto ranks = static_cast<std::size_t>(session.world_size());
  Buffer all;
  if (session.is_root()) {
    const Tensor& saved = statistics_in(tensors, file);
    if (saved.values.size() != state.ranks.size() * count)
      throw UsageError(fmt::format("{}: tensor {} has {} elements, not {} for each of {} ranks",
                                   file, saved.name, saved.values.size(), count,
                                   state.ranks.size()));
    all = Buffer(engine.device(), ranks * count * sizeof(float), Place::host);
    for (std::size_t r = 0; r < ranks; ++r) {
      // A rank that was a server has none worth keeping, unless it is one again.
      const bool own =
          ranks == state.ranks.size() &&
          (static_cast<int>(r) >= state.first_computing || engine.step.first_computing() > 0);
      const std::size_t row = own ? r : static_cast<std::size_t>(state.first_computing);
      std::copy_n(saved.values.begin() + static_cast<std::ptrdiff_t>(row * count), count,
                  static_cast<float*>(all.data()) + r * count);
    }
  }
  const Buffer mine(engine.device(), count * sizeof(float), Place::host);
  engine.host().scatter(all.view(DataType::float32), mine.view(DataType::float32), 0,
                        engine.stream());
  const auto* from = static_cast<const float*>(mine.data());
  for (const View& view : views) {
    engine.device().copy(view.data, from, view.bytes(), engine.stream());
    from += view.count;
  }
  engine.finish();
}

InputTimes restore_numbers(Engine& engine, const MpiSession& session,
                           const std::vector<RankNumbers>& saved) {
  const auto rank = static_cast<std::size_t>(session.rank());
  const bool own = static_cast<int>(saved.size()) == session.world_size();
  StepScalars scalars = saved[std::min(rank, saved.size() - 1)].scalars;
  const StepScalars& first = saved.front().scalars;
  if (engine.step.plan().ranks_agree)  // also after parameter-server-async, where each had its own
    std::tie(scalars.updates, scalars.loss_scale, scalars.since_rescale) =
        std::tie(first.updates, first.loss_scale, first.since_rescale);
  engine.model.set_scalars(scalars);
  Metrics metrics;  // rank 0 has the sum of ranks that are no more
  std::vector<InputTimes> inputs;
  for (std::size_t r = 0; r < saved.size(); ++r) {
    if (own ? r != rank : rank != 0) continue;
    metrics += saved[r].metrics;
    inputs.push_back(saved[r].input);
  }
  engine.model.network().set_total_metrics(metrics);
  return over_ranks(inputs);
}

}  // namespace

InputTimes restore(Engine& engine, const MpiSession& session, const CheckpointState& state,
                   const std::vector<Tensor>& tensors, const std::string& file) {
  Network& network = engine.model.network();
  const std::size_t count = network.table().stored_count();
  const Buffer flat(engine.device(), count * sizeof(float), Place::host);
  const View view = flat.view(DataType::float32);
  auto* values = static_cast<float*>(flat.data());

  if (session.is_root()) {
    std::vector<float> weights(count, 0.0F);
    const LoadRemarks remarks = network.take(tensors, file, weights);
    if (!remarks.seeded.empty()) throw UsageError(remarks.seeded);
    std::copy(weights.begin(), weights.end(), values);
  }
  engine.host().broadcast(view, view, 0, engine.stream());
  engine.model.set_weights({values, values + count});

  for (const StateBuffer& buffer : engine.model.state_buffers()) {
    if (session.is_root()) {
      const std::vector<float> saved = network.packed(tensors, prefix_of(buffer.name), file);
      std::copy(saved.begin(), saved.end(), values);
    }
    engine.host().broadcast(view, view, 0, engine.stream());
    for (const PlacedRange& placed : buffer.buffer->layout()) {
      const View to = buffer.buffer->at(placed.range);
      engine.device().copy(to.data, values + placed.range.begin, to.bytes(), engine.stream());
    }
    engine.finish();  // before the next array is in its place
  }
  restore_statistics(engine, session, state, tensors, file);
  return restore_numbers(engine, session, state.ranks);
}

}  // namespace shakedown::training

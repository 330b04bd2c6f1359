#include "training/exchange/strategy.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/error.hpp"
#include "training/exchange/shards.hpp"

namespace shakedown::training {

SmallBucket small_bucket(const StrategyOptions& options) {
  return options.bucket_order == "small-last" ? SmallBucket::last : SmallBucket::first;
}

DataType exchanged_type(const StrategyOptions& options, DataType computed) {
  if (options.invariant > 0) return DataType::float32;  // its tree's
  if (options.grad_dtype == "auto" || options.strategy == "none") return computed;
  const StrategyEntry& entry = find_strategy(options.strategy);
  if (!entry.any_type)
    throw UsageError(fmt::format("--grad-dtype {}: --strategy {} exchanges what was computed",
                                 options.grad_dtype, entry.name));
  for (const auto& [name, type] :
       {std::pair{"fp32", DataType::float32}, std::pair{"fp16", DataType::float16},
        std::pair{"bf16", DataType::bfloat16}})
    if (options.grad_dtype == name) return type;
  throw InternalError("--grad-dtype " + options.grad_dtype);
}

bool StrategyEntry::overlaps() const {
  return std::any_of(transfers.begin(), transfers.end(),
                     [](const auto& t) { return t.overlaps(); });
}

bool StrategyEntry::bucketed() const {
  return std::any_of(transfers.begin(), transfers.end(),
                     [](const auto& t) { return t.pieces == Pieces::buckets; });
}

double StrategyEntry::bytes_sent(const StepVolume& step, const StrategyOptions& options, int ranks,
                                 int rank) const {
  const bool collectives = options.ps_exchange == "reduce-broadcast" && !by_collectives.empty();
  return sent_in(collectives ? by_collectives : transfers, step, ranks, rank);
}

void Strategy::serve(const Updates&) {
  throw InternalError("every rank of this strategy computes");
}

void Strategy::agree_on_finite() const {
  if (shares_are_parts()) context_.agree_on_finite();
}

void Strategy::add_up(View sums) const {
  if (!shares_are_parts() || sums.count == 0) return;
  context_.world.all_reduce(sums, sums, Reduction::sum, context_.compute);
}

bool Strategy::shares_are_parts() const {
  const StrategyEntry& entry = find_strategy(context_.options.strategy);
  return !entry.each_updates_all && !entry.ranks.first_serves;
}

Range Strategy::own_shard(Range range) const {
  return shard_of(range, context_.world.rank(), context_.world.size());
}

std::vector<Range> Strategy::own_shards(const std::vector<Range>& ranges) const {
  std::vector<Range> shards;
  for (const Range& range : ranges) shards.push_back(own_shard(range));
  return shards;
}

WeightsLayout Strategy::updating(const std::vector<Range>& owned) const {
  WeightsLayout layout = whole_weights(context_.table);
  if (context_.weights.type() == DataType::float32) return layout;  // they are what computes
  layout.master = packed(owned);
  layout.packs_vectors = true;
  return layout;
}

std::vector<Share> Strategy::shares_in_place() const {
  std::vector<Share> shares;
  for (const Range& range : owned()) shares.push_back({range, context_.weights.gradients(range)});
  return shares;
}

void StrategyContext::agree_on_finite() const {
  if (!scaled) return;
  const View flag(&scalars->finite, 1, DataType::int32, Place::device);
  world.all_reduce(flag, flag, Reduction::min, compute);
}

void StrategyContext::check_and_agree(ConstView gradients) const {
  if (!scaled) return;
  device.kernels().check_finite(gradients, &scalars->finite, compute);
  agree_on_finite();
}

void StrategyContext::exchange_vectors() const {
  const View vectors = weights.vectors();
  if (vectors.count == 0) return;
  weights.pack_vectors(compute);
  world.all_reduce(vectors, vectors, Reduction::sum, compute);
}

}  // namespace shakedown::training

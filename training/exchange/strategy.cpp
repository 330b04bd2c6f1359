#include "training/exchange/strategy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "common/ensure.hpp"
#include "common/error.hpp"
#include "common/kernels.hpp"
#include "common/options.hpp"

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

std::optional<StrategyOptions> reference_of(const StrategyOptions& options, DataType computed) {
  const StrategyEntry& entry = find_strategy(options.strategy);
  const bool plain = options.invariant == 0 && exchanged_type(options, computed) == computed;
  const bool is_reference = entry.reference[0] == '\0';
  if (is_reference && plain) return std::nullopt;
  StrategyOptions reference = options;
  reference.strategy = is_reference ? entry.name : entry.reference;
  reference.grad_dtype = "auto";  // so that the difference shows what another type does
  reference.invariant = 0;
  return reference;
}

bool StrategyEntry::overlaps() const {
  return std::any_of(transfers.begin(), transfers.end(),
                     [](const auto& t) { return t.overlaps(); });
}

bool StrategyEntry::bucketed() const {
  return std::any_of(transfers.begin(), transfers.end(),
                     [](const auto& t) { return t.pieces == Pieces::buckets; });
}

double StrategyEntry::bytes_sent(const StepVolume& step, int ranks, int rank) const {
  return sent_in(transfers, step, ranks, rank);
}

Strategy::Strategy(const StrategyContext& context, Plan plan)
    : context_(context), plan_(std::move(plan)) {
  const StrategyEntry& entry = find_strategy(context.options.strategy);
  plan_.strategy = entry.name;
  plan_.computes = entry.computes(context.world.rank());
  plan_.first_computing = entry.first_computing();
  plan_.ranks_computing = entry.computing(context.world.size());
  plan_.ranks_agree = entry.ranks_agree;
  plan_.updates_all = entry.each_updates_all;
  plan_.first_has_inputs = entry.ranks.first_has_inputs;
  plan_.parts = !entry.each_updates_all && !entry.ranks.first_serves;
}

Plan whole_plan(const StrategyContext& context) {
  return {whole_weights(context.table), {context.all()}};
}

Plan sharded_plan(const StrategyContext& context, const std::vector<Range>& ranges) {
  const std::vector<Range> owned = context.own_shards(ranges);
  return {context.updating(owned), owned};
}

void Strategy::agree_on_finite() const {
  if (plan_.parts && !plan_.agreed) context_.agree_on_finite();
}

void Strategy::add_up(View sums) const {
  if (!plan_.parts || sums.count == 0) return;
  context_.world.all_reduce(sums, sums, Reduction::sum, context_.compute);
}

std::vector<Share> Strategy::shares_in_place() const {
  std::vector<Share> shares;
  for (const Range& range : plan_.owned)
    shares.push_back({range, context_.weights.gradients(range)});
  return shares;
}

Range StrategyContext::own_shard(Range range) const {
  return shard_of(range, world.rank(), world.size());
}

std::vector<Range> StrategyContext::own_shards(const std::vector<Range>& ranges) const {
  std::vector<Range> shards;
  for (const Range& range : ranges) shards.push_back(own_shard(range));
  return shards;
}

WeightsLayout StrategyContext::updating(const std::vector<Range>& owned) const {
  WeightsLayout layout = whole_weights(table);
  if (weights.type() == DataType::float32) return layout;  // they are what computes
  layout.master = packed(owned);
  layout.packs_vectors = true;
  return layout;
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

const std::vector<StrategyEntry>& strategies() {
#define ENTRY(name) name##_strategy(),
  static const std::vector<StrategyEntry> table{SHAKEDOWN_STRATEGIES(ENTRY)};
#undef ENTRY
  return table;
}

const StrategyEntry& find_strategy(const std::string& name) {
  for (const StrategyEntry& entry : strategies())
    if (name == entry.name) return entry;
  std::string known;
  for (const StrategyEntry& entry : strategies())
    known += fmt::format("{}{}", known.empty() ? "" : ", ", entry.name);
  throw UsageError(fmt::format("--strategy {}: must be one of {}", name, known));
}

namespace {

std::vector<std::string> names_where(auto property) {
  std::vector<std::string> names;
  for (const StrategyEntry& entry : strategies())
    if (std::invoke(property, entry)) names.emplace_back(entry.name);
  return names;
}

}  // namespace

void declare_options(OptionSet& options, StrategyOptions& values) {
  std::string help = "exchange of gradients and weights";
  for (const StrategyEntry& entry : strategies())
    help += fmt::format("\n{}: {}", entry.name, entry.summary);
  options.heading("Exchange");
  const auto all = names_where([](const StrategyEntry&) { return true; });
  options.add("--strategy", values.strategy, help).one_of(all).first();
  const auto add = [&](const char* name, auto& value, const char* meaning,
                       const std::vector<std::string>& used_by) -> Option& {
    return options.add(name, value, meaning).only_where("--strategy", used_by);
  };
  const auto bucketed = names_where(&StrategyEntry::bucketed);
  add("--bucket-cap-mb", values.bucket_cap_mb, "size of a gradient bucket", bucketed)
      .at_least(0)
      .metavar("MIB");
  add("--small-bucket-mb,--first-bucket-mb", values.small_bucket_mb,
      "size of the small bucket, see --bucket-order", bucketed)
      .at_least(0)
      .metavar("MIB");
  add("--bucket-order", values.bucket_order,
      "whether the small bucket is the first to become ready (as in PyTorch DDP) or the last",
      bucketed)
      .one_of({"small-first", "small-last"})
      .unlisted({"ddp"});
  add("--grad-dtype", values.grad_dtype,
      "type of the exchanged gradients; auto: as computed; fp16 enables loss scaling, as "
      "--precision fp16 does",
      names_where(&StrategyEntry::any_type))
      .one_of({"auto", "fp32", "fp16", "bf16"});
  add("--no-overlap", values.no_overlap, "run communication on the compute stream, without overlap",
      names_where(&StrategyEntry::overlaps));
  options
      .add(
          "--norm-stats", values.norm_stats,
          "running statistics of batch normalization\n"
          "first: those of the first rank that computes are validated and saved\n"
          "average: their average over the ranks (as timm's --dist-bn reduce)\n"
          "broadcast: as first, and sent to all ranks before each update, as PyTorch DDP's default")
      .one_of({"first", "average", "broadcast"})
      .for_values({"first", "average"})
      .only_with({"--epochs", "--save"})
      .for_values({"broadcast"})
      .only_where("--strategy", {"ddp"});
  options.add_alias("--broadcast-buffers", "--norm-stats", "broadcast");
  const auto refuse = [&](const char* name, const char* reason) { options.refuse(name, reason); };
  refuse("--bucket-copy",
         "copying gradients into buckets gave 0.995 and 0.999 of the images/s "
         "(results/0.1/h200/settings-2gpu.jsonl)");
  refuse("--comm-priority",
         "normal priority gave 1.000 and 1.004 of the images/s "
         "(results/0.1/h200/settings-2gpu.jsonl); the communication stream has high priority");
  refuse("--per-tensor", "no record used it; --strategy all-reduce exchanges one flat buffer");
  refuse("--ps-exchange", "no record used it; --strategy parameter-server sends and receives");
  refuse("--ps-partition-mb", "no record used it; all gradients are pushed, then pulled, at once");
  refuse("--staleness", "no record used it; a worker may be 4 steps ahead of the slowest");
}

StepVolume volume_of(const ParameterTable& table, DataType gradients, DataType weights,
                     int accumulate) {
  const auto bytes = [&](int first_block, int last_block) {
    std::size_t elements = 0;
    for (int block = first_block; block <= last_block; ++block)
      elements += table.payload_in(table.block_range(block));
    return static_cast<double>(elements * size_of(weights));
  };
  const int last = table.blocks() - 1;
  return {static_cast<double>(table.payload_count() * size_of(gradients)), bytes(0, last),
          bytes(0, 1), bytes(last - 1, last), accumulate};
}

std::string text_of(const Transfer& transfer) {
  constexpr const char* kVolumes[] = {"gradients", "weights", "inputs"};
  constexpr const char* kPatterns[] = {"all_reduce", "pass", "shards", "star", "chain"};
  constexpr const char* kPieces[] = {"whole", "buckets", "blocks", "gathered_blocks"};
  return fmt::format("{} {} {}{}", kVolumes[static_cast<int>(transfer.volume)],
                     kPatterns[static_cast<int>(transfer.pattern)],
                     kPieces[static_cast<int>(transfer.pieces)],
                     transfer.each_micro_batch ? " each_micro_batch" : "");
}

namespace {

/// Weights are gathered for forward and again for backward. The two blocks that were last are still
/// there when the network turns round, in each micro-batch and between two.
double gathered_bytes(const StepVolume& step) {
  return step.accumulate * (2 * step.weights - step.last_blocks) -
         (step.accumulate - 1) * step.first_blocks;
}

/// The share of a volume that the rank sends.
double share_sent(const Transfer& transfer, int ranks, int rank) {
  const double pass = static_cast<double>(ranks - 1) / ranks;
  switch (transfer.pattern) {
    case Pattern::all_reduce: return 2 * pass;
    case Pattern::pass:
    case Pattern::shards: return pass;
    case Pattern::star:
      if (transfer.volume == Volume::gradients) return rank == 0 ? 0 : 1;
      return rank == 0 ? ranks - 1 : 0;
    case Pattern::chain: return rank + 1 == ranks ? 0 : 1;
  }
  throw InternalError("an unknown pattern");
}

}  // namespace

double sent_in(const std::vector<Transfer>& transfers, const StepVolume& step, int ranks,
               int rank) {
  double sent = 0;
  for (const Transfer& t : transfers) {
    if (t.volume == Volume::inputs) continue;
    double bytes = t.volume == Volume::gradients ? step.gradients : step.weights;
    if (t.each_micro_batch) bytes *= step.accumulate;
    if (t.pieces == Pieces::gathered_blocks) bytes += gathered_bytes(step);
    sent += bytes * share_sent(t, ranks, rank);
  }
  return sent;
}

std::vector<Range> ddp_buckets(const ParameterTable& table, double small_cap_mb, double cap_mb,
                               SmallBucket small) {
  const auto& parameters = table.parameters();
  const std::size_t count = parameters.size();
  std::vector<std::size_t> cuts{0, table.stored_count()};  // of the flat buffer
  double open_mb = 0;
  double most_mb = small_cap_mb;
  for (std::size_t i = 0; i + 1 < count; ++i) {
    // the flat order is the reverse of the parameters'
    const std::size_t p = small == SmallBucket::first ? count - 1 - i : i;
    open_mb += static_cast<double>(parameters[p].count * sizeof(float)) / (1 << 20);
    if (open_mb < most_mb) continue;
    cuts.push_back(parameters[small == SmallBucket::first ? p - 1 : p].offset);
    open_mb = 0;
    most_mb = cap_mb;
  }
  std::sort(cuts.begin(), cuts.end());
  std::vector<Range> buckets;
  for (std::size_t i = 1; i < cuts.size(); ++i) buckets.push_back({cuts[i - 1], cuts[i]});
  return buckets;
}

void BucketProgress::restart() {
  next_ = 0;
  end_ = 0;
}

std::vector<Range> BucketProgress::finished(Range range) {
  ENSURE(range.begin == end_, "gradients finish in the flat buffer's order");
  end_ = range.end;
  std::vector<Range> done;
  while (next_ < buckets_.size() && buckets_[next_].end <= end_) done.push_back(buckets_[next_++]);
  return done;
}

namespace {

std::size_t shard_count(std::size_t count, int ranks) {
  return count / kFlatAlignment / static_cast<std::size_t>(ranks) * kFlatAlignment;
}

}  // namespace

Range shard_of(Range range, int rank, int ranks) {
  const std::size_t shard = shard_count(range.count(), ranks);
  const std::size_t begin = range.begin + static_cast<std::size_t>(rank) * shard;
  return {begin, rank + 1 == ranks ? range.end : begin + shard};
}

void reduce_to_shards(Communicator& ranks, ConstView whole, View own, Stream& stream) {
  const std::size_t shard = shard_count(whole.count, ranks.size());
  const std::size_t divided = shard * static_cast<std::size_t>(ranks.size());
  const int last = ranks.size() - 1;
  ranks.group([&] {
    if (shard > 0)
      ranks.reduce_scatter(whole.slice(0, divided), own.slice(0, shard), Reduction::avg, stream);
    if (divided < whole.count)
      ranks.reduce(whole.slice(divided, whole.count - divided),
                   ranks.rank() == last ? own.slice(shard, own.count - shard) : View(),
                   Reduction::avg, last, stream);
  });
}

void gather_shards(Communicator& ranks, ConstView own, View whole, Stream& stream) {
  const std::size_t shard = shard_count(whole.count, ranks.size());
  const std::size_t divided = shard * static_cast<std::size_t>(ranks.size());
  const int last = ranks.size() - 1;
  ranks.group([&] {
    if (shard > 0) ranks.all_gather(own.slice(0, shard), whole.slice(0, divided), stream);
    if (divided < whole.count) {
      const View rest = whole.slice(divided, whole.count - divided);
      ranks.broadcast(ranks.rank() == last ? own.slice(shard, own.count - shard) : ConstView(rest),
                      rest, last, stream);
    }
  });
}

}  // namespace shakedown::training

#include "training/measure/rank_census.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "common/error.hpp"
#include "common/kernels.hpp"

namespace shakedown::training {
namespace {

constexpr double kMostContributors = 1 << 24;  // see stamp_of()

std::string parameter_at(const ParameterTable& table, std::uint64_t element) {
  for (const Parameter& p : table.parameters())
    if (element >= p.offset && element < p.offset + p.stored) return p.name;
  throw InternalError("a stamp that is no gradient's");
}

/// What happened to the rank whose element it is.
std::string text_of(const RankStamps::Found& found, const StrategyEntry& strategy) {
  const int rank = found.rank + strategy.first_computing();
  if (found.times == 0) return fmt::format("rank {} is lost", rank);
  if (std::abs(found.times - 2) < 0.1) return fmt::format("rank {} is doubled", rank);
  return fmt::format("rank {} is there {:.3g} times, or something else is in its place", rank,
                     found.times);
}

/// The fewest gradients between two multiples of kFlatAlignment: no shard, bucket or tensor that
/// is exchanged has less.
std::size_t smallest_piece(const std::vector<Range>& gradients) {
  std::size_t smallest = kFlatAlignment;
  for (const Range& range : gradients)
    if (const std::size_t rest = range.count() % kFlatAlignment; rest > 0)
      smallest = std::min(smallest, rest);
  return smallest;
}

}  // namespace

RankStamps::RankStamps(Device& device, Stream& stream, std::vector<Range> gradients, int ranks,
                       int micro_batches)
    : device_(device),
      stream_(stream),
      gradients_(std::move(gradients)),
      smallest_(smallest_piece(gradients_)),
      ranks_(ranks),
      contributors_(static_cast<std::uint32_t>(ranks) * static_cast<std::uint32_t>(micro_batches)),
      errors_(device, static_cast<std::size_t>(rounds()) * sizeof(StampErrors)) {
  for (const Range& range : gradients_)
    ENSURE(range.end < std::size_t{1} << 31, "elements are numbered in 32 bits");
  const std::vector<StampErrors> none(static_cast<std::size_t>(rounds()));
  upload<StampErrors>(device, stream, errors_.data(), none);
}

int RankStamps::rounds() const {
  const auto piece = static_cast<int>(smallest_);
  return (ranks_ + piece - 1) / piece;
}

std::size_t RankStamps::elements() const {
  std::size_t count = 0;
  for (const Range& range : gradients_) count += range.count();
  return count;
}

/// The next round's stamps are one piece further on, so that all ranks come to every piece.
template <class Body>
void RankStamps::for_gradients(View view, Range range, int round, Body&& body) const {
  for (const Range& gradients : gradients_) {
    const std::size_t begin = std::max(range.begin, gradients.begin);
    const std::size_t end = std::min(range.end, gradients.end);
    if (begin < end)
      body(view.slice(begin - range.begin, end - begin),
           Stamps{contributors_, begin + static_cast<std::size_t>(round) * smallest_});
  }
}

void RankStamps::stamp(View gradients, Range range, int round, int rank, int micro_batch) const {
  const auto contributor = static_cast<std::uint32_t>(micro_batch * ranks_ + rank);
  for_gradients(gradients, range, round, [&](View part, const Stamps& stamps) {
    device_.kernels().stamp(part, stamps, contributor, stream_);
  });
}

void RankStamps::check(const Share& share, int round) {
  auto* errors = static_cast<StampErrors*>(errors_.data()) + round;
  for_gradients(share.gradient, share.range, round, [&](View part, const Stamps& stamps) {
    checked_ += static_cast<double>(part.count);
    device_.kernels().check_stamps(part, stamps, errors, stream_);
  });
}

RankStamps::Found RankStamps::found() const {
  const auto errors =
      download<StampErrors>(device_, stream_, errors_.data(), static_cast<std::size_t>(rounds()));
  Found found{.checked = checked_};
  for (int round = 0; round < rounds(); ++round) {
    const StampErrors& e = errors[static_cast<std::size_t>(round)];
    found.wrong += static_cast<double>(e.wrong);
    if (e.wrong == 0 || found.round >= 0) continue;
    const std::uint64_t stamped = e.first >> 32;
    found.round = round;
    found.element = stamped - static_cast<std::uint64_t>(round) * smallest_;
    found.rank = static_cast<int>(stamped % contributors_) % ranks_;
    found.times = static_cast<double>(
                      std::bit_cast<float>(static_cast<std::uint32_t>(e.first & 0xFFFFFFFFU))) *
                  contributors_ / static_cast<double>(stamp_of(stamped));
  }
  return found;
}

Census take_census(Engine& engine, const MpiSession& session) {
  const StrategyEntry& entry = engine.step.strategy_entry();
  const ParameterTable& table = engine.model.network().table();
  Census census{.ranks = engine.step.ranks_computing()};
  const int micro_batches = engine.settings().accumulate;
  if (static_cast<double>(census.ranks) * micro_batches > kMostContributors) {
    census.unknown = true;
    census.cause = fmt::format("{} ranks of {} micro-batches are too many to distinguish",
                               census.ranks, micro_batches);
    return census;
  }
  std::vector<Range> gradients;
  for (const Parameter& p : table.parameters())
    gradients.push_back({p.offset, p.offset + p.stored});
  RankStamps stamps(engine.device(), engine.stream(), gradients, census.ranks, micro_batches);
  const int rank = entry.computing_rank(engine.world().rank());
  for (int round = 0; round < stamps.rounds(); ++round)
    engine.step.exchange_gradients(
        [&](View gradients, Range range, int micro_batch) {
          stamps.stamp(gradients, range, round, rank, micro_batch);
        },
        [&](const Share& share) { stamps.check(share, round); });
  engine.finish();

  const auto found = session.all_gather(stamps.found());
  double checked = 0;
  for (const RankStamps::Found& f : found) checked += f.checked;
  for (std::size_t r = 0; r < found.size() && census.cause.empty(); ++r)
    if (found[r].wrong > 0)
      census.cause = fmt::format(
          "the gradients that {} averaged on rank {} on {} are not those of {} ranks, once each: "
          "in {}, {} ({:.0f} of {:.0f} elements are wrong)",
          entry.name, r, session.hosts()[r], census.ranks, parameter_at(table, found[r].element),
          text_of(found[r], entry), found[r].wrong, found[r].checked);
  const double expected = static_cast<double>(stamps.elements()) * stamps.rounds() *
                          (engine.step.plan().updates_all ? census.ranks : 1);
  if (census.cause.empty() && checked != expected)
    census.cause = fmt::format("{} averaged {:.0f} gradients, not {:.0f}", entry.name,
                               checked / stamps.rounds(), expected / stamps.rounds());
  census.pass = census.cause.empty();
  return census;
}

namespace {

/// Of images and labels, as the network reads them.
std::string hash_of_batch(Engine& engine) {
  const Buffer hashes(engine.device(), 2 * sizeof(std::uint64_t));
  engine.device().zero(hashes.data(), hashes.bytes(), engine.stream());
  auto* hash = static_cast<std::uint64_t*>(hashes.data());
  for (const View& view : engine.model.network().batch())
    engine.device().kernels().add_bit_hash(view, hash++, engine.stream());
  engine.finish();
  const auto found = download<std::uint64_t>(engine.device(), engine.stream(), hashes.data(), 2);
  return fmt::format("{:016x}{:016x}", found[0], found[1]);
}

std::vector<std::byte> bytes_of(Engine& engine, ConstView view) {
  return download<std::byte>(engine.device(), engine.stream(), view.data, view.bytes());
}

/// Whether the network reads these weights in a block.
bool reads(Engine& engine, int block, const std::vector<float>& master) {
  const Weights& weights = engine.model.network().weights();
  const ParameterTable& table = engine.model.network().table();
  const Range range = table.block_range(block);
  const std::vector<float> wanted(master.begin() + static_cast<std::ptrdiff_t>(range.begin),
                                  master.begin() + static_cast<std::ptrdiff_t>(range.end));
  const View copy = weights.compute(range);
  const Buffer wide(engine.device(), wanted.size() * sizeof(float));
  upload<float>(engine.device(), engine.stream(), wide.data(), wanted);
  const Buffer rounded(engine.device(), copy.bytes());
  engine.device().kernels().convert(wide.view(DataType::float32), rounded.view(copy.type),
                                    engine.stream());
  if (bytes_of(engine, copy) != bytes_of(engine, rounded.view(copy.type))) return false;
  if (weights.vectors().count == 0) return true;
  for (std::size_t i = 0; i < table.parameters().size(); ++i) {
    const Parameter& p = table.parameters()[i];
    if (p.block != block || p.shape.size() != 1) continue;
    const auto vector = download<float>(engine.device(), engine.stream(),
                                        weights.vector(static_cast<int>(i)), p.stored);
    if (std::memcmp(vector.data(), &master[p.offset], p.stored * sizeof(float)) != 0) return false;
  }
  return true;
}

}  // namespace

ReceivedInputs check_inputs(Engine& engine, BatchSource& batches, const MpiSession& session) {
  constexpr std::size_t kDigits = 32;  // of a batch's hash
  ReceivedInputs inputs;
  Network& network = engine.model.network();
  if (!engine.step.plan().first_has_inputs) return inputs;
  batches.start_epoch(0);
  batches.load_next(network);
  const auto received = session.all_gather(hash_of_batch(engine));
  const std::vector<DeviceBatch> made = batches.of_all_ranks();
  std::string hashes;
  for (auto batch = made.rbegin(); batch != made.rend(); ++batch) {  // this rank's last
    network.set_batch(batch->images, batch->labels);
    hashes.insert(0, hash_of_batch(engine));
  }
  const std::string sent = session.all_gather(hashes).front();
  inputs.compared = !sent.empty();
  for (std::size_t r = 0; r < received.size() && inputs.compared && inputs.cause.empty(); ++r)
    if (sent.substr(r * kDigits, kDigits) != received[r])
      inputs.cause = fmt::format("rank {} on {} has another batch than rank 0 made for it", r,
                                 session.hosts()[r]);
  return inputs;
}

std::string check_published(Engine& engine, const std::vector<float>& master,
                            const MpiSession& session) {
  std::string cause;
  if (engine.step.computes())
    engine.model.gather_weights([&](int block) {
      if (cause.empty() && !reads(engine, block, master))
        cause = fmt::format(
            "computes {} with other weights than the update made",
            block_names(engine.settings().network.architecture)[static_cast<std::size_t>(block)]);
    });
  const auto causes = session.all_gather(cause);
  for (std::size_t r = 0; r < causes.size(); ++r)
    if (!causes[r].empty())
      return fmt::format("rank {} on {} {}", r, session.hosts()[r], causes[r]);
  return "";
}

}  // namespace shakedown::training

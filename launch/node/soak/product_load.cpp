#include "launch/node/soak/product_load.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/hash.hpp"
#include "common/text_table.hpp"
#include "launch/node/soak/evidence.hpp"
#include "launch/node/soak/placing.hpp"

namespace shakedown::node {

ProductLoad::ProductLoad(const ProductSettings& settings, Device& device, const MpiSession& jurors)
    : settings_([&] {
        ProductSettings chosen = settings;
        if (!chosen.algorithm) chosen.algorithm = choose_algorithm(settings.spec, device, jurors);
        return chosen;
      }()),
      rig_(settings.spec, device, settings_.algorithm->name, kMostBatches, settings.load.fault),
      pace_(rig_.stream(), {device.make_event(), device.make_event()}),
      timer_(settings.spec, device, rig_.stream(), kTimed + 1),
      alone_(jurors.world_size() == 1) {
  for (Batch& batch : batches_) {
    batch.began = device.make_event();
    batch.ended = device.make_event();
  }
}

std::uint64_t ProductLoad::seed_of(const Batch& batch) const {
  return derive_seed(settings_.load.seed + static_cast<std::uint64_t>(settings_.spec.type),
                     batch.number);
}

/// The same on every rank. A turn takes long next to the time in which its operands are made.
int ProductLoad::turns_in(double seconds) const {
  constexpr double kTurnS = 0.05;
  constexpr double kElements = 1 << 27;  // of A and B, that are made in a fiftieth of a turn
  if (settings_.pulse_hertz > 0) return kLeastTurns;
  const ProductSpec& spec = settings_.spec;
  const double elements = static_cast<double>((spec.m + spec.n) * spec.k);
  const double turn_s = kTurnS * std::max(1.0, elements / kElements);
  return std::clamp(static_cast<int>(seconds / kSeeds / turn_s), kLeastTurns, kMostTurns);
}

void ProductLoad::work(int index, double until_s) {
  Batch& batch = this->batch(index);
  rig_.inject(index >= settings_.first_faulty ? settings_.load.fault : std::nullopt);
  rig_.fill({batch.operands, seed_of(batch), batch.turn});
  std::optional<ProductVerifier> verifier;  // of the first product: the others must be like it
  if (batch.integers() && index % turns_ == 0)
    verifier.emplace(settings_.spec, seed_of(batch), rig_.device(), rig_.stream());
  batch.products = 0;
  batch.began->record(rig_.stream());
  pace_.run(until_s, settings_.load.stopped, [&](std::uint32_t products) {
    for (std::uint32_t i = 0; i < products; ++i) {
      rig_.run_checked(index, batch.products);
      if (verifier && batch.products == 0) check_known_answer(index, *verifier);
      ++batch.products;
    }
  });
  batch.ended->record(rig_.stream());
}

LoadCount ProductLoad::run(double seconds, std::vector<Mismatch>& found) {
  turns_ = turns_in(seconds);
  for (int i = 0; i < batches(); ++i) {
    batch(i).number = calls_ * kSeeds + static_cast<std::uint64_t>(i / turns_);
    batch(i).operands = i < turns_ ? settings_.first_operands : Operands::full_entropy;
    batch(i).turn = algorithm().turns ? static_cast<std::uint32_t>(i % turns_) : 0;
  }
  ++calls_;
  refuted_.clear();
  samples_.clear();
  LoadCount count;
  pace_.begin(settings_.pulse_hertz);
  for (int i = 0; i < batches(); ++i) {
    work(i, seconds * (i + 1) / batches());
    if (i + 1 == 2 * turns_) take_sample(i);  // of full entropy
    if ((i + 1) % turns_ == 0) count.wrong += check_operands(batch(i), found);
  }
  for (int i = 0; i < batches(); ++i) {
    Batch& one = batch(i);
    const bool turned = algorithm().turns || i % turns_ == 0;
    count.checked += one.products;
    if (!one.integers() && alone_ && !algorithm().turns) count.self_compared += one.products;
    if (one.operands == Operands::full_entropy && turned) ++count.turns;
    count.seconds += one.seconds();
    count.flop += one.products * flop_of(settings_.spec);
    one.records = rig_.records(i);
  }
  return count;
}

/// `checks(batch)`: whether its products are, as those of run(). The first batch follows a pause.
ProductRates ProductLoad::time(const std::function<bool(int batch)>& checks) {
  const std::uint32_t products = pace_.size();
  int batch = 0;
  const auto enqueue = [&] {
    const bool checked = checks(batch++);
    for (std::uint32_t i = 0; i < products; ++i)
      if (checked)
        rig_.run_checked(0, i);
      else
        rig_.run();
  };
  return timer_.time(kTimed + 1, 1, products, enqueue, [](Event& end) { end.synchronize(); });
}

ProductRates ProductLoad::time_alone() {
  return time([](int) { return false; });
}

/// Of each four timed batches the outer ones are checked: what changes steadily, as the clock does
/// at the power limit, is the same for both.
double ProductLoad::checked_over_unchecked() {
  const auto is_checked = [](int batch) { return batch % 4 < 2; };
  const std::vector<double> tflops = time(is_checked).tflops;
  double checked_s = 0, unchecked_s = 0;
  for (int batch = 1; batch <= kTimed; ++batch)
    (is_checked(batch) ? checked_s : unchecked_s) +=
        1 / tflops[static_cast<std::size_t>(batch) - 1];
  return unchecked_s / checked_s;
}

/// A tile of the product that the rig holds, another one in each call: a GPU alone has no juror of
/// what all its SMs do alike. The CPU takes some tenths of a second.
void ProductLoad::take_sample(int index) {
  if (!alone_) return;
  const Batch& of = batch(index);
  const auto tile = static_cast<std::int64_t>(derive_seed(seed_of(of), 1) %
                                              static_cast<std::uint64_t>(rig_.grid().tiles()));
  const auto is_right = [spec = settings_.spec, operands = of.operands, seed = seed_of(of), tile,
                         bytes = rig_.tile_bytes(tile)] {
    const HostTile host = host_tile(spec, operands, seed, tile);
    const DataType type = result_type(spec.type);
    return operands == Operands::integers ? encoded(host, type) == bytes
                                          : beyond_bound(host, bytes, type).empty();
  };
  // The cpu backend's products need the cores: there it is computed when it is needed.
  const auto when =
      rig_.device().kind() == BackendKind::gpu ? std::launch::async : std::launch::deferred;
  samples_.push_back({index, tile, std::async(when, is_right)});
}

/// Of a product that nothing has moved.
void ProductLoad::check_known_answer(int index, const ProductVerifier& verifier) {
  const WrongSums wrong = verifier.check(rig_.product().c(), rig_.stream());
  if (index == 0) take_sample(index);
  if (wrong.none()) return;
  const auto tile_of = [](const std::vector<WrongSum>& sums) {
    return sums.empty() ? 0 : sums.front().index / kTileEdge;
  };
  refuted_[index] = tile_of(wrong.rows) * rig_.grid().across() + tile_of(wrong.columns);
}

/// 1 where an operand is not what was written. What is written again shows whether the memory keeps
/// it: of the first one of a call.
std::uint64_t ProductLoad::check_operands(const Batch& batch, std::vector<Mismatch>& found) {
  const auto wrong = rig_.check_operands();
  if (!wrong) return 0;
  constexpr int kRefills = 20;
  int again = 0;
  const int repeats = found.empty() ? kRefills : 1;
  for (int i = 0; i < repeats; ++i) {
    rig_.fill(rig_.draw());
    const auto next = rig_.check_operands();
    if (next && next->matrix == wrong->matrix && next->index == wrong->index) ++again;
  }
  const char name = wrong->matrix == 0 ? 'A' : 'B';
  const auto columns = static_cast<std::uint64_t>(settings_.spec.k);
  Mismatch mismatch;
  mismatch.load = fmt::format("product {}", name_of(settings_.spec.type));
  mismatch.operation = batch.number;
  mismatch.where = fmt::format("operand {}, element {},{} in memory", name, wrong->index / columns,
                               wrong->index % columns);
  mismatch.index = wrong->index;
  mismatch.expected = wrong->expected;
  mismatch.found = wrong->found;
  mismatch.reproduced = again;
  mismatch.repeats = repeats;
  mismatch.conclude(failure(
      Class::hardware,
      fmt::format("{} of {} changed in memory after it was written; written again, {} of {} times",
                  counted(static_cast<long>(wrong->count), "element"), name, again, repeats),
      again > 0 ? kRemapRows : "run again for longer; RMA if it comes back"));
  found.push_back(std::move(mismatch));
  return 1;
}

ProductLoad::Seen ProductLoad::seen() const {
  Seen mine{};
  for (std::size_t i = 0; i < static_cast<std::size_t>(batches()); ++i)
    mine.digests[i] = digest_of(batches_[i].records);
  for (const auto& [index, tile] : refuted_) mine.refuted[static_cast<std::size_t>(index)] = true;
  return mine;
}

std::uint64_t ProductLoad::confer(const MpiSession& jurors, std::vector<Mismatch>& found) {
  for (Sample& sample : samples_)
    if (!sample.right.get()) refuted_.emplace(sample.index, sample.tile);
  samples_.clear();
  const std::vector<Seen> all = jurors.all_gather(seen());
  const Seen& mine = all[static_cast<std::size_t>(jurors.rank())];
  bool looked = false;  // once per call: it takes time, and the first look says it all
  std::uint64_t wrong = 0;
  for (int first = 0; first < batches(); first += turns_) {
    std::vector<TileRecord> digests;
    bool refuted = false;
    for (const Seen& seen : all)
      for (int i = first; i < first + turns_; ++i) {
        const auto at = static_cast<std::size_t>(i);
        digests.push_back(seen.digests[at]);
        refuted = refuted || seen.refuted[at];
      }
    const Ruling ruling = vote(digests, static_cast<std::uint32_t>(turns_));
    if (ruling.agreed() && !refuted) continue;
    for (int i = first; i < first + turns_; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const bool contradicted =
          ruling.right ? *ruling.right != mine.digests[at].first
                       : !ruling.agreed() && (!ruling.undecided.empty() ||
                                              i - first == static_cast<int>(ruling.turn));
      if (mine.digests[at].differing > 0)
        wrong += mine.digests[at].differing;
      else if (mine.refuted[at] || contradicted)
        wrong += batch(i).products;
    }
    if (!std::exchange(looked, true)) investigate(first, jurors, found);
  }
  return wrong;
}

/// `first`: the seed's first batch.
void ProductLoad::investigate(int first, const MpiSession& jurors, std::vector<Mismatch>& found) {
  Suspicion suspicion{batch(first).operands, seed_of(batch(first)), batch(first).number, {}, {}};
  suspicion.stopped = settings_.load.stopped;
  std::vector<TileRecord> records;
  double refuted = -1;
  double turn = 0;
  for (int i = first; i < first + turns_; ++i) {
    suspicion.turns.push_back(batch(i).turn);
    records.insert(records.end(), batch(i).records.begin(), batch(i).records.end());
    const auto tile = refuted_.find(i);
    if (tile == refuted_.end() || refuted >= 0) continue;
    refuted = static_cast<double>(tile->second);
    turn = i - first;
  }
  suspicion.refuted = jurors.all_gather(refuted);
  for (const double of_juror : jurors.all_gather(turn))
    suspicion.refuted_turn = std::max(suspicion.refuted_turn, static_cast<std::uint32_t>(of_juror));
  for (Mismatch& mismatch : find_evidence(rig_, suspicion, records, jurors)) {
    mismatch.load = fmt::format("product {}", name_of(settings_.spec.type));
    found.push_back(std::move(mismatch));
  }
}

}  // namespace shakedown::node

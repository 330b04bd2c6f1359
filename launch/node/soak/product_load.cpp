#include "launch/node/soak/product_load.hpp"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "common/device.hpp"
#include "common/hash.hpp"
#include "common/nvml.hpp"
#include "launch/node/soak/evidence.hpp"

namespace shakedown::node {
namespace {

/// That of the first juror: with the same algorithm the same bits are expected.
std::string common_algorithm(const ProductSettings& settings, Device& device,
                             const MpiSession& jurors) {
  if (!settings.algorithm.empty()) return settings.algorithm;
  std::string mine;
  if (jurors.is_root())
    mine = make_product(settings.spec, device, *device.make_stream())->algorithm();
  return jurors.all_gather(mine).front();
}

}  // namespace

ProductLoad::ProductLoad(const ProductSettings& settings, Device& device, const MpiSession& jurors)
    : settings_(settings),
      rig_(settings.spec, device, common_algorithm(settings, device, jurors), kBatches,
           settings.load.fault),
      pace_(rig_.stream(), {device.make_event(), device.make_event(), device.make_event()}),
      clock_(make_sm_clock(device, kTimed + 1)),
      alone_(jurors.world_size() == 1),
      ratio_(kUnknown) {
  for (Batch& batch : batches_) {
    batch.began = device.make_event();
    batch.ended = device.make_event();
  }
}

std::uint64_t ProductLoad::seed_of(const Batch& batch) const {
  return derive_seed(settings_.load.seed + static_cast<std::uint64_t>(settings_.spec.type),
                     batch.number);
}

void ProductRates::add(const ProductRates& more) {
  for (const auto samples :
       {&ProductRates::flop_per_cycle_sm, &ProductRates::clock_mhz, &ProductRates::tflops})
    (this->*samples).insert((this->*samples).end(), (more.*samples).begin(), (more.*samples).end());
}

void ProductLoad::work(int index, double until_s) {
  Batch& batch = batches_[static_cast<std::size_t>(index)];
  rig_.inject(index >= settings_.first_faulty ? settings_.load.fault : std::nullopt);
  rig_.fill(batch.operands(), seed_of(batch));
  std::optional<ProductVerifier> verifier;  // of the first product: the others must be like it
  if (batch.integers())
    verifier.emplace(settings_.spec, seed_of(batch), rig_.device(), rig_.stream());
  batch.products = batch.checked = 0;
  batch.began->record(rig_.stream());
  batch.chunks = pace_.run(until_s, settings_.load.stopped, [&](int chunk, std::uint32_t products) {
    batch.products += products;
    const bool checks = !compares(batch) || is_checked_chunk(chunk);
    for (std::uint32_t i = 0; i < products; ++i) {
      if (!checks) {
        rig_.run();
        continue;
      }
      rig_.run_checked(index, batch.checked);
      if (verifier && batch.checked == 0) check_known_answer(index, *verifier);
      ++batch.checked;
    }
  });
  batch.ended->record(rig_.stream());
}

LoadCount ProductLoad::run(double seconds, std::vector<Mismatch>&) {
  for (int i = 0; i < kBatches; ++i)
    batches_[static_cast<std::size_t>(i)].number =
        calls_ * kBatches + static_cast<std::uint64_t>(i);
  ++calls_;
  refuted_.clear();
  samples_.clear();
  pace_.begin(pulse_hertz_);
  for (int i = 0; i < kBatches; ++i) work(i, seconds * (i + 1) / kBatches);
  batches_.back().ended->synchronize();
  take_sample(kBatches - 1);
  LoadCount count;
  ComparedRates rates;
  for (Batch& batch : batches_) {
    count.checked += batch.checked;
    if (alone_ && !batch.integers()) count.self_compared += batch.checked;
    if (!batch.integers() && batch.checked > 0) ++count.turns;
    count.seconds += batch.seconds();
    count.flop += batch.products * flop_of(settings_.spec);
    batch.records = rig_.records(static_cast<int>(&batch - batches_.data()));
    if (compares(batch)) rates.add(batch.chunks);
  }
  ratio_ = rates.ratio();
  return count;
}

ProductRates ProductLoad::time_alone() {
  const Chunk& last = batches_.back().chunks.back();
  Laps laps(rig_.device(), kTimed);
  for (int batch = -1; batch < kTimed; ++batch) {  // the first one follows a pause
    if (batch == 0) laps.mark(rig_.stream());
    if (clock_) clock_->start(rig_.stream());
    for (std::uint32_t i = 0; i < last.operations; ++i) rig_.run();
    if (clock_) clock_->stop(rig_.stream());
    if (batch >= 0) laps.mark(rig_.stream());
  }
  const double flop = last.operations * flop_of(settings_.spec);
  ProductRates rates;
  for (const double ms : laps.milliseconds()) rates.tflops.push_back(flop / ms / 1e9);
  if (!clock_) return rates;
  const auto readings = clock_->readings(rig_.stream());
  const double sms = rig_.device().identity().compute_threads;
  for (auto reading = readings.begin() + 1; reading != readings.end(); ++reading) {
    rates.flop_per_cycle_sm.push_back(flop / reading->cycles / sms);
    rates.clock_mhz.push_back(reading->clock_mhz);
  }
  return rates;
}

/// A tile of the batch's last product, another one in each call.
void ProductLoad::take_sample(int index) {
  if (!alone_) return;
  const std::uint64_t seed = seed_of(batches_[static_cast<std::size_t>(index)]);
  const auto tile = static_cast<std::int64_t>(derive_seed(seed, 1) %
                                              static_cast<std::uint64_t>(rig_.grid().tiles()));
  samples_.push_back({index, tile, rig_.tile_bytes(tile)});
}

/// While no product runs: the host takes some tenths of a second for a tile.
void ProductLoad::recompute_samples() {
  for (const Sample& sample : samples_) {
    const Batch& batch = batches_[static_cast<std::size_t>(sample.index)];
    const HostTile host = host_tile(settings_.spec, batch.operands(), seed_of(batch), sample.tile);
    const DataType type = result_type(settings_.spec.type);
    const bool right = batch.integers() ? encoded(host, type) == sample.bytes
                                        : beyond_bound(host, sample.bytes, type).empty();
    if (!right) refuted_.emplace(sample.index, sample.tile);
  }
}

void ProductLoad::check_known_answer(int index, const ProductVerifier& verifier) {
  const WrongSums wrong = verifier.check(rig_.product().c(), rig_.stream());
  if (index == 0) take_sample(index);
  if (wrong.none()) return;
  const auto tile_of = [](const std::vector<WrongSum>& sums) {
    return sums.empty() ? 0 : sums.front().index / kTileEdge;
  };
  refuted_[index] = tile_of(wrong.rows) * rig_.grid().across() + tile_of(wrong.columns);
}

ProductLoad::Seen ProductLoad::seen() const {
  Seen mine{};
  for (std::size_t i = 0; i < batches_.size(); ++i)
    mine.digests[i] = digest_of(batches_[i].records);
  for (const auto& [index, tile] : refuted_) mine.refuted[static_cast<std::size_t>(index)] = true;
  return mine;
}

LoadCount ProductLoad::confer(const MpiSession& jurors, std::vector<Mismatch>& found) {
  recompute_samples();
  const std::vector<Seen> all = jurors.all_gather(seen());
  const Seen& mine = all[static_cast<std::size_t>(jurors.rank())];
  constexpr int kMostLooks = 2;  // per call: they take time, and the first ones say it all
  int looks = 0;
  LoadCount count;
  for (int i = 0; i < kBatches; ++i) {
    const auto at = static_cast<std::size_t>(i);
    std::vector<TileRecord> digests;  // a vote on digests as on one tile's hashes
    bool refuted = false;
    for (const Seen& seen : all) {
      const Digest& digest = seen.digests[at];
      digests.push_back({digest.hash, 0, static_cast<std::uint32_t>(digest.differing), 0});
      refuted = refuted || seen.refuted[at];
    }
    const Ruling ruling = vote(digests);
    if (ruling.agreed() && !refuted) continue;
    if (mine.digests[at].differing > 0) {
      count.wrong += mine.digests[at].differing;
    } else if (mine.refuted[at] || !ruling.undecided.empty() ||
               (ruling.right && *ruling.right != mine.digests[at].hash)) {
      count.wrong += batches_[at].checked;
    }
    if (looks++ < kMostLooks) investigate(i, jurors, found);
  }
  return count;
}

void ProductLoad::investigate(int index, const MpiSession& jurors, std::vector<Mismatch>& found) {
  const Batch& batch = batches_[static_cast<std::size_t>(index)];
  const auto refuted = refuted_.find(index);
  const Suspicion suspicion{
      batch.operands(), seed_of(batch), batch.number,
      jurors.all_gather(refuted == refuted_.end() ? -1. : static_cast<double>(refuted->second))};
  for (Mismatch& mismatch : find_evidence(rig_, suspicion, batch.records, jurors)) {
    mismatch.load = fmt::format("product {}", name_of(settings_.spec.type));
    found.push_back(std::move(mismatch));
  }
}

ProductRig::ProductRig(const ProductSpec& spec, Device& device, const std::string& algorithm,
                       int batches, std::optional<FaultKind> fault)
    : device_(device),
      stream_(device.make_stream()),
      product_(make_product(spec, device, *stream_, algorithm)),
      hasher_(make_tile_hasher(device.kind())),
      grid_(grid_of(spec)),
      records_(device, static_cast<std::size_t>(batches * grid_.tiles()) * sizeof(TileRecord)),
      fault_(fault) {}

TileRecord* ProductRig::records_of(int batch) const {
  return static_cast<TileRecord*>(records_.data()) + batch * grid_.tiles();
}

void ProductRig::run() {
  product_->run(*stream_);
  if (fault_ == FaultKind::product) {  // of an element in the middle of the last tile
    const View c = product_->c();
    const auto row = static_cast<std::size_t>(grid_.rows - kTileEdge / 2);
    const std::size_t element = row * static_cast<std::size_t>(grid_.columns) - kTileEdge / 2;
    flip_bit(device_, *stream_, c, element, 4 * static_cast<int>(size_of(c.type)));
  }
  if (fault_ == FaultKind::slow) {
    const auto start = std::chrono::steady_clock::now();
    stream_->synchronize();
    constexpr auto kLeast = std::chrono::milliseconds(20);
    std::this_thread::sleep_for(kLeast + (std::chrono::steady_clock::now() - start));
  }
}

void ProductRig::run_checked(int batch, std::uint32_t product) {
  run();
  TileRecord* records = records_of(batch);
  hasher_->hash(product_->c(), grid_, product, records, *stream_);
  if (fault_ == FaultKind::hash && product == 0)
    flip_bit(device_, *stream_, View(&records->first, 1, DataType::uint64, Place::device), 0, 32);
}

std::vector<TileRecord> ProductRig::records(int batch) {
  return download<TileRecord>(device_, *stream_, records_of(batch),
                              static_cast<std::size_t>(grid_.tiles()));
}

TileRecord ProductRig::record(int batch, std::int64_t tile) {
  return download<TileRecord>(device_, *stream_, records_of(batch) + tile, 1).front();
}

}  // namespace shakedown::node

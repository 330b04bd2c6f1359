// Products of one type as a load of the soak: full-entropy ones judged by a jury of the GPUs of one
// model, and ones of integers whose result is known.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/device.hpp"
#include "common/mpi_session.hpp"
#include "common/program.hpp"
#include "common/sm_clock.hpp"
#include "launch/node/compute/product.hpp"
#include "launch/node/compute/verify.hpp"
#include "launch/node/soak/jury.hpp"
#include "launch/node/soak/load.hpp"
#include "launch/node/soak/schedule.hpp"
#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node {

// One product on this rank's device with what checks it: used by the soak, its second looks and
// --replay alike.

class ProductRig {
 public:
  /// Room for the records of this many batches. `fault`: product, hash or slow, injected here.
  ProductRig(const ProductSpec& spec, Device& device, const std::string& algorithm, int batches,
             std::optional<FaultKind> fault);

  const ProductSpec& spec() const { return product_->spec(); }
  std::string algorithm() const { return product_->algorithm(); }
  const TileGrid& grid() const { return grid_; }
  Product& product() { return *product_; }
  Stream& stream() { return *stream_; }
  Device& device() { return device_; }

  /// From now on this fault.
  void inject(std::optional<FaultKind> fault) { fault_ = fault; }
  void fill(Operands operands, std::uint64_t seed) { product_->fill(operands, seed, *stream_); }
  /// Enqueues one product.
  void run();
  /// The same, and the hashes of its tiles into the batch's records; `product` is 0 for the first.
  void run_checked(int batch, std::uint32_t product);

  /// Waits for the stream.
  std::vector<TileRecord> records(int batch);
  TileRecord record(int batch, std::int64_t tile);
  std::vector<std::byte> tile_bytes(std::int64_t tile) {
    return read_tile(device_, product_->c(), grid_, tile, *stream_);
  }

 private:
  TileRecord* records_of(int batch) const;

  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Product> product_;
  std::unique_ptr<TileHasher> hasher_;
  TileGrid grid_;
  Buffer records_;
  std::optional<FaultKind> fault_;
};

struct ProductSettings {
  ProductSpec spec;
  std::string algorithm;  // empty: what the first juror finds fastest
  LoadSettings load;      // faults: product, hash, slow
  int first_faulty = 0;   // batch of a call that has the fault; all later ones do
};

/// Of batches of one type's products, one element per batch: the quantities of product/T/... On the
/// cpu backend the rate alone.
struct ProductRates {
  std::vector<double> flop_per_cycle_sm, clock_mhz, tflops;
  void add(const ProductRates& more);
};

/// A call of run() makes kBatches batches. A batch has operands of its own seed, and this many
/// products of them, each of them hashed: they must all be alike, on every GPU. So of each batch a
/// record per tile is enough (TileRecord), and of all tiles a digest: ranks exchange the digests
/// once per call, and records only where digests differ. GPUs need not make the same number of
/// products. The first product of each batch of integers is compared with the known answer. A juror
/// on its own has nobody to differ from: its products of full entropy are compared only with
/// themselves, but for one tile of each call, which the CPU recomputes within the bound of its
/// rounding, as it does one of integers to the bit.
class ProductLoad final : public Load {
 public:
  static constexpr int kBatches = 16;
  static constexpr int kTimed = 12;  // batches of time_alone()

  /// Collective of the jurors: the ranks whose GPUs are of the same model.
  ProductLoad(const ProductSettings& settings, Device& device, const MpiSession& jurors);

  std::string algorithm() const { return rig_.algorithm(); }
  LoadCount run(double seconds, std::vector<Mismatch>& found) override;
  LoadCount confer(const MpiSession& jurors, std::vector<Mismatch>& found) override;

  /// From now on products are made in the first half of each period only; 0: always.
  void set_pulse(double hertz) { pulse_hertz_ = hertz; }
  /// From now on half of the chunks of two batches of four are not checked, nor counted: to compare
  /// the rates.
  void set_comparing(bool on) { comparing_ = on; }
  /// After run(): products as they were there, without the hashes between them.
  ProductRates time_alone();

  /// Products per second of checked chunks over those of unchecked ones between them, in the last
  /// call; kUnknown where there were none.
  double checked_over_unchecked() const { return ratio_; }

 private:
  struct Batch {
    std::uint64_t number = 0;
    std::uint32_t products = 0;
    std::uint32_t checked = 0;  // of them
    std::vector<Chunk> chunks;
    std::vector<TileRecord> records;
    std::unique_ptr<Event> began, ended;

    bool integers() const { return number % 4 == 0; }
    Operands operands() const { return integers() ? Operands::integers : Operands::full_entropy; }
    double seconds() const { return ended->milliseconds_since(*began) / 1e3; }
  };
  struct Sample {   // of the product that the rig holds: for the CPU
    int index = 0;  // of the batch
    std::int64_t tile = 0;
    std::vector<std::byte> bytes;
  };
  struct Seen {  // what jurors exchange of a call
    std::array<Digest, kBatches> digests;
    std::array<bool, kBatches> refuted;  // by the known answer
  };

  std::uint64_t seed_of(const Batch& batch) const;
  void work(int index, double until_s);
  bool compares(const Batch& batch) const {
    return comparing_ && (batch.number % 4 == 1 || batch.number % 4 == 2);
  }
  void check_known_answer(int index, const ProductVerifier& verifier);
  void take_sample(int index);
  void recompute_samples();
  Seen seen() const;
  void investigate(int index, const MpiSession& jurors, std::vector<Mismatch>& found);

  ProductSettings settings_;
  ProductRig rig_;
  std::array<Batch, kBatches> batches_;
  std::uint64_t calls_ = 0;
  Pace pace_;
  std::unique_ptr<SmClock> clock_;  // null on the cpu backend
  bool alone_;
  std::vector<Sample> samples_;
  std::map<int, std::int64_t> refuted_;  // by batch: a tile that is not what it must be
  double pulse_hertz_ = 0;
  bool comparing_ = false;
  double ratio_;
};

}  // namespace shakedown::node

// Products of one type as a load of the soak: full-entropy ones judged by a jury of turns and of
// the GPUs of one model, and ones of integers whose result is known.
#pragma once

#include <array>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/device.hpp"
#include "common/mpi_session.hpp"
#include "launch/node/compute/rates.hpp"
#include "launch/node/compute/verify.hpp"
#include "launch/node/soak/load.hpp"
#include "launch/node/soak/product_rig.hpp"
#include "launch/node/soak/schedule.hpp"

namespace shakedown::node {

struct ProductSettings {
  ProductSpec spec;
  std::optional<AlgorithmChoice> algorithm;  // none: choose_algorithm()
  LoadSettings load;                         // faults: product, hash, memory, slow
  double pulse_hertz = 0;  // products are made in the first half of each period only; 0: always
  Operands first_operands = Operands::integers;  // of the first of a call's seeds
  int first_faulty = 0;  // batch of a call that has the fault; all later ones do
};

/// A call of run() draws kSeeds seeds of operands, of full entropy but for the first, and makes
/// batches of products of each in several turns: others of its places compute each element. Every
/// product is hashed by tiles, numbered as before the turn: all products of a seed must be alike,
/// in every turn and on every GPU. So of each batch a record per tile is enough (TileRecord), and
/// of all tiles a digest: ranks exchange the digests once per call, and records only where digests
/// differ. GPUs need not make the same number of products. After a seed's last turn A and B are
/// compared in memory with what was written. The first product of integers is compared with the
/// known answer. Of a juror on its own the CPU recomputes a tile of each call too, within the bound
/// of its rounding, as it does one of integers to the bit.
class ProductLoad final : public Load {
 public:
  static constexpr int kSeeds = 4;
  static constexpr int kLeastTurns = 3;
  static constexpr int kMostTurns = 32;
  static constexpr int kMostBatches = kSeeds * kMostTurns;
  static constexpr int kTimed = 12;  // batches that are timed: whole fours

  /// Collective of the jurors: the ranks whose GPUs are of the same model.
  ProductLoad(const ProductSettings& settings, Device& device, const MpiSession& jurors);

  const AlgorithmChoice& algorithm() const { return *settings_.algorithm; }
  LoadCount run(double seconds, std::vector<Mismatch>& found) override;
  std::uint64_t confer(const MpiSession& jurors, std::vector<Mismatch>& found) override;

  /// After run(): products as they were there, without the hashes between them.
  ProductRates time_alone();

  /// After run(): the rate of checked products over that of unchecked ones between them.
  double checked_over_unchecked();

 private:
  struct Batch {
    std::uint64_t number = 0;  // of the seed
    std::uint32_t turn = 0;
    std::uint32_t products = 0;
    std::vector<TileRecord> records;
    std::unique_ptr<Event> began, ended;

    Operands operands = Operands::full_entropy;

    bool integers() const { return operands == Operands::integers; }
    double seconds() const { return ended->milliseconds_since(*began) / 1e3; }
  };
  struct Sample {
    int index = 0;  // of the batch
    std::int64_t tile = 0;
    std::future<bool> right;  // as the CPU computes it
  };
  struct Seen {  // what jurors exchange of a call, by batch
    std::array<TileRecord, kMostBatches> digests;
    std::array<bool, kMostBatches> refuted;  // by the known answer
  };

  Batch& batch(int index) { return batches_[static_cast<std::size_t>(index)]; }
  int batches() const { return kSeeds * turns_; }
  int turns_in(double seconds) const;
  std::uint64_t seed_of(const Batch& batch) const;
  void work(int index, double until_s);
  ProductRates time(const std::function<bool(int batch)>& checks);
  void check_known_answer(int index, const ProductVerifier& verifier);
  std::uint64_t check_operands(const Batch& batch, std::vector<Mismatch>& found);
  void take_sample(int index);
  Seen seen() const;
  void investigate(int first, const MpiSession& jurors, std::vector<Mismatch>& found);

  ProductSettings settings_;
  ProductRig rig_;
  std::array<Batch, kMostBatches> batches_;  // the turns of a seed, then those of the next
  int turns_ = kLeastTurns;
  std::uint64_t calls_ = 0;
  Pace pace_;
  ProductTimer timer_;
  bool alone_;
  std::vector<Sample> samples_;
  std::map<int, std::int64_t> refuted_;  // by batch: a tile that is not what it must be
};

}  // namespace shakedown::node

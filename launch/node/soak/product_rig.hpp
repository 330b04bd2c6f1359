// One product on this rank's device with what checks it: used by the soak, its second looks and
// --replay alike.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/device.hpp"
#include "common/mpi_session.hpp"
#include "common/program.hpp"
#include "launch/node/compute/product.hpp"
#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node {

/// An operand in memory that is not what was written.
struct WrongOperand {
  int matrix = 0;                         // 0: A, 1: B
  std::uint64_t count = 0;                // elements
  std::uint64_t index = 0;                // of the first one, in memory
  std::uint64_t expected = 0, found = 0;  // its bits
};

class ProductRig {
 public:
  /// Room for the records of this many batches. `fault`: product, hash, memory or slow, injected
  /// here.
  ProductRig(const ProductSpec& spec, Device& device, const std::string& algorithm, int batches,
             std::optional<FaultKind> fault = std::nullopt);

  const ProductSpec& spec() const { return product_->spec(); }
  std::string algorithm() const { return product_->algorithm(); }
  const TileGrid& grid() const { return grid_; }
  Product& product() { return *product_; }
  Stream& stream() { return *stream_; }
  Device& device() { return device_; }

  /// From now on this fault.
  void inject(std::optional<FaultKind> fault) { fault_ = fault; }
  void fill(const Draw& draw);
  const Draw& draw() const { return product_->draw(); }
  const Turn& turn() const { return product_->turn(); }
  /// Enqueues one product.
  void run();
  /// The same, and the hashes of its tiles into the batch's records; `product` is 0 for the first.
  void run_checked(int batch, std::uint32_t product);
  /// Recomputes A and B, and compares each element in memory. Waits for the stream.
  std::optional<WrongOperand> check_operands();

  /// Wait for the stream. Tiles are numbered as before the turn, and so are their elements.
  std::vector<TileRecord> records(int batch);
  TileRecord record(int batch, std::int64_t tile);
  std::vector<std::byte> tile_bytes(std::int64_t tile) {
    return read_tile(device_, product_->c(), grid_, turn(), tile, *stream_);
  }

 private:
  TileRecord* records_of(int batch) const;

  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Product> product_;
  std::unique_ptr<TileHasher> hasher_;
  TileGrid grid_;
  Buffer records_, keys_, wrong_;
  std::optional<FaultKind> fault_;
};

/// What products are made with.
struct AlgorithmChoice {
  std::string name;   // Product::algorithm()
  bool turns = true;  // its products are the same to the bit in every turn
};

/// Whether the tiles of two products of one turn and of two of another are alike, but for few. An
/// algorithm that splits k by the place of a tile (stream-K) sums most of them in another order; a
/// part that is broken has not most of them, or is unsteady.
bool keeps_bits(std::span<const TileRecord> turn, std::span<const TileRecord> other);

/// The library's first algorithm with the same bits in every turn; its first where none has them.
/// Found by the first juror: with the same one the same bits are expected. Collective.
AlgorithmChoice choose_algorithm(const ProductSpec& spec, Device& device, const MpiSession& jurors);

}  // namespace shakedown::node

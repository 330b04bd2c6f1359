// One product on this rank's device with what checks it: used by the soak, its second looks and
// --replay alike.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/device.hpp"
#include "common/fault.hpp"
#include "launch/node/compute/product.hpp"
#include "launch/node/soak/host_tile.hpp"
#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node {

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

}  // namespace shakedown::node

#include "launch/node/soak/product_rig.hpp"

#include <chrono>
#include <thread>

#include "common/error.hpp"

namespace shakedown::node {

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

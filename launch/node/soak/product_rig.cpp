#include "launch/node/soak/product_rig.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "common/error.hpp"
#include "launch/node/compute/kernels.hpp"

namespace shakedown::node {

ProductRig::ProductRig(const ProductSpec& spec, Device& device, const std::string& algorithm,
                       int batches, std::optional<FaultKind> fault)
    : device_(device),
      stream_(device.make_stream()),
      product_(make_product(spec, device, *stream_, algorithm)),
      hasher_(make_tile_hasher(device.kind())),
      grid_(grid_of(spec)),
      records_(device, static_cast<std::size_t>(batches * grid_.tiles()) * sizeof(TileRecord)),
      keys_(device, static_cast<std::size_t>(grid_.tile_bytes())),
      wrong_(device, 2 * sizeof(WordErrors)),
      fault_(fault) {}

TileRecord* ProductRig::records_of(int batch) const {
  return static_cast<TileRecord*>(records_.data()) + batch * grid_.tiles();
}

void ProductRig::fill(const Draw& draw) {
  hasher_->make_keys(draw.seed, keys_.view(DataType::uint64), *stream_);
  product_->fill(draw, *stream_);
}

void ProductRig::run() {
  product_->run(*stream_);
  if (fault_ == FaultKind::product) {  // of an element in the middle of the launch's last tile
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
  hasher_->hash(product_->c(), grid_, turn(), keys_.view(DataType::uint64), product, records,
                *stream_);
  if (fault_ == FaultKind::hash && product == 0)
    flip_bit(device_, *stream_, View(&records->first, 1, DataType::uint64, Place::device), 0, 32);
}

std::optional<WrongOperand> ProductRig::check_operands() {
  if (fault_ == FaultKind::memory) flip_bit(device_, *stream_, product_->b(), 1000, 5);
  upload<WordErrors>(device_, *stream_, wrong_.data(), std::vector<WordErrors>(2));
  product_->compare(static_cast<WordErrors*>(wrong_.data()), *stream_);
  const auto wrong = download<WordErrors>(device_, *stream_, wrong_.data(), 2);
  const int matrix = wrong[0].count > 0 ? 0 : 1;
  const WordErrors& errors = wrong[static_cast<std::size_t>(matrix)];
  if (errors.count == 0) return std::nullopt;
  const View operand = matrix == 0 ? product_->a() : product_->b();
  const std::size_t width = size_of(operand.type);
  const auto bytes = download<std::byte>(
      device_, *stream_, static_cast<const std::byte*>(operand.data) + errors.first * width, width);
  const auto columns = static_cast<std::uint64_t>(spec().k);
  const LineOrder& order = matrix == 0 ? turn().rows : turn().columns;
  const auto row =
      static_cast<std::uint64_t>(order.original(static_cast<std::int64_t>(errors.first / columns)));
  return WrongOperand{
      matrix, errors.count, errors.first,
      operand_bits(product_->rule_of(matrix), row * columns + errors.first % columns),
      element_bits(bytes, 0, static_cast<int>(width))};
}

std::vector<TileRecord> ProductRig::records(int batch) {
  return download<TileRecord>(device_, *stream_, records_of(batch),
                              static_cast<std::size_t>(grid_.tiles()));
}

TileRecord ProductRig::record(int batch, std::int64_t tile) {
  return download<TileRecord>(device_, *stream_, records_of(batch) + tile, 1).front();
}

bool keeps_bits(std::span<const TileRecord> turn, std::span<const TileRecord> other) {
  std::size_t moved = 0;
  for (std::size_t tile = 0; tile < turn.size(); ++tile) {
    if (turn[tile].differing > 0 || other[tile].differing > 0) return true;
    if (turn[tile].first != other[tile].first) ++moved;
  }
  return 2 * moved <= turn.size();
}

namespace {

bool keeps_bits(ProductRig& rig) {
  const auto records = [&](std::uint32_t turn) {
    rig.fill({Operands::full_entropy, 1, turn});
    for (const std::uint32_t product : {0U, 1U}) rig.run_checked(0, product);
    return rig.records(0);
  };
  return keeps_bits(records(0), records(1));
}

AlgorithmChoice choose_here(const ProductSpec& spec, Device& device) {
  std::vector<std::string> algorithms;
  {
    ProductRig first(spec, device, "", 1);
    if (keeps_bits(first)) return {first.algorithm()};
    algorithms = first.product().algorithms();
  }
  for (const std::string& name : algorithms) try {
      ProductRig other(spec, device, name, 1);
      if (keeps_bits(other)) return {name};
    } catch (const InternalError&) {  // the library offers it, and does not run it
    }
  return {make_product(spec, device, *device.make_stream())->algorithm(), false};
}

}  // namespace

AlgorithmChoice choose_algorithm(const ProductSpec& spec, Device& device,
                                 const MpiSession& jurors) {
  AlgorithmChoice mine;
  if (jurors.is_root()) mine = choose_here(spec, device);
  return {jurors.all_gather(mine.name).front(),
          jurors.all_gather(mine.turns ? 1.0 : 0.0).front() > 0};
}

}  // namespace shakedown::node

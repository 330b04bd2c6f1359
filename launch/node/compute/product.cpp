#include "launch/node/compute/product.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <span>

#include "common/ensure.hpp"
#include "common/hash.hpp"
#include "common/mpi_session.hpp"
#include "common/usage_error.hpp"
#include "launch/node/compute/kernels.hpp"

namespace shakedown::node {
namespace {

struct Types {
  const char* name;
  DataType operand, result;
  std::int64_t exact_k;  // for integers
  bool soaked = true;
  int scale_block = 0;
};

const Types& types_of(ProductType type) {
  constexpr std::int64_t kAny = 65536;
  static constexpr Types kTypes[] = {
      {"fp64", DataType::float64, DataType::float64, kAny},
      {"fp32", DataType::float32, DataType::float32, kAny},
      {"tf32", DataType::float32, DataType::float32, kAny},
      {"fp16", DataType::float16, DataType::float16, kAny},
      {"bf16", DataType::bfloat16, DataType::bfloat16, 8192},
      {"fp8", DataType::float8_e4m3, DataType::bfloat16, 16384},
      {"int8", DataType::int8, DataType::int32, kAny},
      {"mxfp8", DataType::float8_e4m3, DataType::bfloat16, 16384, false, 32},
      {"nvfp4", DataType::uint8, DataType::bfloat16, 16384, false, 16}};
  return kTypes[static_cast<int>(type)];
}

Buffer buffer_of(Device& device, DataType type, std::int64_t elements) {
  return Buffer(device, static_cast<std::size_t>(elements) * size_of(type));
}

/// Of a row of A or B in memory.
std::int64_t words_of(const ProductSpec& spec) {
  return spec.type == ProductType::nvfp4 ? spec.k / 2 : spec.k;
}

/// Fisher & Yates.
void shuffle(std::span<std::uint8_t> order, Random& random) {
  std::iota(order.begin(), order.end(), std::uint8_t{0});
  for (std::size_t left = order.size(); left > 1; --left)
    std::swap(order[left - 1], order[random.below(left)]);
}

LineOrder draw_order(std::int64_t lines, std::size_t group, Random& random) {
  ENSURE(lines % kTileEdge == 0 && lines <= kMostTiles * kTileEdge, "whole tiles, not too many");
  LineOrder order;
  order.moved = true;
  shuffle(std::span(order.tiles).first(static_cast<std::size_t>(lines / kTileEdge)), random);
  std::array<std::uint8_t, kTileEdge> groups{};
  shuffle(std::span(groups).first(kTileEdge / group), random);
  for (std::size_t place = 0; place < kTileEdge; ++place)
    order.lines[place] = static_cast<std::uint8_t>(groups[place / group] * group + place % group);
  return order;
}

}  // namespace

std::vector<ProductType> all_product_types() {
  return {ProductType::fp64, ProductType::fp32,  ProductType::tf32,
          ProductType::fp16, ProductType::bf16,  ProductType::fp8,
          ProductType::int8, ProductType::mxfp8, ProductType::nvfp4};
}
std::vector<ProductType> soaked(std::vector<ProductType> types) {
  std::erase_if(types, [](ProductType type) { return !types_of(type).soaked; });
  return types;
}
std::vector<Operands> all_operands() {
  return {Operands::integers, Operands::full_entropy, Operands::low_toggle, Operands::high_toggle,
          Operands::carries,  Operands::denormals,    Operands::ties};
}
const char* name_of(ProductType type) { return types_of(type).name; }
const char* name_of(Operands operands) {
  static constexpr const char* kNames[] = {"integers", "full_entropy", "low_toggle", "high_toggle",
                                           "carries",  "denormals",    "ties"};
  return kNames[static_cast<int>(operands)];
}
DataType operand_type(ProductType type) { return types_of(type).operand; }
DataType result_type(ProductType type) { return types_of(type).result; }
number_format::Format operand_format(ProductType type) {
  constexpr number_format::Format kE2m1{4, 1, 2, true};
  return type == ProductType::nvfp4 ? kE2m1 : number_format::format_of(operand_type(type));
}
int scale_block(ProductType type) { return types_of(type).scale_block; }

std::size_t scale_bytes(const ProductSpec& spec) {
  const auto rounded_up = [](std::int64_t x, std::int64_t unit) {
    return (x + unit - 1) / unit * unit;
  };
  const int block = scale_block(spec.type);
  if (block == 0) return 0;
  const std::int64_t along_k = rounded_up(spec.k, block) / block;
  return static_cast<std::size_t>(rounded_up(std::max(spec.m, spec.n), 128) *
                                  rounded_up(along_k, 4));
}

double operand_value(ProductType type, Operands operands, std::uint64_t seed, int matrix,
                     std::uint64_t index) {
  const OperandRule rule = operand_rule(type, operands, seed, matrix);
  return number_format::decode(rule.format, operand_bits(rule, index));
}

Product::Product(const ProductSpec& spec, Device& device)
    : spec_(spec),
      kernels_(make_compute_kernels(device.kind())),
      a_(buffer_of(device, operand_type(spec.type), spec.m * words_of(spec))),
      b_(buffer_of(device, operand_type(spec.type), spec.n * words_of(spec))),
      c_(buffer_of(device, result_type(spec.type), (spec.m + kTileEdge) * spec.n)) {}

void Product::fill(const Draw& draw, Stream& stream) {
  if (draw.operands == Operands::integers) check_exact(spec_);
  draw_ = draw;
  turn_ = turn_of(spec_, draw.seed, draw.turn);
  kernels_->fill_operand(a(), words_of(spec_), rule_of(0), turn_.rows, stream);
  kernels_->fill_operand(b(), words_of(spec_), rule_of(1), turn_.columns, stream);
}

void Product::compare(WordErrors* wrong, Stream& stream) {
  kernels_->compare_operand(a(), words_of(spec_), rule_of(0), turn_.rows, wrong, stream);
  kernels_->compare_operand(b(), words_of(spec_), rule_of(1), turn_.columns, wrong + 1, stream);
}

OperandRule Product::rule_of(int matrix) const {
  return operand_rule(spec_.type, draw_.operands, draw_.seed, matrix);
}

void Product::move_result(std::int64_t rows) {
  ENSURE(rows >= 0 && rows <= kTileEdge, "C is in its buffer");
  c_row_ = rows;
}

View Product::c() const {
  const DataType type = result_type(spec_.type);
  const auto begin = static_cast<std::size_t>(c_row_ * spec_.n) * size_of(type);
  return {static_cast<std::byte*>(c_.data()) + begin, static_cast<std::size_t>(spec_.m * spec_.n),
          type, c_.place()};
}

std::int64_t LineOrder::place_of_tile(std::int64_t tile) const {
  return moved ? std::find(tiles, tiles + kMostTiles, tile) - tiles : tile;
}

Turn turn_of(const ProductSpec& spec, std::uint64_t seed, std::uint32_t number) {
  if (number == 0) return {};
  Random random(derive_seed(seed, number));
  Turn turn;
  turn.rows = draw_order(spec.m, 1, random);
  turn.columns = draw_order(spec.n, 16 / size_of(result_type(spec.type)), random);
  return turn;
}

double flop_of(const ProductSpec& spec) {
  return 2.0 * static_cast<double>(spec.m) * static_cast<double>(spec.n) *
         static_cast<double>(spec.k);
}

std::string without_library(const std::string& algorithm) {
  const std::size_t version = algorithm.find(' ');  // after the name
  const std::size_t choice = algorithm.find(' ', version + 1);
  return choice == std::string::npos ? algorithm : algorithm.substr(choice + 1);
}

ProductSpec whole_waves(ProductType type, int sms, const std::string& compute_capability) {
  constexpr std::int64_t kEdge = 8192;
  constexpr std::string_view kFastFp64[] = {"6.0", "7.0", "8.0", "9.0", "10.0"};
  if (type == ProductType::fp64 &&
      std::ranges::find(kFastFp64, compute_capability) == std::end(kFastFp64))
    return {type, kEdge / 4, kEdge / 4, kEdge / 4};
  ProductSpec spec{type, kEdge, kEdge, kEdge};
  if (type == ProductType::int8) return spec;
  /// The multiple of `unit` that is nearest to kEdge and gives whole waves.
  const auto nearest = [&](std::int64_t unit, std::int64_t across) {
    const std::int64_t step = unit * (sms / std::gcd(std::int64_t{sms}, across));
    return std::max<std::int64_t>(1, (kEdge + step / 2) / step) * step;
  };
  std::int64_t edge = nearest(256, kEdge / 128);  // in tiles of either orientation
  if (edge > kEdge * 3 / 2) edge = nearest(128, kEdge / 256);
  (type == ProductType::fp8 ? spec.m : spec.n) = edge;
  return spec;
}

void check_exact(const ProductSpec& spec) {
  const std::int64_t most = types_of(spec.type).exact_k;
  if (spec.k % 32 != 0 || spec.k > most)
    throw UsageError(
        fmt::format("{} products of integers with k = {}: exact only for multiples of 32 up to {}",
                    name_of(spec.type), spec.k, most));
}

std::vector<ProductType> product_types(const Device& device) {
  return device.kind() == BackendKind::gpu ? gpu::product_types() : cpu::product_types();
}

std::unique_ptr<Product> make_product(const ProductSpec& spec, Device& device, Stream& stream,
                                      const std::string& algorithm) {
  return device.kind() == BackendKind::gpu ? gpu::make_product(spec, device, stream, algorithm)
                                           : cpu::make_product(spec, device, stream, algorithm);
}

TypeChoice choose_types(const std::vector<ProductType>& types,
                        const std::vector<std::string>& requested,
                        const std::vector<std::vector<ProductType>>& by_rank,
                        const std::string& option) {
  const auto lists = [](const auto& list, const auto& value) {
    return std::ranges::find(list, value) != list.end();
  };
  const bool all = requested.empty() || lists(requested, "all") || requested.size() == types.size();
  TypeChoice choice;
  std::vector<std::string> left_out;
  for (const ProductType type : types) {
    if (!all && !lists(requested, name_of(type))) continue;
    const auto lacking = std::ranges::find_if(
        by_rank, [&](const std::vector<ProductType>& here) { return !lists(here, type); });
    const auto rank = lacking - by_rank.begin();
    if (lacking == by_rank.end()) {
      choice.types.push_back(type);
    } else if (all) {
      left_out.push_back(fmt::format("{} (rank {})", name_of(type), rank));
    } else {
      std::vector<std::string> has;
      for (const ProductType other : *lacking) has.emplace_back(name_of(other));
      throw UsageError(fmt::format("{} {}: the device of rank {} has only {}", option,
                                   name_of(type), rank, fmt::join(has, ", ")));
    }
  }
  if (!left_out.empty())
    choice.remark =
        fmt::format("types left out, as not every device has them: {}", fmt::join(left_out, ", "));
  return choice;
}

TypeChoice choose_types(const std::vector<ProductType>& types,
                        const std::vector<std::string>& requested, const Device& device,
                        const MpiSession& session, const std::string& option) {
  double mine = 0;  // a bit per type
  for (const ProductType type : product_types(device)) mine += 1 << static_cast<int>(type);
  std::vector<std::vector<ProductType>> by_rank;
  for (const double bits : session.all_gather(mine)) {
    by_rank.emplace_back();
    for (const ProductType type : all_product_types())
      if ((static_cast<unsigned>(bits) >> static_cast<int>(type) & 1U) != 0)
        by_rank.back().push_back(type);
  }
  return choose_types(types, requested, by_rank, option);
}

}  // namespace shakedown::node

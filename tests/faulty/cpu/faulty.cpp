// libfaulty_cpu.so, preloaded: oneDNN's matrix products, and copies of 1 MiB or more, with the
// faults of FAULTY_MODEL. What a GPU has in hardware is counted: block b of a product runs on SM b
// % 132.
#include <dlfcn.h>
#include <dnnl.h>

#include <cstddef>
#include <mutex>
#include <optional>

#include "tests/faulty/model.hpp"

namespace shakedown::faulty {
namespace {

constexpr int kSms = 132;  // of an H100
constexpr std::size_t kCopiedBytes = std::size_t{1} << 20;

struct Type {
  dnnl_data_type_t dnnl;
  DataType type;
  unsigned bit;  // of ProductFault::types; 0: no operand's
};
constexpr Type kKnown[] = {{dnnl_f32, DataType::float32, 1U << 1},
                           {dnnl_f16, DataType::float16, 1U << 3},
                           {dnnl_bf16, DataType::bfloat16, 1U << 4},
                           {dnnl_s8, DataType::int8, 1U << 6},
                           {dnnl_s32, DataType::int32, 0}};

struct Plain {  // a matrix
  std::byte* data;
  dnnl_dim_t rows, columns, row_stride, column_stride;
  Type type;

  std::size_t element_bytes() const {
    return static_cast<std::size_t>(number_format::format_of(type.type).width) / 8;
  }
  std::size_t bytes() const { return static_cast<std::size_t>(rows * columns) * element_bytes(); }
};

/// None where it is no matrix of a known type with plain strides.
std::optional<Plain> plain_of(dnnl_memory_t memory) {
  Plain plain{};
  void* data = nullptr;
#if DNNL_VERSION_MAJOR >= 3
  const_dnnl_memory_desc_t description = nullptr;
  const dnnl_dims_t *dims = nullptr, *strides = nullptr;
  int dimensions = 0, blocks = 0;
  dnnl_data_type_t type{};
  if (dnnl_memory_get_memory_desc(memory, &description) != dnnl_success ||
      dnnl_memory_desc_query(description, dnnl_query_ndims_s32, &dimensions) != dnnl_success ||
      dnnl_memory_desc_query(description, dnnl_query_inner_nblks_s32, &blocks) != dnnl_success ||
      dnnl_memory_desc_query(description, dnnl_query_data_type, &type) != dnnl_success ||
      dnnl_memory_desc_query(description, dnnl_query_dims, &dims) != dnnl_success ||
      dnnl_memory_desc_query(description, dnnl_query_strides, &strides) != dnnl_success ||
      dimensions != 2 || blocks != 0)
    return std::nullopt;
  plain = {nullptr, (*dims)[0], (*dims)[1], (*strides)[0], (*strides)[1], {}};
#else
  const dnnl_memory_desc_t* description = nullptr;
  if (dnnl_memory_get_memory_desc(memory, &description) != dnnl_success ||
      description->ndims != 2 || description->format_kind != dnnl_blocked ||
      description->format_desc.blocking.inner_nblks != 0)
    return std::nullopt;
  const auto& strides = description->format_desc.blocking.strides;
  plain = {nullptr, description->dims[0], description->dims[1], strides[0], strides[1], {}};
  const dnnl_data_type_t type = description->data_type;
#endif
  for (const Type& known : kKnown) {
    if (known.dnnl != type || dnnl_memory_get_data_handle(memory, &data) != dnnl_success) continue;
    plain.type = known;
    plain.data = static_cast<std::byte*>(data);
    return plain;
  }
  return std::nullopt;
}

/// Of float32, [rows, columns] or stored as its transpose.
Plain plain_of(const float* data, dnnl_dim_t rows, dnnl_dim_t columns, dnnl_dim_t ld, char stored) {
  const bool transposed = stored == 'T' || stored == 't';
  auto* const bytes = reinterpret_cast<std::byte*>(const_cast<float*>(data));
  return {bytes, rows, columns, transposed ? 1 : ld, transposed ? ld : 1, kKnown[0]};
}

bool is_matmul(const_dnnl_primitive_t primitive) {
  const_dnnl_primitive_desc_t description = nullptr;
  dnnl_primitive_kind_t kind = dnnl_undefined_primitive;
  return dnnl_primitive_get_primitive_desc(primitive, &description) == dnnl_success &&
         dnnl_primitive_desc_query(description, dnnl_query_primitive_kind, 0, &kind) ==
             dnnl_success &&
         kind == dnnl_matmul;
}

struct Multiplication {
  Plain a, b, c;
};

/// None where it is no product of two matrices.
std::optional<Multiplication> matmul_of(const_dnnl_primitive_t primitive, int count,
                                        const dnnl_exec_arg_t* arguments) {
  if (!is_matmul(primitive)) return std::nullopt;
  std::optional<Plain> a, b, c;
  for (int i = 0; i < count; ++i) {
    if (arguments[i].arg == DNNL_ARG_SRC) a = plain_of(arguments[i].memory);
    if (arguments[i].arg == DNNL_ARG_WEIGHTS) b = plain_of(arguments[i].memory);
    if (arguments[i].arg == DNNL_ARG_DST) c = plain_of(arguments[i].memory);
  }
  if (!a || !b || !c || a->type.bit == 0) return std::nullopt;
  return Multiplication{*a, *b, *c};
}

class Faults {
 public:
  Faults() : settings_(read_settings({"product", "memory", "copy"}, 128, 128)) {}

  void before(const Multiplication& product) {
    const std::lock_guard lock(mutex_);
    flips_before_ = counts_.flips;
    for (const CellFault& cell : settings_.model.cells) force(cell, product);
  }

  void after(const Multiplication& product) {
    begin_log();
    const std::lock_guard lock(mutex_);
    for (const ProductFault& fault : settings_.model.products)
      if ((fault.types & product.a.type.bit) != 0 && fires(fault, counts_.products))
        apply(fault, product);
    for (const CellFault& cell : settings_.model.cells) force(cell, product);
    if (counts_.flips > flips_before_) ++counts_.wrong_products;
    ++counts_.products;
  }

  void copied(void* to, std::size_t bytes) {
    if (settings_.model.copies.empty()) return;
    begin_log();
    const std::lock_guard lock(mutex_);
    for (const CopyFault& fault : settings_.model.copies) {
      const std::size_t words = bytes / sizeof(std::uint64_t);
      const std::uint64_t count =
          happen(settings_.model.seed, counts_.copies, static_cast<double>(words), fault.rate);
      for (std::uint64_t i = 0; i < count; ++i) {
        const std::uint64_t word =
            number_format::hash(settings_.model.seed ^ counts_.copies, i) % words;
        auto* const at = static_cast<std::byte*>(to) + word * sizeof(std::uint64_t);
        const std::uint64_t wrong = load_bits(at, sizeof(wrong)) ^ fault.flip;
        std::memcpy(at, &wrong, sizeof(wrong));
      }
      counts_.flips += count;
    }
    ++counts_.copies;
  }

 private:
  void begin_log() {
    if (settings_.here)
      keep_log(settings_.log, settings_.model.name, [this] {
        const std::lock_guard lock(mutex_);
        return counts_;
      });
  }

  void apply(const ProductFault& fault, const Multiplication& product) {
    const Plain &a = product.a, &b = product.b, &c = product.c;
    const Result result{
        c.data,
        c.rows,
        c.columns,
        c.row_stride,
        c.column_stride,
        c.type.type,
        {a.data, a.row_stride, a.column_stride, a.columns, static_cast<int>(a.element_bytes())},
        {b.data, b.column_stride, b.row_stride, b.rows, static_cast<int>(b.element_bytes())}};
    const std::int64_t blocks = result.blocks(fault);
    const int sm = sm_of(fault, blocks, kSms);
    const std::int64_t shift = shift_of(fault, counts_.products, kSms);
    for (std::int64_t block = 0; block < blocks; ++block) {
      const int on = static_cast<int>((block + shift) % kSms);
      if (sm == kAny || sm == on) apply(fault, result, block, on);
    }
  }

  void apply(const ProductFault& fault, const Result& c, std::int64_t block, int sm) {
    const std::int64_t top = block / c.across(fault) * fault.block_rows;
    const std::int64_t left = block % c.across(fault) * fault.block_columns;
    for (std::int64_t row = top; row < top + fault.block_rows && row < c.rows; ++row) {
      if (fault.warp != kAny && fault.warp != warp_of(row, fault)) continue;
      for (std::int64_t column = left; column < left + fault.block_columns && column < c.columns;
           ++column) {
        if (!in_unit(fault, row, column)) continue;
        const Strike made = strike(fault, c, row, column);
        if (!made.changed) continue;
        ++counts_.flips;
        if (!counts_.first.is_set())
          counts_.first = {counts_.products, made.right, made.wrong,          row,
                           column,           sm,         warp_of(row, fault), lane_of(row, column)};
      }
    }
  }

  /// The memory is A, B and C, in this order.
  void force(const CellFault& cell, const Multiplication& product) {
    const Plain* const parts[] = {&product.a, &product.b, &product.c};
    std::size_t all = 0;
    for (const Plain* part : parts) all += part->bytes();
    auto at = static_cast<std::size_t>(cell.address * static_cast<double>(all - 1));
    for (const Plain* part : parts) {
      if (at >= part->bytes()) {
        at -= part->bytes();
        continue;
      }
      const auto bit = std::byte{1} << cell.bit;
      const std::byte forced = cell.stuck != 0 ? part->data[at] | bit : part->data[at] & ~bit;
      if (forced != part->data[at]) ++counts_.flips;
      part->data[at] = forced;
      return;
    }
  }

  Settings settings_;
  std::mutex mutex_;
  Counts counts_{};
  std::uint64_t flips_before_ = 0;  // the product at work
};

Faults* faults = nullptr;  // none: the loader has not come so far

__attribute__((constructor)) void begin() { faults = new Faults; }

}  // namespace
}  // namespace shakedown::faulty

// In their places.

extern "C" {

dnnl_status_t dnnl_primitive_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream,
                                     int nargs, const dnnl_exec_arg_t* args) {
  using namespace shakedown::faulty;
  static const auto real = reinterpret_cast<decltype(&dnnl_primitive_execute)>(
      dlsym(RTLD_NEXT, "dnnl_primitive_execute"));
  const auto product = matmul_of(primitive, nargs, args);
  if (product) faults->before(*product);
  const dnnl_status_t status = real(primitive, stream, nargs, args);
  if (product && status == dnnl_success && dnnl_stream_wait(stream) == dnnl_success)
    faults->after(*product);
  return status;
}

dnnl_status_t dnnl_sgemm(char transa, char transb, dnnl_dim_t M, dnnl_dim_t N, dnnl_dim_t K,
                         float alpha, const float* A, dnnl_dim_t lda, const float* B,
                         dnnl_dim_t ldb, float beta, float* C, dnnl_dim_t ldc) {
  using namespace shakedown::faulty;
  static const auto real = reinterpret_cast<decltype(&dnnl_sgemm)>(dlsym(RTLD_NEXT, "dnnl_sgemm"));
  const Multiplication product{plain_of(A, M, K, lda, transa), plain_of(B, K, N, ldb, transb),
                               plain_of(C, M, N, ldc, 'N')};
  faults->before(product);
  const dnnl_status_t status = real(transa, transb, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
  if (status == dnnl_success) faults->after(product);
  return status;
}

void* memcpy(void* to, const void* from, std::size_t bytes) {
  using namespace shakedown::faulty;
  memmove(to, from, bytes);
  if (bytes >= kCopiedBytes && faults != nullptr) faults->copied(to, bytes);
  return to;
}
}

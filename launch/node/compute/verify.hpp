// Whether a product is right: of integers exactly, by the sums of the rows and columns of C (Huang
// & Abraham 1984), of full-entropy operands by some elements that the host recomputes; and whether
// words of memory are.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launch/node/compute/kernels.hpp"
#include "launch/node/compute/product.hpp"

namespace shakedown::node {

/// A row or column of C whose sum is not the expected one.
struct WrongSum {
  std::int64_t index = 0;
  std::int64_t difference = 0;  // found - expected
};
struct WrongSums {
  std::vector<WrongSum> rows, columns;
  bool none() const { return rows.empty() && columns.empty(); }
};

/// "element (5, 17) of 96 x 64 differs by 4", or the ranges of rows and columns; empty: none.
std::string text_of(const WrongSums& wrong, const ProductSpec& spec);

/// What C of integers must sum to: sum_j C[i, j] = sum_k A[i, k] (sum_j B[j, k]), and so for
/// columns. The expected sums come from the operands' formula by kernels of our own, not from
/// memory: an operand that was written or kept wrong is found too. Every change of C is found that
/// alters a row's or a column's sum: each single element's, and all but those that cancel in every
/// row and column. The sign of a zero does not count.
class ProductVerifier {
 public:
  /// Throws UsageError where C would not be exact.
  ProductVerifier(const ProductSpec& spec, std::uint64_t seed, Device& device, Stream& stream);

  /// Waits for the stream. C is of operands of integers of the same seed.
  WrongSums check(ConstView c, Stream& stream) const;

 private:
  std::vector<std::int64_t> sums(const Buffer& sums, std::int64_t count, Stream& stream) const;

  ProductSpec spec_;
  Device& device_;
  std::unique_ptr<ComputeKernels> kernels_;
  Buffer row_sums_, column_sums_;
  std::vector<std::int64_t> expected_rows_, expected_columns_;
};

/// The largest error of `samples` elements of C, others for each `choice`, as a share of the
/// standard deviation of C's elements; C is of full-entropy operands of `seed`. Waits for the
/// stream.
double sampled_error(Product& product, std::uint64_t seed, int samples, Device& device,
                     Stream& stream, std::uint64_t choice = 0);
/// The error that rounding may cause there.
double tolerance(ProductType type);

// Words of memory.

/// Of host memory, on all threads.

void write_on_host(View x, const Ramp& ramp);
WordErrors check_on_host(ConstView x, const Ramp& ramp);

/// What was wrong in pieces of one buffer; on the stream.
class WordChecker {
 public:
  WordChecker(Device& device, std::size_t pieces)
      : device_(device),
        kernels_(make_compute_kernels(device.kind())),
        wrong_(device, pieces * sizeof(WordErrors)) {}

  const ComputeKernels& kernels() const { return *kernels_; }
  /// Waits. Pieces of equal size; `expected`: of each.
  WordErrors check(ConstView x, std::size_t pieces,
                   const std::function<Ramp(std::uint64_t piece)>& expected, Stream& stream) const;
  WordErrors check(ConstView x, const Ramp& ramp, Stream& stream) const {
    return check(
        x, 1, [&](std::uint64_t) { return ramp; }, stream);
  }

 private:
  Device& device_;
  std::unique_ptr<ComputeKernels> kernels_;
  Buffer wrong_;
};

}  // namespace shakedown::node

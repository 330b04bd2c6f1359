// What each rank sends to each other one in all_to_all_v: nccl-tests' patterns.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace shakedown::collectives {

/// The variable's number from 0 to `most`, if it is set. Throws UsageError naming it.
std::optional<double> environment_number(const char* variable, double most);

/// A pattern by distance, or a file's matrix of bytes. Parts are whole 16 bytes, as in nccl-tests.
class Traffic {
 public:
  /// Of NCCL_TESTS_ALLTOALLV_SPREAD (0: equal parts, 1: a rank's part grows with its distance), or
  /// of NCCL_TESTS_ALLTOALLV_MATRIX_FILE times NCCL_TESTS_ALLTOALLV_MATRIX_SCALE. Read once. Throws
  /// UsageError naming the variable, and the file and row.
  static const Traffic& of_environment();
  explicit Traffic(double spread) : spread_(spread) {}
  /// Row i has the bytes that rank i sends to each rank. Throws UsageError naming `name`.
  Traffic(std::string name, const std::string& matrix, double scale);

  /// Elements of `width` bytes. `share`: of a rank's equal part, where there is no matrix.
  std::size_t elements(int from, int to, int ranks, std::size_t share, std::size_t width) const;
  enum Way { sent, received };
  /// What the rank that sends, or receives, the most does.
  std::size_t most(Way way, int ranks, std::size_t share, std::size_t width) const;

  /// "spread 1", or the matrix's name.
  std::string text() const;
  bool is_matrix() const { return !matrix_.empty(); }
  /// A matrix has rows for this many ranks, and is of one size that its sums fit into. Throws
  /// UsageError.
  void check(int ranks, std::size_t least_bytes, std::size_t most_bytes) const;

 private:
  double spread_ = 1;
  std::string name_;
  std::vector<std::vector<std::size_t>> matrix_;  // bytes
};

}  // namespace shakedown::collectives

#include "collectives/traffic.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "common/judge/strict_json.hpp"
#include "common/usage_error.hpp"

namespace shakedown::collectives {
namespace {

constexpr std::size_t kAligned = 16;  // bytes

Traffic read_environment() {
  const char* const kFile = "NCCL_TESTS_ALLTOALLV_MATRIX_FILE";
  const double spread = environment_number("NCCL_TESTS_ALLTOALLV_SPREAD", 1).value_or(1);
  const char* const path = std::getenv(kFile);
  const std::optional<double> scale = environment_number("NCCL_TESTS_ALLTOALLV_MATRIX_SCALE", 1e6);
  if (path == nullptr && scale)
    throw UsageError(
        fmt::format("NCCL_TESTS_ALLTOALLV_MATRIX_SCALE={:g}: needs {}", *scale, kFile));
  if (path == nullptr) return Traffic(spread);
  const std::string text =
      named_by(fmt::format("{}:", kFile).c_str(), [&] { return judge::text_of_file(path); });
  const std::string times = scale.value_or(1) == 1 ? "" : fmt::format(" times {:g}", *scale);
  return {fmt::format("{}={}{}", kFile, path, times), text, scale.value_or(1)};
}

}  // namespace

std::optional<double> environment_number(const char* variable, double most) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(value >= 0 && value <= most))
    throw UsageError(fmt::format("{}={}: must be a number from 0 to {:g}", variable, text, most));
  return value;
}

const Traffic& Traffic::of_environment() {
  static const Traffic traffic = read_environment();
  return traffic;
}

Traffic::Traffic(std::string name, const std::string& matrix, double scale)
    : name_(std::move(name)) {
  std::istringstream lines(matrix);
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::size_t> row;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      char* end = nullptr;
      const double bytes = scale * std::strtod(word.c_str(), &end);
      if (*end != '\0' || !(bytes >= 0 && bytes < 1e15))
        throw UsageError(fmt::format("{}: row {}: '{}': must be a number of bytes", name_,
                                     matrix_.size() + 1, word));
      row.push_back(static_cast<std::size_t>(bytes) / kAligned * kAligned);
    }
    if (!row.empty()) matrix_.push_back(std::move(row));
  }
  if (matrix_.empty()) throw UsageError(name_ + ": has no numbers");
  for (std::size_t row = 0; row < matrix_.size(); ++row)
    if (matrix_[row].size() != matrix_.size())
      throw UsageError(
          fmt::format("{}: row {} has {} numbers and there are {} rows: must be square", name_,
                      row + 1, matrix_[row].size(), matrix_.size()));
}

std::string Traffic::text() const {
  return is_matrix() ? name_ : fmt::format("spread {:g}", spread_);
}

std::size_t Traffic::elements(int from, int to, int ranks, std::size_t share,
                              std::size_t width) const {
  if (is_matrix())
    return matrix_[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)] / width;
  const double n = ranks;
  const double total = n * static_cast<double>(share * width);
  const double distance = (to - from + ranks) % ranks;
  const double by_distance = ranks == 1 ? total : distance * total / (n * (n - 1) / 2);
  const double bytes = (1 - spread_) * (total / n) + spread_ * by_distance;
  return static_cast<std::size_t>(bytes) / kAligned * kAligned / width;
}

std::size_t Traffic::most(Way way, int ranks, std::size_t share, std::size_t width) const {
  std::size_t most = 0;
  for (int rank = 0; rank < (is_matrix() ? ranks : 1); ++rank) {
    std::size_t sum = 0;
    for (int peer = 0; peer < ranks; ++peer)
      sum += way == sent ? elements(rank, peer, ranks, share, width)
                         : elements(peer, rank, ranks, share, width);
    most = std::max(most, sum);
  }
  return most;
}

void Traffic::check(int ranks, std::size_t least_bytes, std::size_t most_bytes) const {
  if (!is_matrix()) return;
  if (static_cast<std::size_t>(ranks) > matrix_.size())
    throw UsageError(
        fmt::format("{}: has {} rows, this job {} ranks", name_, matrix_.size(), ranks));
  if (least_bytes != most_bytes)
    throw UsageError(name_ + ": has the sizes: --min-bytes and --max-bytes must be equal");
  const std::size_t needed = std::max(most(sent, ranks, 0, 1), most(received, ranks, 0, 1));
  if (needed > most_bytes)
    throw UsageError(
        fmt::format("--max-bytes {}: must be at least {}, as {} has", most_bytes, needed, name_));
}

}  // namespace shakedown::collectives

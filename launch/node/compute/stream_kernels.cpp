#include "launch/node/compute/stream_kernels.hpp"

#include <algorithm>
#include <vector>

#include "common/ensure.hpp"

namespace shakedown::node {

void write_on_host(View x, const Ramp& ramp) {
  auto* const to = static_cast<std::uint64_t*>(x.data);
#pragma omp parallel for simd schedule(static)
  for (std::size_t i = 0; i < x.count; ++i) to[i] = ramp.word(i);
}

WordErrors check_on_host(ConstView x, const Ramp& ramp) {
  const auto* const from = static_cast<const std::uint64_t*>(x.data);
  unsigned long long count = 0;
  unsigned long long first = WordErrors().first;
#pragma omp parallel for schedule(static) reduction(+ : count) reduction(min : first)
  for (std::size_t i = 0; i < x.count; ++i) {
    if (from[i] == ramp.word(i)) continue;
    ++count;
    first = std::min<unsigned long long>(first, i);
  }
  return {count, first};
}

WordErrors WordChecker::check(ConstView x, std::size_t pieces,
                              const std::function<Ramp(std::uint64_t piece)>& expected,
                              Stream& stream) const {
  ENSURE(pieces > 0 && x.count % pieces == 0, "words outside of pieces are not checked");
  const std::vector<WordErrors> none(pieces);
  upload<WordErrors>(device_, stream, wrong_.data(), none);
  const std::size_t words = x.count / pieces;
  auto* const wrong = static_cast<WordErrors*>(wrong_.data());
  for (std::size_t piece = 0; piece < pieces; ++piece)
    kernels_->check(x.slice(piece * words, words), expected(piece), wrong + piece, stream);
  const auto found = download<WordErrors>(device_, stream, wrong, pieces);
  WordErrors all;
  for (std::size_t piece = pieces; piece-- > 0;) {
    all.count += found[piece].count;
    if (found[piece].count > 0) all.first = piece * words + found[piece].first;
  }
  return all;
}

}  // namespace shakedown::node

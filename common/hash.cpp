#include "common/hash.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "common/error.hpp"

namespace shakedown {
namespace {

template <class Word>
std::uint64_t sum_of(ConstView x) {
  const auto* words = static_cast<const Word*>(x.data);
  std::uint64_t sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum)
  for (std::size_t i = 0; i < x.count; ++i) sum += element_hash(i, words[i]);
  return sum;
}

}  // namespace

std::uint64_t bit_hash(ConstView x) {
  switch (size_of(x.type)) {
    case 1: return sum_of<std::uint8_t>(x);
    case 2: return sum_of<std::uint16_t>(x);
    case 4: return sum_of<std::uint32_t>(x);
    case 8: return sum_of<std::uint64_t>(x);
    default: throw InternalError(fmt::format("bit_hash of {}", name_of(x.type)));
  }
}

namespace {

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87U;
constexpr std::uint64_t kPrime2 = 0xC2B2AE3D27D4EB4FU;
constexpr std::uint64_t kPrime3 = 0x165667B19E3779F9U;
constexpr std::uint64_t kPrime4 = 0x85EBCA77C2B2AE63U;
constexpr std::uint64_t kPrime5 = 0x27D4EB2F165667C5U;

static_assert(std::endian::native == std::endian::little, "words are read as they lie in memory");

template <class Word>
std::uint64_t word_at(const std::uint8_t* from) {
  Word word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

std::uint64_t round(std::uint64_t sum, std::uint64_t word) {
  return std::rotl(sum + word * kPrime2, 31) * kPrime1;
}

std::uint64_t merged(std::uint64_t hash, std::uint64_t sum) {
  return (hash ^ round(0, sum)) * kPrime1 + kPrime4;
}

/// Of all whole stripes of 32 bytes, from which `at` moves on.
std::uint64_t stripes(const std::uint8_t*& at, const std::uint8_t* end) {
  std::uint64_t a = kPrime1 + kPrime2, b = kPrime2, c = 0, d = 0 - kPrime1;
  for (; end - at >= 32; at += 32) {
    a = round(a, word_at<std::uint64_t>(at));
    b = round(b, word_at<std::uint64_t>(at + 8));
    c = round(c, word_at<std::uint64_t>(at + 16));
    d = round(d, word_at<std::uint64_t>(at + 24));
  }
  const std::uint64_t hash =
      std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
  return merged(merged(merged(merged(hash, a), b), c), d);
}

}  // namespace

std::uint64_t xxh64(std::span<const std::uint8_t> bytes) {
  const std::uint8_t* at = bytes.data();
  const std::uint8_t* const end = at + bytes.size();
  std::uint64_t hash = bytes.size() >= 32 ? stripes(at, end) : kPrime5;
  hash += bytes.size();
  for (; end - at >= 8; at += 8)
    hash = std::rotl(hash ^ round(0, word_at<std::uint64_t>(at)), 27) * kPrime1 + kPrime4;
  for (; end - at >= 4; at += 4)
    hash = std::rotl(hash ^ (word_at<std::uint32_t>(at) * kPrime1), 23) * kPrime2 + kPrime3;
  for (; at < end; ++at) hash = std::rotl(hash ^ (*at * kPrime5), 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

}  // namespace shakedown

#include "training/data/image.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "common/error.hpp"
#include "training/data/codec.hpp"

namespace shakedown::training {
namespace {

constexpr std::array<std::uint8_t, 3> kJpegMagic{0xFF, 0xD8, 0xFF};
constexpr std::array<std::uint8_t, 8> kPngMagic{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};

template <std::size_t N>
bool starts_with(std::span<const std::uint8_t> file, const std::array<std::uint8_t, N>& magic) {
  return file.size() >= N && std::equal(magic.begin(), magic.end(), file.begin());
}

}  // namespace

Image blank_image(std::uint32_t width, std::uint32_t height) {
  constexpr std::uint32_t kMaxSide = 65535;
  constexpr std::uint64_t kMaxPixels = 1U << 27;  // 400 MB decoded
  if (width > kMaxSide || height > kMaxSide || std::uint64_t{width} * height > kMaxPixels)
    throw UsageError(
        fmt::format("{} x {} pixels are more than an image should have", width, height));
  Image image{.width = static_cast<int>(width), .height = static_cast<int>(height), .rgb = {}};
  image.rgb.resize(std::size_t{3} * width * height);
  return image;
}

Image decode_image(std::span<const std::uint8_t> file) {
  if (starts_with(file, kJpegMagic)) return decode_jpeg(file);
  if (starts_with(file, kPngMagic)) return decode_png(file);
  throw UsageError("its content is neither JPEG nor PNG");
}

}  // namespace shakedown::training

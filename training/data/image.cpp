#include "training/data/image.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

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

void Image::reshape(Size size, int row_pixels, int left) {
  size_ = size;
  first_ = std::size_t{4} * static_cast<std::size_t>(left);
  row_bytes_ = std::size_t{4} * static_cast<std::size_t>(row_pixels);
  const std::size_t bytes = row_bytes_ * static_cast<std::size_t>(size.height) + 4;
  if (bytes_.size() < bytes) bytes_.resize(bytes);
}

void Image::narrow(Region region) {
  first_ = offset(region.y) + std::size_t{4} * static_cast<std::size_t>(region.x);
  size_ = {region.width, region.height};
}

Size checked_size(std::uint32_t width, std::uint32_t height) {
  constexpr std::uint32_t kMaxSide = 65535;
  constexpr std::uint64_t kMaxPixels = 1U << 27;  // 512 MiB decoded
  if (width > kMaxSide || height > kMaxSide || std::uint64_t{width} * height > kMaxPixels)
    throw UsageError(
        fmt::format("{} x {} pixels are more than an image should have", width, height));
  return {static_cast<int>(width), static_cast<int>(height)};
}

ImageDecoder::ImageDecoder() : jpeg_(make_jpeg_decoder()), png_(make_png_decoder()) {}
ImageDecoder::~ImageDecoder() = default;

Size ImageDecoder::open(std::span<const std::uint8_t> file) {
  opened_ = nullptr;
  FormatDecoder* const format = starts_with(file, kJpegMagic)  ? jpeg_.get()
                                : starts_with(file, kPngMagic) ? png_.get()
                                                               : nullptr;
  if (format == nullptr) throw UsageError("its content is neither JPEG nor PNG");
  size_ = format->open(file);
  opened_ = format;
  return size_;
}

const Image& ImageDecoder::decode(Region region, Size enough) {
  ENSURE(opened_ != nullptr, "decode() without open()");
  ENSURE(region.x >= 0 && region.y >= 0 && region.width > 0 && region.height > 0 &&
             region.x + region.width <= size_.width && region.y + region.height <= size_.height,
         "a region outside the image");
  std::exchange(opened_, nullptr)->decode(region, enough, image_);
  return image_;
}

}  // namespace shakedown::training

#include "training/data/image.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/ensure.hpp"
#include "common/usage_error.hpp"

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

void ErrorTrap::refuse() const { throw UsageError(reason_); }

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

const Image& ImageDecoder::decode(Region region) {
  ENSURE(opened_ != nullptr, "decode() without open()");
  ENSURE(region.x >= 0 && region.y >= 0 && region.width > 0 && region.height > 0 &&
             region.x + region.width <= size_.width && region.y + region.height <= size_.height,
         "a region outside the image");
  std::exchange(opened_, nullptr)->decode(region, image_);
  return image_;
}

namespace {

using Bytes = std::span<const std::uint8_t>;

bool starts_with(Bytes bytes, std::string_view text) {
  return bytes.size() >= text.size() &&
         std::equal(text.begin(), text.end(), bytes.begin(),
                    [](char a, std::uint8_t b) { return static_cast<std::uint8_t>(a) == b; });
}

/// 0 past the end.
std::uint32_t number(Bytes bytes, std::size_t at, std::size_t count, bool big_endian) {
  if (at > bytes.size() || count > bytes.size() - at) return 0;
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < count; ++i)
    value = value << 8U | bytes[at + (big_endian ? i : count - 1 - i)];
  return value;
}

/// As a TIFF structure notes it, sensible or not; 0 where it has none.
std::uint32_t orientation_in(Bytes tiff) {
  constexpr std::uint32_t kMagic = 42, kOrientation = 0x0112, kShort = 3;
  constexpr std::size_t kEntryBytes = 12;  // tag 2, type 2, count 4, value 4
  const bool big_endian = starts_with(tiff, "MM");
  const auto at = [&](std::size_t where, std::size_t bytes) {
    return number(tiff, where, bytes, big_endian);
  };
  if (!(big_endian || starts_with(tiff, "II")) || at(2, 2) != kMagic) return 0;
  const std::size_t directory = at(4, 4);
  const std::size_t entries = at(directory, 2);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + i * kEntryBytes;
    if (at(entry, 2) == kOrientation && at(entry + 2, 2) == kShort) return at(entry + 8, 2);
  }
  return 0;
}

}  // namespace

int exif_orientation(Bytes file) {
  constexpr std::uint8_t kMark = 0xFF, kApp1 = 0xE1, kScan = 0xDA;
  constexpr std::string_view kExif{"Exif\0\0", 6};
  if (!starts_with(file, kJpegMagic)) return 1;
  for (std::size_t at = 2; at + 4 <= file.size() && file[at] == kMark && file[at + 1] != kScan;) {
    if (file[at + 1] == kMark) {  // padding
      ++at;
      continue;
    }
    const std::size_t length = std::size_t{file[at + 2]} << 8U | file[at + 3];  // with itself
    if (length < 2 || length > file.size() - at - 2) break;
    const Bytes content = file.subspan(at + 4, length - 2);
    if (file[at + 1] == kApp1 && starts_with(content, kExif)) {
      const std::uint32_t value = orientation_in(content.subspan(kExif.size()));
      return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
    }
    at += 2 + length;
  }
  return 1;
}

namespace {

/// How seen coordinates run in the stored image.
struct Turn {
  explicit Turn(int orientation)
      : transposed(orientation >= 5),
        from_right(orientation == 2 || orientation == 3 || orientation >= 7),
        from_below(orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7) {}
  bool transposed;
  bool from_right;
  bool from_below;
};

}  // namespace

Size upright(Size stored, int orientation) {
  return Turn(orientation).transposed ? Size{stored.height, stored.width} : stored;
}

Region as_stored(Region seen, Size stored, int orientation) {
  const Turn turn(orientation);
  if (turn.transposed) seen = {seen.y, seen.x, seen.height, seen.width};
  if (turn.from_right) seen.x = stored.width - seen.x - seen.width;
  if (turn.from_below) seen.y = stored.height - seen.y - seen.height;
  return seen;
}

void turn_upright(const Image& stored, int orientation, Image& seen) {
  const Size size = upright(stored.size(), orientation);
  seen.reshape(size, size.width, 0);
  for (int y = 0; y < size.height; ++y) {
    std::uint8_t* out = seen.row(y);
    for (int x = 0; x < size.width; ++x, out += 4) {
      const Region from = as_stored({x, y, 1, 1}, stored.size(), orientation);
      std::memcpy(out, stored.row(from.y) + std::ptrdiff_t{4} * from.x, 4);
    }
  }
}

}  // namespace shakedown::training

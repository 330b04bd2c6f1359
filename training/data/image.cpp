#include "training/data/image.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "common/error.hpp"

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

constexpr std::string_view kExif{"Exif\0\0", 6};
constexpr std::string_view kXmp{"http://ns.adobe.com/xap/1.0/\0", 29};  // of a JPEG segment
constexpr std::string_view kXmpText{"XML:com.adobe.xmp\0\0", 19};       // of PNG: not compressed

bool starts_with(Bytes bytes, std::string_view text) {
  return bytes.size() >= text.size() &&
         std::equal(text.begin(), text.end(), bytes.begin(),
                    [](char a, std::uint8_t b) { return static_cast<std::uint8_t>(a) == b; });
}

/// None past the end.
std::optional<std::uint32_t> number(Bytes bytes, std::size_t at, std::size_t count,
                                    bool big_endian) {
  if (at > bytes.size() || count > bytes.size() - at) return {};
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < count; ++i)
    value = value << 8U | bytes[at + (big_endian ? i : count - 1 - i)];
  return value;
}

/// What a file notes about an image, as far as its orientation may be in it.
struct Notes {
  std::vector<std::uint8_t> exif;  // a TIFF structure; several segments are one
  std::string_view xmp;
};

/// As it is noted, sensible or not; 0 where it is no integer. The first entry with data counts, and
/// of several numbers the first.
std::optional<std::uint32_t> orientation_in_exif(Bytes exif) {
  constexpr std::uint32_t kOrientation = 0x0112;
  constexpr std::size_t kEntryBytes = 12;  // tag 2, type 2, count 4, value or its place 4
  // of TIFF's types from BYTE = 1 to IFD = 13
  constexpr std::array<std::size_t, 14> kBytes{0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4};
  constexpr std::array<std::uint32_t, 6> kIntegers{3, 4, 6, 8, 9, 13};
  while (starts_with(exif, kExif)) exif = exif.subspan(kExif.size());
  const bool big_endian = starts_with(exif, "MM");
  const auto at = [&](std::size_t where, std::size_t bytes) {
    return number(exif, where, bytes, big_endian);
  };
  if (!(big_endian || starts_with(exif, "II")) || at(2, 2) != 42U) return {};
  const std::size_t directory = at(4, 4).value_or(0);
  const std::size_t entries = at(directory, 2).value_or(0);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + i * kEntryBytes;
    const auto place = at(entry + 8, 4);
    if (!place || at(entry, 2) != kOrientation) continue;
    const std::uint32_t type = *at(entry + 2, 2);
    const std::size_t unit = type < kBytes.size() ? kBytes[type] : 0;
    const std::size_t bytes = unit * *at(entry + 4, 4);
    const std::size_t begin = bytes <= 4 ? entry + 8 : *place;
    if (bytes == 0 || begin > exif.size() || bytes > exif.size() - begin) continue;
    const bool is_integer = std::count(kIntegers.begin(), kIntegers.end(), type) > 0;
    return is_integer ? at(begin, unit) : 0;
  }
  return {};
}

/// An attribute or an element.
std::optional<std::uint32_t> orientation_in_xmp(std::string_view xmp) {
  constexpr std::string_view kName = "tiff:Orientation";
  for (std::size_t at = xmp.find(kName); at != std::string_view::npos; at = xmp.find(kName, at)) {
    at += kName.size();
    for (const std::string_view before : {"=\"", ">"}) {
      const std::string_view rest = xmp.substr(at);
      if (rest.size() > before.size() && rest.starts_with(before) && rest[before.size()] >= '0' &&
          rest[before.size()] <= '9')
        return static_cast<std::uint32_t>(rest[before.size()] - '0');
    }
  }
  return {};
}

std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Notes notes_of_jpeg(Bytes file) {
  constexpr std::uint8_t kMark = 0xFF, kApp1 = 0xE1, kScan = 0xDA;
  Notes notes;
  for (std::size_t at = 2; at + 4 <= file.size() && file[at] == kMark;) {
    const std::uint8_t kind = file[at + 1];
    if (kind == kMark) {  // padding
      ++at;
      continue;
    }
    if (kind == kScan) break;
    const std::size_t length = std::size_t{file[at + 2]} << 8U | file[at + 3];  // with itself
    if (length < 2 || length > file.size() - at - 2) break;
    const Bytes content = file.subspan(at + 4, length - 2);
    if (kind == kApp1 && starts_with(content, kExif))
      notes.exif.insert(notes.exif.end(), content.begin() + kExif.size(), content.end());
    if (kind == kApp1 && starts_with(content, kXmp))
      notes.xmp = text_of(content.subspan(kXmp.size()));
    at += 2 + length;
  }
  return notes;
}

Notes notes_of_png(Bytes file) {
  constexpr std::size_t kFrame = 12;  // length 4, type 4; checksum 4
  Notes notes;
  for (std::size_t at = 8; at + kFrame <= file.size();) {
    const std::size_t length = *number(file, at, 4, true);
    if (length > file.size() - at - kFrame) break;
    const Bytes type = file.subspan(at + 4, 4), content = file.subspan(at + 8, length);
    if (starts_with(type, "eXIf")) notes.exif.assign(content.begin(), content.end());
    if (starts_with(type, "iTXt") && starts_with(content, kXmpText)) notes.xmp = text_of(content);
    if (starts_with(type, "IEND")) break;
    at += kFrame + length;
  }
  return notes;
}

}  // namespace

int exif_orientation(Bytes file) {
  Notes notes;
  if (starts_with(file, "\xFF\xD8")) notes = notes_of_jpeg(file);
  if (starts_with(file, "\x89PNG\r\n\x1A\n")) notes = notes_of_png(file);
  auto value = orientation_in_exif(notes.exif);
  if (!value) value = orientation_in_xmp(notes.xmp);
  return value && *value >= 1 && *value <= 8 ? static_cast<int>(*value) : 1;
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

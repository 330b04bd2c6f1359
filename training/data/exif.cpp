#include "training/data/exif.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

namespace shakedown::training {
namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::string_view kExif{"Exif\0\0", 6};

bool starts_with(Bytes bytes, std::string_view text) {
  return bytes.size() >= text.size() && std::equal(text.begin(), text.end(), bytes.begin());
}

/// The numbers of a TIFF structure, which says itself how they are stored.
class Tiff {
 public:
  explicit Tiff(Bytes bytes) : bytes_(bytes), big_endian_(starts_with(bytes, "MM")) {}

  /// None past the end.
  std::optional<std::uint32_t> number(std::size_t at, std::size_t bytes) const {
    if (at > bytes_.size() || bytes > bytes_.size() - at) return {};
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i)
      value = value << 8U | bytes_[at + (big_endian_ ? i : bytes - 1 - i)];
    return value;
  }

 private:
  Bytes bytes_;
  bool big_endian_;
};

int orientation_of(Bytes exif) {
  constexpr std::uint32_t kOrientation = 0x0112, kShort = 3;
  constexpr std::size_t kEntryBytes = 12;  // tag 2, type 2, count 4, value 4
  const Tiff tiff(exif);
  if (!starts_with(exif, "II") && !starts_with(exif, "MM")) return 1;
  if (tiff.number(2, 2) != 42U) return 1;
  const std::size_t directory = tiff.number(4, 4).value_or(0);
  const std::size_t entries = tiff.number(directory, 2).value_or(0);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + i * kEntryBytes;
    if (tiff.number(entry, 2) != kOrientation || tiff.number(entry + 2, 2) != kShort) continue;
    const std::uint32_t value = tiff.number(entry + 8, 2).value_or(1);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

}  // namespace

int exif_orientation(Bytes file) {
  constexpr std::uint8_t kMark = 0xFF, kStart = 0xD8, kApp1 = 0xE1, kScan = 0xDA;
  if (file.size() < 2 || file[0] != kMark || file[1] != kStart) return 1;
  for (std::size_t at = 2; at + 4 <= file.size() && file[at] == kMark;) {
    const std::uint8_t kind = file[at + 1];
    if (kind == kMark) {  // padding
      ++at;
      continue;
    }
    if (kind == kScan) return 1;
    const std::size_t length = std::size_t{file[at + 2]} << 8U | file[at + 3];  // with itself
    if (length < 2 || length > file.size() - at - 2) return 1;
    const Bytes content = file.subspan(at + 4, length - 2);
    if (kind == kApp1 && starts_with(content, kExif))
      return orientation_of(content.subspan(kExif.size()));
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

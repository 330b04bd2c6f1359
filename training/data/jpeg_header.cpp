// The header of a JPEG file, read without decoding.
#include <algorithm>
#include <array>

#include "training/data/image.hpp"

namespace shakedown::training {
namespace {

using Bytes = std::span<const std::uint8_t>;

// Of ITU-T T.81, table B.1; SOF0 is baseline, SOF1 to SOF15 are other processes.
enum Marker : std::uint8_t {
  SOF0 = 0xC0,
  DHT = 0xC4,
  SOF15 = 0xCF,
  RST0 = 0xD0,
  SOI = 0xD8,
  EOI = 0xD9,
  SOS = 0xDA,
  APP14 = 0xEE
};

int word(Bytes bytes, std::size_t at) { return bytes[at] << 8 | bytes[at + 1]; }

struct Segment {
  std::uint8_t marker;
  Bytes content;  // after its length
};
/// The segment at `at`, which moves on to the next; none where it is not whole.
std::optional<Segment> next_segment(Bytes file, std::size_t& at) {
  while (at + 1 < file.size() && word(file, at) == 0xFFFF) ++at;  // fill bytes
  if (at + 4 > file.size() || file[at] != 0xFF) return {};
  const std::uint8_t marker = file[at + 1];
  const auto length = static_cast<std::size_t>(word(file, at + 2));  // with itself
  if (length < 2 || at + 2 + length > file.size()) return {};
  const Segment segment{marker, file.subspan(at + 4, length - 2)};
  at += 2 + length;
  return segment;
}

// Smaller images cost the host nothing; larger ones are beyond what engines are specified for.
constexpr int kShortestSide = 64;
constexpr int kLongestSide = 16384;

struct Header {
  Size size{0, 0};
  int components = 0;
  bool named_rgb = false;  // the components' identifiers are letters
  bool adobe_rgb = false;
};

bool is_side(int side) { return side >= kShortestSide && side <= kLongestSide; }

/// Horizontal and vertical factor of each component, as 4-bit numbers in a byte.
bool engines_know_sampling(Bytes factors) {
  if (factors.size() == 1) return factors[0] == 0x11;
  constexpr std::array<std::uint8_t, 4> kLuminance{0x11, 0x12, 0x21, 0x22};
  return std::count(kLuminance.begin(), kLuminance.end(), factors[0]) > 0 && factors[1] == 0x11 &&
         factors[2] == 0x11;
}

/// The segment of SOF0, after its length.
bool read_frame(Bytes segment, Header& header) {
  if (segment.size() < 6 || segment[0] != 8 || header.components != 0) return false;
  header.size = {word(segment, 3), word(segment, 1)};
  header.components = segment[5];
  const auto components = static_cast<std::size_t>(header.components);
  if ((components != 1 && components != 3) || segment.size() != 6 + 3 * components) return false;
  std::array<std::uint8_t, 3> names{};
  std::array<std::uint8_t, 3> factors{};
  for (std::size_t c = 0; c < components; ++c) {
    names[c] = segment[6 + 3 * c];
    factors[c] = segment[7 + 3 * c];
  }
  header.named_rgb = names == std::array<std::uint8_t, 3>{'R', 'G', 'B'};
  return is_side(header.size.width) && is_side(header.size.height) &&
         engines_know_sampling({factors.data(), components});
}

/// Photoshop's note on the colours, whose last byte is 0 for RGB.
bool is_adobe_rgb(Bytes segment) {
  constexpr std::array<std::uint8_t, 5> kName{'A', 'd', 'o', 'b', 'e'};
  return segment.size() >= 12 && std::equal(kName.begin(), kName.end(), segment.begin()) &&
         segment[11] == 0;
}

/// Whether the scan, the segment of SOS, has all components of the frame.
bool is_only_scan(Bytes segment, const Header& header) {
  return header.components > 0 && !segment.empty() && segment[0] == header.components &&
         segment.size() == 4 + 2 * static_cast<std::size_t>(header.components);
}

}  // namespace

std::optional<Size> baseline_jpeg_size(Bytes file) {
  const std::size_t size = file.size();
  if (size < 4 || word(file, 0) != (0xFF00 | SOI) || word(file, size - 2) != (0xFF00 | EOI))
    return {};
  Header header;
  std::size_t at = 2;
  while (const auto segment = next_segment(file, at)) {
    const auto [marker, content] = *segment;
    if (marker == SOS) {
      const bool ycc = header.components == 1 || !(header.named_rgb || header.adobe_rgb);
      return is_only_scan(content, header) && ycc ? std::optional(header.size) : std::nullopt;
    }
    if (marker == APP14) header.adobe_rgb = is_adobe_rgb(content);
    if (marker == SOF0 && !read_frame(content, header)) return {};
    // other processes, and what has no place before a scan
    if (marker < SOF0 || (marker > SOF0 && marker <= SOF15 && marker != DHT) ||
        (marker >= RST0 && marker <= EOI))
      return {};
  }
  return {};
}

}  // namespace shakedown::training

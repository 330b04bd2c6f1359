// Images that a camera stored turned.

#include <algorithm>
#include <array>
#include <span>

#include "tests/catch.hpp"
#include "tests/support/image_files.hpp"
#include "training/data/image.hpp"

namespace shakedown::training {
namespace {

using test::Bytes;
using test::half_white_jpeg;
using test::png_of;
using test::TempFolder;

/// An EXIF segment with an orientation of one of TIFF's types, in one of its byte orders.
Bytes exif_segment(int orientation, bool big_endian, std::uint32_t type = 3) {
  const auto number = [&](Bytes& to, std::uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i)
      to.push_back(static_cast<std::uint8_t>(value >> 8 * (big_endian ? bytes - 1 - i : i)));
  };
  Bytes segment{0xFF, 0xE1, 0, 0, 'E', 'x', 'i', 'f', 0, 0};
  segment.insert(segment.end(), 2, big_endian ? 'M' : 'I');
  number(segment, 42, 2);
  number(segment, 8, 4);  // the directory follows
  number(segment, 2, 2);  // entries
  for (const std::uint32_t tag : {0x010FU, 0x0112U}) {
    number(segment, tag, 2);
    number(segment, type, 2);
    number(segment, 1, 4);
    const int bytes = type == 4 ? 4 : type == 3 ? 2 : 1;
    number(segment, static_cast<std::uint32_t>(orientation), bytes);
    number(segment, 0, 4 - bytes);
  }
  number(segment, 0, 4);  // no further directory
  segment[3] = static_cast<std::uint8_t>(segment.size() - 2);
  return segment;
}

Bytes bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

Bytes xmp_segment(const std::string& xmp) {
  Bytes segment = bytes_of("\xFF\xE1..http://ns.adobe.com/xap/1.0/" + std::string(1, '\0') + xmp);
  segment[2] = 0;
  segment[3] = static_cast<std::uint8_t>(segment.size() - 2);
  return segment;
}

/// A PNG file with a chunk after its header, whose checksum nobody reads here.
Bytes with_chunk(const std::string& type, const Bytes& content) {
  constexpr std::ptrdiff_t kHeader = 8 + 25;
  Bytes chunk{0, 0, 0, static_cast<std::uint8_t>(content.size())};
  chunk.insert(chunk.end(), type.begin(), type.end());
  chunk.insert(chunk.end(), content.begin(), content.end());
  chunk.insert(chunk.end(), 4, 0);
  Bytes png = png_of(0);
  png.insert(png.begin() + kHeader, chunk.begin(), chunk.end());
  return png;
}

Bytes with_exif(Bytes jpeg, const Bytes& segment) {
  jpeg.insert(jpeg.begin() + 2, segment.begin(), segment.end());
  return jpeg;
}

}  // namespace

TEST_CASE("images are turned as PIL's exif_transpose does", "[exif]") {
  // 3 x 2: 1 2 3 / 4 5 6; expected: Pillow 12
  const std::vector<std::vector<int>> expected{
      {1, 2, 3, 4, 5, 6}, {3, 2, 1, 6, 5, 4}, {6, 5, 4, 3, 2, 1}, {4, 5, 6, 1, 2, 3},
      {1, 4, 2, 5, 3, 6}, {4, 1, 5, 2, 6, 3}, {6, 3, 5, 2, 4, 1}, {3, 6, 2, 5, 1, 4}};
  Image image;
  image.reshape({3, 2}, 3, 0);
  for (int v = 0; v < 6; ++v) {
    const std::array<std::uint8_t, 3> pixel{static_cast<std::uint8_t>(v + 1), 100,
                                            static_cast<std::uint8_t>(v + 1)};
    std::copy(pixel.begin(), pixel.end(), image.row(v / 3) + 4 * (v % 3));
  }
  for (int orientation = 1; orientation <= 8; ++orientation) {
    Image turned;
    turn_upright(image, orientation, turned);
    const auto [width, height] = turned.size();
    CHECK(turned.size() == upright(image.size(), orientation));
    CHECK(width == (orientation < 5 ? 3 : 2));
    CHECK(height == (orientation < 5 ? 2 : 3));
    CHECK(as_stored(whole(turned.size()), image.size(), orientation) == whole(image.size()));
    std::vector<int> values;
    for (int i = 0; i < 6; ++i) {
      const std::uint8_t* pixel = turned.row(i / width) + 4 * (i % width);
      CHECK(pixel[1] == 100);
      values.push_back(pixel[0]);
    }
    CHECK(values == expected[static_cast<std::size_t>(orientation - 1)]);
    for (const bool big_endian : {false, true})
      CHECK(exif_orientation(with_exif(half_white_jpeg(), exif_segment(orientation, big_endian))) ==
            orientation);
  }
}

TEST_CASE("the orientation is where Pillow finds it", "[exif]") {  // Pillow 13 agrees with each
  const Bytes jpeg = half_white_jpeg();
  const std::string attribute = "tiff:Orientation=\"8\"";
  const std::string element = "<tiff:Orientation>8</tiff:Orientation>";
  for (const bool big_endian : {false, true}) {
    CHECK(exif_orientation(with_exif(jpeg, exif_segment(6, big_endian, 4))) == 6);  // LONG
    CHECK(exif_orientation(with_exif(jpeg, exif_segment(6, big_endian, 1))) == 1);  // BYTE
    const Bytes segment = exif_segment(6, big_endian);
    const Bytes tiff(segment.begin() + 10, segment.end());
    CHECK(exif_orientation(with_chunk("eXIf", tiff)) == 6);
    CHECK(exif_orientation(with_chunk("oXIf", tiff)) == 1);
  }
  for (const std::string& xmp : {attribute, element, "tiff:Orientation=x " + attribute}) {
    CHECK(exif_orientation(with_exif(jpeg, xmp_segment(xmp))) == 8);
    const auto text = "XML:com.adobe.xmp" + std::string(5, '\0') + xmp;
    CHECK(exif_orientation(with_chunk("iTXt", bytes_of(text))) == 8);
    // EXIF's orientation comes first, sensible or not; without one XMP's counts
    for (const auto& [exif, seen] : {std::pair(6, 6), {9, 1}})
      CHECK(exif_orientation(
                with_exif(with_exif(jpeg, exif_segment(exif, true)), xmp_segment(xmp))) == seen);
    Bytes other = exif_segment(6, true);
    for (Bytes::size_type at = 18; at + 1 < other.size(); ++at)
      if (other[at] == 0x01 && other[at + 1] == 0x12) other[at + 1] = 0x13;
    CHECK(exif_orientation(with_exif(with_exif(jpeg, other), xmp_segment(xmp))) == 8);
  }
  CHECK(exif_orientation(with_exif(jpeg, xmp_segment("tiff:Orientation='8' exif:Orientation>6"))) ==
        1);
  CHECK(exif_orientation(with_exif(jpeg, xmp_segment("tiff:Orientation=\""))) == 1);
}

TEST_CASE("EXIF that makes no sense turns nothing", "[exif]") {
  CHECK(exif_orientation({}) == 1);
  CHECK(exif_orientation(half_white_jpeg()) == 1);
  CHECK(exif_orientation(png_of(0)) == 1);
  for (const int strange : {0, 9, 65535})
    CHECK(exif_orientation(with_exif(half_white_jpeg(), exif_segment(strange, true))) == 1);
  const Bytes file = with_exif(half_white_jpeg(), exif_segment(6, false));
  for (std::size_t size = 0; size < 2 + exif_segment(6, false).size(); ++size)
    CHECK(exif_orientation(std::span(file).first(size)) == 1);  // the segment is cut
  for (const std::size_t at : {12U, 14U, 16U, 17U}) {  // not II, not 42, the directory elsewhere
    Bytes bad = file;
    bad[at] ^= 0xFF;
    CHECK(exif_orientation(bad) == 1);
  }
}

TEST_CASE("--exif turns what is read", "[exif]") {
  const TempFolder folder;
  folder.write("a/1.jpg", with_exif(half_white_jpeg(), exif_segment(6, false)));
  const FolderSource images(scan_image_folder(folder.path));
  BadImages bad(0, {});
  TransformSettings settings{16, Augmentation::none, true, false};
  Bytes plain(16 * 16 * 3), turned(plain.size());
  CHECK(SampleReader(images, settings, bad).read(0, 0, plain).label == 0);
  settings.exif = true;
  CHECK(SampleReader(images, settings, bad).read(0, 0, turned).label == 0);
  const std::size_t left_below = std::size_t{15} * 16 * 3;
  CHECK(plain[left_below] > 200);
  CHECK(turned[left_below] < 50);
  CHECK(turned[15 * 3] > 200);  // the left half came to the top
}

}  // namespace shakedown::training

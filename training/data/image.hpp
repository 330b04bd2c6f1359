// Decoding image files to 8-bit RGB.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace shakedown::training {

struct Size {
  int width;
  int height;
  bool operator==(const Size&) const = default;
};

/// Pixels [x, x + width) x [y, y + height) of an image.
struct Region {
  int x;
  int y;
  int width;
  int height;
  bool operator==(const Region&) const = default;
};

inline Region whole(Size size) { return {0, 0, size.width, size.height}; }

/// Pixels of four bytes: red, green, blue and one without meaning.
class Image {
 public:
  /// Each row starts after `left` pixels of a row of `row_pixels`. All pixels are undefined, and
  /// memory is only allocated if no image before was as large.
  void reshape(Size size, int row_pixels, int left);
  /// Leaves only the region.
  void narrow(Region region);

  Size size() const { return size_; }
  /// The pixel after the last one may be read, too.
  std::uint8_t* row(int y) { return bytes_.data() + offset(y); }
  const std::uint8_t* row(int y) const { return bytes_.data() + offset(y); }

 private:
  std::size_t offset(int y) const { return first_ + static_cast<std::size_t>(y) * row_bytes_; }

  Size size_{};
  std::size_t first_ = 0;
  std::size_t row_bytes_ = 0;
  std::vector<std::uint8_t> bytes_;
};

/// Bytes of that many pixels, H W 3.
std::size_t rgb_bytes(Size size);
/// Leaves out the fourth byte of each pixel.
void copy_rgb(const Image& image, std::span<std::uint8_t> rgb);

class FormatDecoder;

/// Decodes the content of JPEG and PNG files, recognised by their content, to what PIL's
/// convert("RGB") gives: alpha is dropped, CMYK is read as Adobe's inverted inks, gray of 16 bits
/// is clipped at 255 and of other 16-bit values the upper 8 bits are kept; EXIF rotation, colour
/// profiles and PNG gamma are ignored. One per thread: it keeps its working memory.
///
/// Throws UsageError with what is wrong with the file, which the caller names. A truncated file is
/// an error in any region. Of a JPEG, the rows below the region are not decoded, so an image that
/// is corrupt there alone is accepted.
class ImageDecoder {
 public:
  ImageDecoder();
  ~ImageDecoder();
  ImageDecoder(const ImageDecoder&) = delete;
  ImageDecoder& operator=(const ImageDecoder&) = delete;

  /// Reads the header of `file`, which must stay until decode() has returned.
  Size open(std::span<const std::uint8_t> file);

  /// The pixels of the region of the opened file, bit for bit those of the whole image; once per
  /// open(). The result is valid until the next open().
  const Image& decode(Region region);

 private:
  std::unique_ptr<FormatDecoder> jpeg_;
  std::unique_ptr<FormatDecoder> png_;
  FormatDecoder* opened_ = nullptr;
  Size size_{};
  Image image_;
};

// The header of a JPEG file, read without decoding.

/// The size of the image in a JPEG file that JPEG engines decode as libjpeg does: baseline in one
/// scan, 8 bits, gray or YCbCr of subsampling 4:4:4, 4:4:0, 4:2:2 or 4:2:0, at least 64 and at most
/// 16,384 pixels a side, with all segments whole and the mark of its end last. Nothing for any
/// other file. The entropy-coded data is not looked at.
std::optional<Size> baseline_jpeg_size(std::span<const std::uint8_t> file);

}  // namespace shakedown::training

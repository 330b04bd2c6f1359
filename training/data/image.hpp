// Decoding image files to 8-bit RGB.
#pragma once

#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <memory>
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

// The orientation of a photograph that its camera noted.

/// The orientation in a JPEG file's EXIF data, 1 to 8; 1, upright, where it has none or it makes no
/// sense.
int exif_orientation(std::span<const std::uint8_t> file);

// PIL's exif_transpose, for a stored image of an orientation.

/// The size that the image is seen in.
Size upright(Size stored, int orientation);
/// The pixels of the stored image that are seen as `seen`.
Region as_stored(Region seen, Size stored, int orientation);
/// The pixels as they are seen: mirrored and rotated.
void turn_upright(const Image& stored, int orientation, Image& seen);

// Declarations that image.cpp and its two decoders share.

/// Of one format, as ImageDecoder describes it. Throws UsageError with the reason only.
class FormatDecoder {
 public:
  virtual ~FormatDecoder() = default;
  virtual Size open(std::span<const std::uint8_t> file) = 0;
  virtual void decode(Region region, Image& image) = 0;
};

std::unique_ptr<FormatDecoder> make_jpeg_decoder();
std::unique_ptr<FormatDecoder> make_png_decoder();

/// Throws UsageError for dimensions that no photograph has.
Size checked_size(std::uint32_t width, std::uint32_t height);

/// Turns the errors of libjpeg and libpng, whose handlers must not return, into exceptions.
/// An exception may not pass through their C frames, so the handler jumps over them.
class ErrorTrap {
 public:
  /// Runs `step`; throws UsageError when the library failed within. The jump runs no destructors:
  /// `step` may call the library and use what its caller owns, but own nothing itself.
  template <class Step>
  void attempt(const Step& step) {
    if (setjmp(back_) != 0) refuse();
    step();
  }

  /// For the library's error handler, called within `attempt`.
  [[noreturn]] void fail(const char* reason) {
    std::snprintf(reason_, sizeof reason_, "truncated or corrupt (%s)", reason);
    std::longjmp(back_, 1);
  }

 private:
  [[noreturn]] void refuse() const;

  std::jmp_buf back_;
  char reason_[256] = "";
};

}  // namespace shakedown::training

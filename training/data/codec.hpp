// Declarations that image.cpp and its two decoders share.
#pragma once

#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>

#include "common/error.hpp"
#include "training/data/image.hpp"

namespace shakedown::training {

/// Of one format, as ImageDecoder describes it. Throws UsageError with the reason only.
class FormatDecoder {
 public:
  virtual ~FormatDecoder() = default;
  virtual Size open(std::span<const std::uint8_t> file) = 0;
  virtual void decode(Region region, Size enough, Image& image) = 0;
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
    if (setjmp(back_) != 0) throw UsageError(reason_);
    step();
  }

  /// For the library's error handler, called within `attempt`.
  [[noreturn]] void fail(const char* reason) {
    std::snprintf(reason_, sizeof reason_, "truncated or corrupt (%s)", reason);
    std::longjmp(back_, 1);
  }

 private:
  std::jmp_buf back_;
  char reason_[256] = "";
};

}  // namespace shakedown::training

// Folders of small images, and what a source makes of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/error.hpp"
#include "tests/support/jpeg.hpp"
#include "training/data/loader.hpp"
#include "training/data/source.hpp"

namespace shakedown::test {

struct TempFolder {
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  /// Makes an empty file and the folders above it.
  std::string touch(const std::string& name) const { return write(name, {}); }
  std::string write(const std::string& name, const Bytes& content) const;

  std::string path = "/tmp/shakedown_data_XXXXXX";
};

/// The side of the images below.
constexpr int kSide = 12;

/// Gray, with texture; starts with its number.
Bytes png_of(int number);

/// 16 x 8, its left half white, else black.
Bytes half_white_jpeg();

/// `count` images in classes a (the first half) and b, image i showing i; some lie deeper, and all
/// are PNG by any name.
training::FolderSource numbered_images(const TempFolder& folder, int count);

Bytes image_of(const training::ImageSource& source, std::size_t index);

training::LoaderSettings loader_settings();

/// Images and labels of an epoch, one batch after another.
Bytes epoch_of(const training::ImageSource& source, const training::LoaderSettings& settings,
               int threads, int epoch = 1);

/// What `call` throws as UsageError, or "no error".
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace shakedown::test

// Folders of small images, and what a source makes of them.
#pragma once

#include "tests/support/files.hpp"
#include "tests/support/jpeg.hpp"
#include "training/data/loader.hpp"
#include "training/data/source.hpp"

namespace shakedown::test {

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

}  // namespace shakedown::test

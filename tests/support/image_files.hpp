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
Bytes png_of(int number, training::Size size = {kSide, kSide});

/// 16 x 8, its left half white, else black.
Bytes half_white_jpeg();

/// `count` images in classes a (the first half) and b, image i showing i; the last of each lie
/// deeper, and all are PNG by any name.
training::FolderSource numbered_images(const TempFolder& folder, int count);

Bytes image_of(const training::ImageSource& source, std::size_t index);

training::LoaderSettings loader_settings();

/// A batch, kept beyond its release.
struct KeptBatch {
  Bytes images;
  std::vector<std::int32_t> labels;  // -1: padding
  bool operator==(const KeptBatch&) const = default;
};
std::vector<KeptBatch> rest_of_epoch(training::Loader& loader);
/// By a loader of its own.
std::vector<KeptBatch> epoch_of(const training::ImageSource& source,
                                const training::LoaderSettings& settings, int threads,
                                int epoch = 1, long first_batch = 0);

}  // namespace shakedown::test

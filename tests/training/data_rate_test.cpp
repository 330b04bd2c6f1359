// What one thread makes of 500x375 JPEGs: build/unit_tests '[.rate]' on an idle machine.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "tests/catch.hpp"
#include "tests/support/jpeg.hpp"
#include "training/data/crops.hpp"
#include "training/data/transform.hpp"

using namespace shakedown;
using namespace shakedown::training;
using namespace shakedown::test;

namespace {

/// Prints the best of some rounds over all files.
template <class Step>
void measure(const char* what, std::size_t files, Step step) {
  using Clock = std::chrono::steady_clock;
  double best_s = 1e9;
  for (int round = 0; round < 7; ++round) {
    const auto start = Clock::now();
    for (std::size_t i = 0; i < files; ++i) step(i);
    best_s = std::min(best_s, std::chrono::duration<double>(Clock::now() - start).count());
  }
  const double each_s = best_s / static_cast<double>(files);
  std::printf("%-18s %.3f ms, %.0f/s\n", what, 1e3 * each_s, 1 / each_s);
}

}  // namespace

TEST_CASE("the rate of one thread", "[.rate]") {
  std::vector<Bytes> files;
  for (std::uint64_t i = 0; i < 64; ++i) files.push_back(write_jpeg(textured_image(500, 375, i)));
  TransformSettings settings;
  settings.augmentation = Augmentation::resized_crop;
  Transform train(settings), validate({});
  ImageDecoder decoder;
  Bytes out(3 * 224 * 224);
  const auto crop_of = [&](std::size_t i, Random& random) {
    return random_crop(decoder.open(files[i]), settings, random);
  };
  measure("whole image", files.size(),
          [&](std::size_t i) { decoder.decode(whole(decoder.open(files[i]))); });
  measure("crop", files.size(), [&](std::size_t i) {
    Random random(i);
    decoder.decode(crop_of(i, random).region);
  });
  measure("training sample", files.size(), [&](std::size_t i) {
    Random random(i);
    const Crop crop = crop_of(i, random);
    train(decoder.decode(crop.region), crop.mirror, random, out);
  });
  Bytes rgb(3 * 500 * 375);
  measure("crop for a device", files.size(), [&](std::size_t i) {
    Random random(i);
    const Image& image = decoder.decode(crop_of(i, random).region);
    copy_rgb(image, std::span(rgb).first(rgb_bytes(image.size())));
  });
  measure("validation sample", files.size(), [&](std::size_t i) {
    Random random(i);
    validate(decoder.decode(whole(decoder.open(files[i]))), false, random, out);
  });
}

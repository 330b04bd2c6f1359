// Resizing and augmentation, against values worked out by hand and by Pillow; crops for the device.
#include "training/data/transform.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/image_files.hpp"
#include "tests/support/jpeg.hpp"
#include "training/data/batches.hpp"
#include "training/data/crops.hpp"

namespace shakedown::training {
namespace {

using namespace shakedown::test;
using test::Bytes;

/// pixel(x, y, c) for every value.
template <class Pixel>
Image make_image(int width, int height, Pixel pixel) {
  Image image;
  image.reshape({width, height}, width, 0);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < 3; ++c)
        image.row(y)[4 * x + c] = static_cast<std::uint8_t>(pixel(x, y, c));
  return image;
}

/// Each pixel encodes its position: 1 + x, 1 + y, 200.
Image coordinates(int width, int height) {
  return make_image(width, height, [](int x, int y, int c) {
    return c == 0 ? 1 + x : c == 1 ? 1 + y : 200;
  });
}

Bytes resize(Image image, Region from, Size to) {
  image.narrow(from);
  Bytes out(static_cast<std::size_t>(3 * to.width * to.height));
  Resizer()(image, to, whole(to), false, out);
  return out;
}

Bytes apply(Image image, const TransformSettings& settings, std::uint64_t seed = 0) {
  Bytes out(static_cast<std::size_t>(3 * settings.image_size * settings.image_size), 99);
  Random random(seed);
  Transform transform(settings);
  const Crop crop = random_crop(image.size(), settings, random);
  image.narrow(crop.region);
  transform(image, crop.mirror, random, out);
  return out;
}

}  // namespace

TEST_CASE("without center_crop the whole image is stretched, and nothing is random") {
  const Image image = coordinates(9, 5);
  const TransformSettings settings{4, Augmentation::none, true, false};
  CHECK(apply(image, settings, 1) == resize(image, {0, 0, 9, 5}, {4, 4}));
  CHECK(apply(image, settings, 2) == apply(image, settings, 1));
}

TEST_CASE("flip mirrors about half the images, and none when it is off") {
  // an eighth of 4 is 0: shift only flips
  const Image image = coordinates(4, 4);
  const Image mirrored = make_image(4, 4, [](int x, int y, int c) {
    return c == 0 ? 4 - x : c == 1 ? 1 + y : 200;
  });
  int flipped = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const Bytes out = apply(image, {4, Augmentation::shift, true, true}, seed);
    REQUIRE((out == picture_of(image).values || out == picture_of(mirrored).values));
    flipped += out == picture_of(mirrored).values;
    REQUIRE(apply(image, {4, Augmentation::shift, false, true}, seed) == picture_of(image).values);
  }
  CHECK(flipped > 150);
  CHECK(flipped < 250);
}

TEST_CASE("shift moves by up to an eighth of the size, and black moves in") {
  const Image image = coordinates(16, 16);
  std::set<std::pair<int, int>> moves;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    const Bytes out = apply(image, {16, Augmentation::shift, false, true}, seed);
    const std::uint8_t* middle = &out[3 * (16 * 8 + 8)];
    const int right = middle[0] - 9, down = middle[1] - 9;
    const Image expected = make_image(16, 16, [&](int x, int y, int c) {
      const int from_x = x + right, from_y = y + down;
      if (from_x < 0 || from_y < 0 || from_x > 15 || from_y > 15) return 0;
      return c == 0 ? 1 + from_x : c == 1 ? 1 + from_y : 200;
    });
    REQUIRE(out == picture_of(expected).values);
    moves.insert({right, down});
  }
  CHECK(moves.size() == 25);  // -2..2 both ways
  for (const auto& [right, down] : moves) CHECK(std::max(std::abs(right), std::abs(down)) <= 2);
}

TEST_CASE("random crops lie in the image and have torchvision's areas and ratios") {
  Random random(7);
  double least = 1, most = 0;
  std::set<int> lefts;
  for (int i = 0; i < 2000; ++i) {
    const Region r = random_resized_crop({500, 375}, random);
    REQUIRE((r.x >= 0 && r.y >= 0 && r.width > 0 && r.height > 0));
    REQUIRE((r.x + r.width <= 500 && r.y + r.height <= 375));
    const double ratio = static_cast<double>(r.width) / r.height;
    REQUIRE((ratio > 0.74 && ratio < 1.35));  // rounded to pixels
    const double area = r.width * r.height / (500.0 * 375.0);
    least = std::min(least, area);
    most = std::max(most, area);
    lefts.insert(r.x);
  }
  CHECK(least == Approx(0.08).margin(0.01));
  CHECK(most > 0.9);
  CHECK(lefts.size() > 200);
}

TEST_CASE("an image too narrow for any crop gives its centre") {
  Random random(7);
  CHECK(random_resized_crop({1000, 9}, random) == Region{494, 0, 12, 9});
  CHECK(random_resized_crop({9, 1000}, random) == Region{0, 494, 9, 12});
  CHECK(random_resized_crop({1, 1}, random) == Region{0, 0, 1, 1});
}

TEST_CASE("the options' transforms") {
  const auto crop = training_transform({}, 224);
  CHECK(crop.augmentation == Augmentation::resized_crop);
  CHECK(crop.center_crop);
  CHECK(training_transform({}, 32).augmentation == Augmentation::shift);
  CHECK_FALSE(validation_transform({}, 32).center_crop);
  CHECK(validation_transform({"none"}, 32).center_crop);
  CHECK(validation_transform({"auto", 232}, 224).resize == 232);
  CHECK(validation_transform({"auto", 232}, 224).augmentation == Augmentation::none);
  CHECK_THROWS_WITH(validation_transform({"auto", 200}, 224),
                    ContainsSubstring("--val-resize 200 is less than --image-size 224"));
  CHECK_THROWS_WITH(validation_transform({"shift", 256}, 224),
                    ContainsSubstring("--val-resize 256 needs --augment crop or none"));
}

TEST_CASE("a window may be mirrored, whatever its size") {
  Resizer resize;
  Random random(3);
  const auto within = [&](int most) {
    return 1 + static_cast<int>(random.below(static_cast<std::size_t>(most)));
  };
  for (int i = 0; i < 300; ++i) {
    const int most = i % 2 ? 12 : 90;
    const Image image = make_image(within(most), within(most), [&](int, int, int) {
      return static_cast<int>(random.below(256));
    });
    const Size to{within(most), within(most)};
    const int x = within(to.width) - 1, y = within(to.height) - 1;
    const Region window{x, y, within(to.width - x), within(to.height - y)};
    Bytes plain(static_cast<std::size_t>(3 * window.width * window.height)), mirrored = plain;
    resize(image, to, window, false, plain);
    resize(image, to, window, true, mirrored);
    for (int pixel = 0; pixel < window.width; ++pixel)
      REQUIRE(mirrored[std::size_t(3 * pixel)] ==
              plain[std::size_t(3 * (window.width - 1 - pixel))]);
  }
}

// Crops on their way to the device that scales them: the memory of a batch.

TEST_CASE("a crop that leaves other rows no place for a square gets a square's", "[loader]") {
  const DeviceDecoderSettings settings{4, 10};  // squares of 300 bytes
  CHECK(crop_memory_bytes(settings) == 4 * (288U << 10));
  CHECK(crop_memory_bytes({2, 1000}) == 2 * rgb_bytes({1000, 1000}));
  Bytes memory(1500);
  CropMemory crops(memory, settings);
  for (int round = 0; round < 2; ++round) {
    CHECK(crops.claimed().empty());
    std::size_t begin = 0;
    const auto check_claim = [&](Size size, Size expected) {
      const auto place = crops.claim(size);
      CHECK(place.size == expected);
      CHECK(place.rgb.data() == memory.data() + begin);
      CHECK(place.rgb.size() == rgb_bytes(expected));
      begin += place.rgb.size();
      CHECK(crops.claimed().data() == memory.data());
      CHECK(crops.claimed().size() == begin);
    };
    check_claim({7, 20}, {7, 20});    // 420 of 1,500, and 900 are for the others
    check_claim({7, 23}, {10, 10});   // 483 of 1,080, and 600 are for the others
    check_claim({12, 13}, {12, 13});  // 468 of 780, and 300 are for the last
    CHECK(crops.claim_square().rgb.size() == 300);
    crops.clear();
  }
}

TEST_CASE("pixels are copied without their fourth bytes", "[loader]") {
  const test::Picture picture = test::textured_image(21, 9, 3);
  Image image = test::image_of(picture);
  Bytes all(picture.values.size() + 1, 0xEE);
  copy_rgb(image, std::span(all).first(all.size() - 1));
  CHECK(std::equal(picture.values.begin(), picture.values.end(), all.begin()));
  CHECK(all.back() == 0xEE);

  image.narrow({4, 2, 1, 3});
  Bytes column(9);
  copy_rgb(image, column);
  for (std::size_t i = 0; i < column.size(); ++i)
    CHECK(column[i] == picture.values[3 * ((2 + i / 3) * 21 + 4) + i % 3]);
}

}  // namespace shakedown::training

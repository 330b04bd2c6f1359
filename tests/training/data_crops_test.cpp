// Crops on their way to the device that scales them: the memory of a batch; on a GPU, the pixels.
#include <algorithm>
#include <string>

#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/image_files.hpp"
#include "training/data/batches.hpp"
#include "training/data/crops.hpp"

using namespace shakedown;
using namespace shakedown::training;
using test::Bytes;

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

TEST_CASE("on the cpu backend the workers scale", "[loader]") {
  if (!test::has(BackendKind::cpu)) SKIP("no cpu backend");
  CHECK(make_device_crops(*test::open_device(BackendKind::cpu), {4, 8}) == nullptr);
  CHECK(device_crops_bytes(BackendKind::cpu, {4, 8}) == 0);
}

TEST_CASE("a loader's batches are the same where the GPU scales the crops", "[data]") {
  if (!test::has(BackendKind::gpu)) SKIP("no GPU");
  const test::TempFolder folder;
  constexpr Size kSizes[] = {
      {500, 375}, {333, 517}, {1200, 900}, {41, 30}};  // the third: too large
  for (int i = 0; i < 60; ++i) {                       // for two in a batch
    const auto [width, height] = kSizes[i % 4];
    folder.write((i % 2 ? "a/" : "b/") + std::to_string(100 + i) + ".jpg",
                 test::write_jpeg(test::textured_image(width, height, i),
                                  {.gray = i % 9 == 0, .progressive = i % 5 == 0}));
  }
  const FolderSource source(scan_image_folder(folder.path));
  const Backend backend = test::open_backend_of(BackendKind::gpu);
  Device& device = *backend.device;
  LoaderSettings settings;
  settings.batch_size = 8;
  settings.drop_last = false;
  settings.transform.augmentation = Augmentation::resized_crop;
  NetworkSettings shape;
  shape.batch_size = settings.batch_size;
  shape.image_size = settings.transform.image_size;

  const auto epoch_with = [&](DeviceCrops* crops) {
    const auto stream = device.make_stream();
    Workers workers(4);
    Loader loader(source, settings, device, workers, {nullptr, crops});
    const auto batches = make_loaded_batches(*backend.world, loader, device, *stream, shape);
    std::vector<Bytes> all;
    batches->start_epoch(1);
    while (const auto batch = batches->next())
      all.push_back(download<std::uint8_t>(device, *stream, batch->images,
                                           8 * rgb_bytes({shape.image_size, shape.image_size})));
    return all;
  };
  const auto expected = epoch_with(nullptr);
  REQUIRE(expected.size() == 8);
  const DeviceDecoderSettings crop_settings{shape.batch_size, shape.image_size};
  const std::size_t before = device.allocated_bytes();
  const auto crops = make_device_crops(device, crop_settings);
  REQUIRE(crops != nullptr);
  CHECK(device.allocated_bytes() - before == device_crops_bytes(BackendKind::gpu, crop_settings));
  for (int round = 0; round < 2; ++round) {  // the second in memory that has been used
    const auto scaled = epoch_with(crops.get());
    REQUIRE(scaled.size() == expected.size());
    for (std::size_t i = 0; i < scaled.size(); ++i) CHECK((scaled[i] == expected[i]));
  }
}

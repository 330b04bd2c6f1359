#include "tests/support/image_files.hpp"

#include <png.h>

#include <algorithm>

#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/fake_device.hpp"

namespace shakedown::test {

using namespace training;

Bytes png_of(int number, Size size) {
  Bytes gray(static_cast<std::size_t>(size.width) * static_cast<std::size_t>(size.height));
  for (std::size_t i = 0; i < gray.size(); ++i) gray[i] = static_cast<std::uint8_t>(40 + 17 * i);
  gray[0] = static_cast<std::uint8_t>(number);
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(size.width);
  png.height = static_cast<png_uint_32>(size.height);
  png.format = PNG_FORMAT_GRAY;
  png_alloc_size_t bytes = 0;
  REQUIRE(png_image_write_to_memory(&png, nullptr, &bytes, 0, gray.data(), 0, nullptr));
  Bytes file(bytes);
  REQUIRE(png_image_write_to_memory(&png, file.data(), &bytes, 0, gray.data(), 0, nullptr));
  file.resize(bytes);
  return file;
}

Bytes half_white_jpeg() {
  Picture picture{16, 8, Bytes(std::size_t{16} * 8 * 3)};
  for (std::size_t i = 0; i < picture.values.size(); ++i)
    picture.values[i] = i / 3 % 16 < 8 ? 255 : 0;
  return write_jpeg(picture);
}

FolderSource numbered_images(const TempFolder& folder, int count) {
  for (int i = 0; i < count; ++i) {
    const std::string name = ((i < count / 2 ? i : i - count / 2) > count / 4 ? "z/" : "") +
                             std::to_string(1000 + i) + (i % 2 ? ".png" : ".JPG");
    folder.write((i < count / 2 ? "a/" : "b/") + name, png_of(i));
  }
  return FolderSource(scan_image_folder(folder.path));
}

Bytes image_of(const ImageSource& source, std::size_t index) {
  Bytes bytes;
  InputTimes times;
  source.read(index, bytes, times);
  return bytes;
}

LoaderSettings loader_settings() {
  LoaderSettings settings;
  settings.batch_size = 4;
  settings.transform = {kSide, Augmentation::resized_crop};
  settings.drop_last = false;
  return settings;
}

std::vector<KeptBatch> rest_of_epoch(Loader& loader) {
  std::vector<KeptBatch> all;
  while (const Batch* batch = loader.next()) {
    all.push_back({{batch->images.begin(), batch->images.end()},
                   {batch->labels.begin(), batch->labels.end()}});
    const auto& labels = all.back().labels;
    CHECK(batch->count ==
          std::count_if(labels.begin(), labels.end(), [](int l) { return l >= 0; }));
    loader.release(batch);
  }
  return all;
}

std::vector<KeptBatch> epoch_of(const ImageSource& source, const LoaderSettings& settings,
                                int threads, int epoch, long first_batch) {
  FakeDevice device;
  Workers workers(threads);
  Loader loader(source, settings, device, workers);
  loader.start_epoch(epoch, first_batch);
  return rest_of_epoch(loader);
}

}  // namespace shakedown::test

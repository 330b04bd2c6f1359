// Writes small valid files for each fuzzer to start from: seeds FOLDER makes FOLDER/image, ...
#include <png.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "resnet/tensor_file.hpp"
#include "tests/support/jpeg.hpp"
#include "training/data/pack.hpp"
#include "training/data/source.hpp"

namespace shakedown::training {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;

constexpr int kWidth = 24, kHeight = 17;

Bytes texture(int channels) {
  Bytes pixels(static_cast<std::size_t>(kWidth * kHeight * channels));
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * i / 7);
  return pixels;
}

void write_file(const fs::path& path, const Bytes& content) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(content.data()),
             static_cast<std::streamsize>(content.size()));
}

/// With an EXIF orientation of 6, in a segment right after the file's first marker.
Bytes jpeg(int channels, const test::JpegLayout& layout) {
  constexpr Bytes::value_type kExif[] = {0xFF, 0xE1, 0, 34, 'E', 'x', 'i', 'f', 0,    0, 'I', 'I',
                                         42,   0,    8, 0,  0,   0,   1,   0,   0x12, 1, 3,   0,
                                         1,    0,    0, 0,  6,   0,   0,   0,   0,    0, 0,   0};
  Bytes file = test::write_jpeg({kWidth, kHeight, texture(channels), channels}, layout);
  file.insert(file.begin() + 2, std::begin(kExif), std::end(kExif));
  return file;
}

Bytes png(int format, int channels) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = kWidth;
  image.height = kHeight;
  image.format = static_cast<png_uint_32>(format);
  Bytes pixels = texture(channels), colors(256 * 4), file(1 << 16);
  if (format & PNG_FORMAT_FLAG_COLORMAP) image.colormap_entries = 256;
  png_alloc_size_t bytes = file.size();
  png_image_write_to_memory(&image, file.data(), &bytes, 0, pixels.data(), 0, colors.data());
  file.resize(bytes);
  return file;
}

void write_seeds(const fs::path& root) {
  const fs::path images = root / "image";
  write_file(images / "rgb.jpg", jpeg(3, {}));
  write_file(images / "restart.jpg", jpeg(3, {.restart_interval = 2}));
  write_file(images / "progressive.jpg", jpeg(3, {.progressive = true}));
  write_file(images / "gray.jpg", jpeg(1, {.gray = true}));
  write_file(images / "cmyk.jpg", jpeg(4, {}));
  write_file(images / "rgb.png", png(PNG_FORMAT_RGB, 3));
  write_file(images / "gray_alpha.png", png(PNG_FORMAT_GA, 2));
  write_file(images / "palette.png", png(PNG_FORMAT_RGB_COLORMAP, 1));

  fs::create_directories(root / "pack");
  for (const char* name : {"a/1.jpg", "a/2.jpg", "b/1.png"})
    write_file(root / "folder" / name, {1, 2, 3});
  write_pack(FolderSource(scan_image_folder(root / "folder")), {"--pack", root / "pack/three"}, 1,
             [](std::size_t) {});

  fs::create_directories(root / "tensor_file");
  write_safetensors({"--save", root / "tensor_file/two"},
                    {{"a", {2, 3}, std::vector<float>(6)}, {"n", {}, {}, {7}}}, {{"key", "value"}});
}

}  // namespace
}  // namespace shakedown::training

int main(int, char** argv) { shakedown::training::write_seeds(argv[1]); }

// Writes small valid files for each fuzzer to start from: seeds FOLDER makes FOLDER/image, ...
#include <cstdio>
// jpeglib.h needs cstdio's FILE
#include <jpeglib.h>
#include <png.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "resnet/tensor_file.hpp"
#include "training/data/image_source.hpp"
#include "training/data/write_pack.hpp"

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

/// With an EXIF orientation of 6.
Bytes jpeg(J_COLOR_SPACE colors, int channels, bool progressive, int restart) {
  constexpr Bytes::value_type kExif[] = {'E', 'x', 'i', 'f', 0, 0,    'I', 'I', 42, 0, 8,
                                         0,   0,   0,   1,   0, 0x12, 1,   3,   0,  1, 0,
                                         0,   0,   6,   0,   0, 0,    0,   0,   0,  0};
  jpeg_compress_struct state{};
  jpeg_error_mgr errors{};
  state.err = jpeg_std_error(&errors);
  jpeg_create_compress(&state);
  unsigned char* memory = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&state, &memory, &bytes);
  state.image_width = kWidth;
  state.image_height = kHeight;
  state.input_components = channels;
  state.in_color_space = colors;
  jpeg_set_defaults(&state);
  if (progressive) jpeg_simple_progression(&state);
  state.restart_interval = static_cast<unsigned>(restart);
  jpeg_start_compress(&state, TRUE);
  jpeg_write_marker(&state, JPEG_APP0 + 1, kExif, sizeof kExif);
  Bytes pixels = texture(channels);
  while (state.next_scanline < state.image_height) {
    JSAMPROW row =
        pixels.data() + static_cast<std::size_t>(kWidth * channels) * state.next_scanline;
    jpeg_write_scanlines(&state, &row, 1);
  }
  jpeg_finish_compress(&state);
  Bytes file(memory, memory + bytes);
  jpeg_destroy_compress(&state);
  free(memory);
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
  write_file(images / "rgb.jpg", jpeg(JCS_RGB, 3, false, 0));
  write_file(images / "restart.jpg", jpeg(JCS_RGB, 3, false, 2));
  write_file(images / "progressive.jpg", jpeg(JCS_RGB, 3, true, 0));
  write_file(images / "gray.jpg", jpeg(JCS_GRAYSCALE, 1, false, 0));
  write_file(images / "cmyk.jpg", jpeg(JCS_CMYK, 4, false, 0));
  write_file(images / "rgb.png", png(PNG_FORMAT_RGB, 3));
  write_file(images / "gray_alpha.png", png(PNG_FORMAT_GA, 2));
  write_file(images / "palette.png", png(PNG_FORMAT_RGB_COLORMAP, 1));

  fs::create_directories(root / "pack");
  for (const char* name : {"a/1.jpg", "a/2.jpg", "b/1.png"})
    write_file(root / "folder" / name, {1, 2, 3});
  write_pack(FolderSource(scan_image_folder(root / "folder")), {"--pack", root / "pack/three"}, 1,
             [](std::size_t) {});

  fs::create_directories(root / "tensor_file");
  write_safetensors(root / "tensor_file/two",
                    {{"a", {2, 3}, std::vector<float>(6), false}, {"n", {}, {7}, true}},
                    {{"key", "value"}});
}

}  // namespace
}  // namespace shakedown::training

int main(int, char** argv) { shakedown::training::write_seeds(argv[1]); }

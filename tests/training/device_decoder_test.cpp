// Headers of JPEG files anywhere; on a GPU its Resizer and its JPEG engines, against the host's.
#include <algorithm>

#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/jpeg.hpp"
#include "training/data/crops.hpp"
#include "training/data/transform.hpp"

using namespace shakedown;
using namespace shakedown::training;
using test::Bytes;
using test::decode_image;
using test::Picture;
using test::textured_image;
using test::write_jpeg;

namespace {

/// The region scaled to size x size by the host's Resizer.
Bytes scaled(Image image, Region region, int size, bool mirror) {
  Bytes out(static_cast<std::size_t>(3 * size * size));
  image.narrow(region);
  Resizer()(image, {size, size}, {0, 0, size, size}, mirror, out);
  return out;
}

double mean_difference(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]);
  return sum / static_cast<double>(a.size());
}

/// A GPU with its decoder: a test that needs it ends where there is none.
struct DecoderRig {
  static constexpr int kSize = 64;

  explicit DecoderRig(int most_images, int size = kSize)
      : device(test::open_device(BackendKind::gpu)),
        stream(device->make_stream()),
        size(size),
        batch(*device, static_cast<std::size_t>(3 * size * size * most_images)) {
    const std::size_t before = device->allocated_bytes();
    decoder = make_device_decoder(*device, {most_images, size}, why_not);
    bytes = device->allocated_bytes() - before;
    if (decoder == nullptr) WARN("no device decoder: " << why_not);
  }
  std::uint8_t* rows() const { return static_cast<std::uint8_t*>(batch.data()); }
  std::vector<Undecoded> decode(std::span<const EncodedImage> images) {
    return decoder->decode(images, rows(), *stream);
  }
  Bytes row(int index) {
    const auto bytes = static_cast<std::size_t>(3 * size * size);
    return download<std::uint8_t>(*device, *stream,
                                  rows() + static_cast<std::size_t>(index) * bytes, bytes);
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  int size;
  Buffer batch;
  std::string why_not;
  std::unique_ptr<DeviceDecoder> decoder;
  std::size_t bytes = 0;  // that the decoder allocated
};

}  // namespace

TEST_CASE("the header of a baseline JPEG gives its size", "[jpeg_header]") {
  const Picture image = textured_image(101, 75, 1);
  const auto is_ours = [&](const Bytes& file) {
    const auto size = baseline_jpeg_size(file);
    return size && size->width == 101 && size->height == 75;
  };
  CHECK(is_ours(write_jpeg(image)));
  CHECK(is_ours(write_jpeg(image, {.gray = true})));
  CHECK(is_ours(write_jpeg(image, {.luma_across = 1, .luma_down = 1})));
  CHECK(is_ours(write_jpeg(image, {.luma_across = 2, .luma_down = 1})));
  CHECK(is_ours(write_jpeg(image, {.luma_across = 1, .luma_down = 2})));
  CHECK(is_ours(write_jpeg(image, {.restart_interval = 4})));
}

TEST_CASE("what engines do not decode as libjpeg has no baseline size", "[jpeg_header]") {
  const Picture image = textured_image(80, 70, 2);
  const Bytes good = write_jpeg(image);
  CHECK_FALSE(baseline_jpeg_size(write_jpeg(image, {.progressive = true})));
  CHECK_FALSE(baseline_jpeg_size(write_jpeg(image, {.luma_across = 4, .luma_down = 1})));
  CHECK_FALSE(baseline_jpeg_size(write_jpeg(image, {.stores_rgb = true})));
  CHECK_FALSE(baseline_jpeg_size(write_jpeg(textured_image(63, 70, 3))));
  CHECK_FALSE(baseline_jpeg_size(Bytes{0x89, 'P', 'N', 'G'}));
  CHECK_FALSE(baseline_jpeg_size(Bytes{}));
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes)  // wherever it is cut off
    if (baseline_jpeg_size(std::span(good).first(bytes))) FAIL("cut off at " << bytes);
  Bytes huge = good;  // a header that claims 65,535 rows
  const std::uint8_t frame[] = {0xFF, 0xC0, 0, 17, 8};
  const auto at = std::search(huge.begin(), huge.end(), std::begin(frame), std::end(frame));
  REQUIRE(at != huge.end());
  at[5] = at[6] = 0xFF;
  CHECK_FALSE(baseline_jpeg_size(huge));
}

CPU_TEST_CASE("without a gpu there is no device decoder, and a reason", "[device_decoder]") {
  const auto device = test::open_device(BackendKind::cpu);
  std::string why_not;
  CHECK(make_device_decoder(*device, {1, 8}, why_not) == nullptr);
  CHECK_THAT(why_not, ContainsSubstring("cpu backend"));
  CHECK(device_decoder_bytes(BackendKind::cpu, {1, 8}) == 0);
}

GPU_TEST_CASE("a device decoder states its memory before it allocates", "[device_decoder]") {
  for (const int images : {1, 256}) {
    DecoderRig rig(images, 224);
    if (rig.decoder == nullptr) return;
    const std::size_t stated = device_decoder_bytes(BackendKind::gpu, {images, 224});
    CHECK(rig.bytes <= stated);
    CHECK(stated <= rig.bytes + (std::size_t{128} << 20));  // nvJPEG's own
  }
}

GPU_TEST_CASE("the GPU scales regions bit for bit as the host", "[device_decoder][sanitize]") {
  const auto device = test::open_device(BackendKind::gpu);
  const auto stream = device->make_stream();
  const int size = GENERATE(1, 31, 224);
  constexpr int kImages = 24;
  const auto resizer = gpu::make_device_resizer(*device, {kImages, size});
  Random random(static_cast<std::uint64_t>(size));
  const auto upto = [&](int most) { return 1 + static_cast<int>(random.below(most)); };
  const auto within = [&](int last) { return static_cast<int>(random.below(last + 1)); };

  std::vector<Picture> images;
  std::vector<Buffer> pixels;
  std::vector<DeviceImage> table;
  for (int i = 0; i < kImages; ++i) {
    const int width = i == 0 ? 3000 : upto(300);
    images.push_back({width, upto(300), {}});
    Picture& image = images.back();
    image.values.resize(static_cast<std::size_t>(3 * width * image.height));
    for (std::uint8_t& value : image.values) value = static_cast<std::uint8_t>(random.next() >> 40);
    Region region{0, 0, upto(width), i % 5 == 1 ? 1 : upto(image.height)};
    if (i % 5 == 2) region.width = 1;
    region.x = within(width - region.width);
    region.y = within(image.height - region.height);
    pixels.push_back(test::to_device(*device, *stream, image.values));
    table.push_back({static_cast<const std::uint8_t*>(pixels.back().data()),
                     static_cast<std::size_t>(3 * width), region, i % 2 == 1, kImages - 1 - i});
  }
  const auto row_bytes = static_cast<std::size_t>(3 * size * size);
  Buffer batch(*device, kImages * row_bytes);
  resizer->enqueue(table, static_cast<std::uint8_t*>(batch.data()), *stream);
  const Bytes out = download<std::uint8_t>(*device, *stream, batch.data(), batch.bytes());
  for (std::size_t i = 0; i < kImages; ++i) {
    const Bytes expected = scaled(image_of(images[i]), table[i].region, size, table[i].mirror);
    const auto row = out.begin() + (static_cast<std::size_t>(table[i].row) * row_bytes);
    CHECK(std::equal(expected.begin(), expected.end(), row));
  }
}

GPU_TEST_CASE("JPEG engines give the host's pixels but for rounding", "[device_decoder]") {
  DecoderRig rig(80);
  if (rig.decoder == nullptr) return;
  struct Case {
    int width, height;
    test::JpegLayout layout;
  };
  const std::vector<Case> kinds{{500, 375, {}},
                                {333, 517, {}},
                                {64, 65, {}},
                                {1501, 999, {}},
                                {200, 150, {.gray = true}},
                                {201, 151, {.luma_across = 1, .luma_down = 1}},
                                {202, 151, {.luma_across = 2, .luma_down = 1}},
                                {203, 155, {.luma_across = 1, .luma_down = 2}},
                                {204, 153, {.restart_interval = 3}}};
  std::vector<Bytes> files;
  for (int i = 0; i < 79; ++i) {  // an odd rest beyond two full calls
    const Case& kind = kinds[static_cast<std::size_t>(i) % kinds.size()];
    files.push_back(write_jpeg(textured_image(kind.width, kind.height, 10 + i), kind.layout));
  }
  for (int round = 0; round < 2; ++round) {  // the second in memory that has been used
    std::vector<EncodedImage> images;
    for (int i = 0; i < 79; ++i) {
      const Bytes& file = files[i];
      REQUIRE(rig.decoder->supports(file));
      const Size size = *baseline_jpeg_size(file);
      images.push_back({file, {5, 7, size.width - 9 - round, size.height - 8}, i % 3 == 0, 79 - i});
    }
    CHECK(rig.decode(images).empty());
    for (const EncodedImage& image : images) {
      const Image decoded = decode_image(image.file);
      const Bytes expected = scaled(decoded, image.region, rig.size, image.mirror);
      INFO(decoded.size().width << " x " << decoded.size().height << ", row " << image.row);
      CHECK(mean_difference(rig.row(image.row), expected) < 2);
    }
  }
}

GPU_TEST_CASE("a corrupt JPEG loses no other of its batch", "[device_decoder]") {
  DecoderRig rig(40);
  if (rig.decoder == nullptr) return;
  std::vector<Bytes> files;
  for (int i = 0; i < 40; ++i) files.push_back(write_jpeg(textured_image(160, 120, 100 + i)));
  // no Huffman table: the segment is called a comment
  const std::uint8_t table[] = {0xFF, 0xC4};
  for (std::size_t i : {3U, 35U}) {
    auto& file = files[i];
    for (auto at = file.begin();; at += 2) {
      at = std::search(at, file.begin() + 620, std::begin(table), std::end(table));
      if (at == file.begin() + 620) break;
      at[1] = 0xFE;
    }
  }
  std::vector<EncodedImage> images;
  for (int i = 0; i < 40; ++i) {
    REQUIRE(rig.decoder->supports(files[i]));
    images.push_back({files[i], {0, 0, 160, 120}, false, i});
  }
  const auto undecoded = rig.decode(images);
  REQUIRE(undecoded.size() == 2);
  CHECK(undecoded[0].row == 3);
  CHECK(undecoded[1].row == 35);
  for (int i : {0, 2, 4, 34, 36, 39}) {
    const Image decoded = decode_image(files[i]);
    CHECK(mean_difference(rig.row(i), scaled(decoded, whole(decoded.size()), rig.size, false)) < 2);
  }
}

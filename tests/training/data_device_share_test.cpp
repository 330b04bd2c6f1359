// From the loader to the device: what a device decoder decodes, and what the device scales.
#include "common/error.hpp"
#include "tests/training/batches_rig.hpp"

namespace shakedown::training {

TEST_CASE("who decodes an image depends on the image alone", "[loader]") {
  if (!test::has(BackendKind::cpu)) SKIP("no cpu backend");
  const Images images(60);
  const LoaderSettings settings = cropping_settings();
  const auto expected = by_the_loader(images.source, settings, 3);
  for (const bool some : {false, true}) {
    CAPTURE(some);
    std::vector<int> decoded;
    for (int threads : {1, 4}) {
      FakeDecoder decoder;
      decoder.some = some;
      BatchesRig rig(images.source, settings, &decoder, threads);
      CHECK(rig.epoch(3) == expected);
      CHECK(rig.batches->times().device_images == decoder.decoded);
      decoded.push_back(decoder.decoded);
    }
    CHECK(decoded[0] == decoded[1]);
    if (!some) CHECK(decoded[0] == 60);
    if (some) CHECK((decoded[0] > 5 && decoded[0] < 55));
  }
}

TEST_CASE("the share that the device decodes is of the images that were read", "[loader]") {
  if (!test::has(BackendKind::cpu)) SKIP("no cpu backend");
  const Images images(60);
  FakeDecoder decoder;
  BatchesRig rig(images.source, cropping_settings(), &decoder);
  rig.batches->start_epoch(0);
  wait_until([&] { return rig.batches->times().images >= 16; });  // read ahead of the first next()
  const InputTimes before = rig.batches->times();
  while (rig.batches->next()) {
  }
  const InputTimes window = rig.batches->times() - before;
  CHECK(window.images > 0);
  CHECK(window.device_images == window.images);
}

TEST_CASE("what the device decoder cannot decode is decoded by the host", "[loader]") {
  if (!test::has(BackendKind::cpu)) SKIP("no cpu backend");
  const Images images(20);
  const Bytes png{0x89, 'P', 'N', 'G'};
  const LoaderSettings settings = cropping_settings();
  const auto expected = by_the_loader(images.source, settings, 0);
  {
    FakeDecoder decoder;
    decoder.refuses = 2;
    BatchesRig rig(images.source, settings, &decoder);
    CHECK(rig.epoch(0) == expected);
    CHECK(decoder.rows == std::set{0, 1, 2, 3});
  }
  {  // which would be the CPU's or the device's by chance
    FakeDecoder decoder;
    decoder.refuses = 2;
    decoder.fails = true;
    BatchesRig rig(images.source, settings, &decoder);
    CHECK_THROWS_AS(rig.epoch(0), InconclusiveError);
    CHECK_THROWS_WITH(rig.epoch(0), ContainsSubstring("image " + images.path + "/") &&
                                        ContainsSubstring("--decoder cpu"));
  }
  // a whole header, and a scan that breaks off
  Bytes broken = encode_jpeg(5);
  std::fill(broken.begin() + static_cast<std::ptrdiff_t>(broken.size() / 2), broken.end() - 2,
            std::uint8_t{0xFF});
  write_bytes(images.files[5], broken);
  FakeDecoder decoder;
  REQUIRE(decoder.supports(broken));
  BatchesRig rig(images.source, settings, &decoder);
  decoder.fails = GENERATE(false, true);  // it is bad in any case
  CHECK_THROWS_AS(rig.epoch(0), UsageError);
  CHECK_THROWS_WITH(rig.epoch(0), ContainsSubstring(images.source.name(5)));
  write_bytes(images.files[5], png);  // not for the device from the start
  CHECK_THROWS_WITH(rig.epoch(0), ContainsSubstring(images.source.name(5)));
  write_bytes(images.files[5], encode_jpeg(5));
  CHECK(rig.epoch(0) == expected);
}

TEST_CASE("crops that the device scales have the host's pixels", "[loader]") {
  if (!test::has(BackendKind::cpu)) SKIP("no cpu backend");
  const Images images(22);
  for (int i = 0; i < 22; i += 4)  // the memory of a batch has no place for all of these
    write_bytes(images.files[static_cast<std::size_t>(i)], encode_jpeg(i, {900, 900}));
  const LoaderSettings settings = cropping_settings();
  const auto expected = by_the_loader(images.source, settings, 3);
  for (const bool decodes : {false, true}) {
    FakeDecoder decoder;
    decoder.some = true;
    decoder.refuses = 2;
    BatchesRig rig(images.source, settings, decodes ? &decoder : nullptr, decodes ? 4 : 1, true);
    CHECK(rig.epoch(3) == expected);
    const int padding = 2;
    CHECK(rig.scaled.squares > padding);
    CHECK(rig.scaled.others > 0);
    CHECK(rig.scaled.squares + rig.scaled.others + decoder.decoded == 22 + padding);
    CHECK(rig.epoch(3, 2) == std::vector<Kept>(expected.begin() + 2, expected.end()));
  }
}

}  // namespace shakedown::training

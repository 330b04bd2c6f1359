// From a folder of images to a stream that computes, with a device and a decoder that tests slow
// down and break: the feeder, its two buffers, stalls, what the device decodes and scales.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "common/error.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/image_files.hpp"
#include "training/data/batches.hpp"
#include "training/data/image.hpp"
#include "training/data/source.hpp"

namespace shakedown::training {
namespace {

using test::Bytes;
using test::KeptBatch;

constexpr int kWidth = 80;
constexpr int kHeight = 72;
constexpr int kSize = 32;
constexpr std::size_t kRowBytes = std::size_t{3} * kSize * kSize;

Bytes encode_jpeg(int number, Size size = {kWidth, kHeight}) {
  test::Picture picture{size.width, size.height, Bytes(rgb_bytes(size))};
  const std::size_t row = rgb_bytes({size.width, 1});
  for (std::size_t i = 0; i < picture.values.size(); ++i)
    picture.values[i] = static_cast<std::uint8_t>(7 * static_cast<std::size_t>(number) +
                                                  3 * (i % row) + 5 * (i / row));
  return test::write_jpeg(picture);
}

/// Different JPEG files in two classes.
struct Images {
  explicit Images(int count) {
    for (int i = 0; i < count; ++i)
      folder.write((i < count / 2 ? "a/" : "b/") + std::to_string(1000 + i) + ".jpg",
                   encode_jpeg(i));
    source = FolderSource(scan_image_folder(folder.path));
  }
  void replace(std::size_t index, const Bytes& content) const {
    folder.write(source.path(index), content);
  }

  test::TempFolder folder;
  FolderSource source{{}};
};

LoaderSettings cropping_settings() {
  LoaderSettings settings;
  settings.batch_size = 4;
  settings.drop_last = false;
  settings.transform = {kSize, Augmentation::resized_crop, true, true};
  return settings;
}

NetworkSettings shape_of(const LoaderSettings& settings) {
  NetworkSettings shape;
  shape.batch_size = settings.batch_size;
  shape.image_size = settings.transform.image_size;
  return shape;
}

/// Work on its streams is done at once, but its events show that only when the test allows it. Each
/// stream has a time of its own, as a device that is slower, or faster, than its host.
class LaggingDevice final : public test::FakeDevice {
 public:
  struct LaggingStream final : public Stream {
    void wait(const Event& event) override {
      now_ms = std::max(now_ms, static_cast<const LaggingEvent&>(event).at_ms());
    }
    void synchronize() override {}
    bool done() const override { return true; }
    double now_ms = 0;
  };
  class LaggingEvent final : public Event {
   public:
    explicit LaggingEvent(LaggingDevice& device) : device_(device) {}
    void record(Stream& stream) override {
      compute_ = &stream == device_.compute;
      at_ms_ = static_cast<LaggingStream&>(stream).now_ms;
    }
    bool done() const override {
      if (!compute_ || !device_.lags) return true;
      ++device_.asked;
      return false;
    }
    void synchronize() const override {}
    double milliseconds_since(const Event& start) const override {
      return at_ms_ - static_cast<const LaggingEvent&>(start).at_ms_;
    }
    double at_ms() const { return at_ms_; }

   private:
    LaggingDevice& device_;
    std::atomic<bool> compute_ = false;  // recorded on the compute stream
    std::atomic<double> at_ms_ = 0;
  };

  std::unique_ptr<Stream> make_stream(StreamPriority) override {
    return std::make_unique<LaggingStream>();
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<LaggingEvent>(*this); }
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    std::memcpy(to, from, bytes);
    ++static_cast<LaggingStream&>(stream).now_ms;
  }

  LaggingStream* compute = nullptr;
  std::atomic<bool> lags = false;  // what the compute stream was given is not done
  std::atomic<int> asked = 0;      // meanwhile
};

/// Decodes as the host does, but for some rows.
class FakeDecoder final : public DeviceDecoder {
 public:
  bool supports(std::span<const std::uint8_t> file) const override {
    return baseline_jpeg_size(file).has_value() && (!some || file.size() % 2 == 0);
  }
  std::vector<Undecoded> decode(std::span<const EncodedImage> images, std::uint8_t* batch,
                                Stream&) override {
    std::vector<Undecoded> undecoded;
    for (const EncodedImage& image : images) {
      const std::span out(batch + static_cast<std::size_t>(image.row) * kRowBytes, kRowBytes);
      rows.insert(image.row);
      ++decoded;
      try {
        if (image.row == refuses) throw UsageError("refused");
        decoder_.open(image.file);
        resize_(decoder_.decode(image.region), {kSize, kSize}, {0, 0, kSize, kSize}, image.mirror,
                out);
      } catch (const UsageError&) {
        std::fill(out.begin(), out.end(), std::uint8_t{0xAA});
        undecoded.push_back({image.row, !fails});
      }
    }
    return undecoded;
  }

  bool some = false;   // supports files of an even number of bytes alone
  int refuses = -1;    // this row of every batch
  bool fails = false;  // where it does not decode, not for what is in the file
  int decoded = 0;
  std::set<int> rows;

 private:
  ImageDecoder decoder_;
  Resizer resize_;
};

/// Scales as the host does.
class HostResizer final : public DeviceResizer {
 public:
  struct Counts {
    std::atomic<int> squares = 0;  // that were scaled before
    std::atomic<int> others = 0;
  };
  explicit HostResizer(Counts& counts) : counts_(counts) {}

  void enqueue(std::span<const DeviceImage> images, std::uint8_t* batch, Stream&) override {
    for (const DeviceImage& image : images) {
      const Size size{image.region.width, image.region.height};
      ENSURE(image.region == whole(size) &&
                 image.pitch * static_cast<std::size_t>(size.height) == rgb_bytes(size),
             "one crop after another");
      ++(size == kSquare ? counts_.squares : counts_.others);
      const test::Picture picture{
          size.width, size.height, {image.rgb, image.rgb + rgb_bytes(size)}};
      resize_(test::image_of(picture), kSquare, whole(kSquare), image.mirror,
              {batch + static_cast<std::size_t>(image.row) * kRowBytes, kRowBytes});
    }
  }
  void wait() override {}

 private:
  static constexpr Size kSquare{kSize, kSize};
  Counts& counts_;
  Resizer resize_;
};

/// Everything between a folder and a stream that computes.
struct BatchesRig {
  BatchesRig(const ImageSource& source, const LoaderSettings& settings,
             FakeDecoder* decoder = nullptr, int threads = 3, bool scales = false)
      : crops(scales ? std::make_unique<DeviceCrops>(
                           device, DeviceDecoderSettings{settings.batch_size, kSize},
                           std::make_unique<HostResizer>(scaled))
                     : nullptr),
        backend(test::open_backend_of(BackendKind::cpu)),
        stream(device.make_stream(StreamPriority::normal)),
        workers(threads),
        loader(source, settings, device, workers, {decoder, crops.get()}),
        rows(static_cast<std::size_t>(settings.batch_size)),
        batches(make_loaded_batches(*backend.world, loader, device, *stream, shape_of(settings))) {
    device.compute = static_cast<LaggingDevice::LaggingStream*>(stream.get());
  }

  KeptBatch keep(const DeviceBatch& batch) const {
    return {{batch.images, batch.images + rows * kRowBytes}, {batch.labels, batch.labels + rows}};
  }
  std::vector<KeptBatch> epoch(int number, long first_batch = 0) {
    std::vector<KeptBatch> kept;
    batches->start_epoch(number, first_batch);
    while (const auto batch = batches->next()) kept.push_back(keep(*batch));
    return kept;
  }

  LaggingDevice device;
  HostResizer::Counts scaled;
  std::unique_ptr<DeviceCrops> crops;
  Backend backend;
  std::unique_ptr<Stream> stream;
  Workers workers;
  Loader loader;
  std::size_t rows;
  std::unique_ptr<BatchSource> batches;
};

template <class Condition>
void wait_until(Condition&& condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    REQUIRE(std::chrono::steady_clock::now() < limit);
    std::this_thread::yield();
  }
}

long resident_bytes() {
  long size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace

// From the loader to the device: the feeder, its two buffers, stalls.

CPU_TEST_CASE("batches come to the device as the loader made them", "[loader]") {
  const Images images(30);
  const LoaderSettings settings = cropping_settings();
  BatchesRig rig(images.source, settings);
  CHECK(rig.device.allocated_bytes() == kLoadedBatchesHeld * batch_bytes(shape_of(settings)));
  CHECK_FALSE(rig.batches->next());
  const auto expected = test::epoch_of(images.source, settings, 1, 1);
  REQUIRE(expected.size() == 8);
  CHECK(rig.epoch(1) == expected);
  CHECK_FALSE(rig.batches->next());
  CHECK(rig.epoch(1, 6) == std::vector<KeptBatch>(expected.begin() + 6, expected.end()));

  const InputTimes before = rig.batches->times();
  rig.batches->start_epoch(0);
  const auto first = rig.batches->next();  // and the rest of this epoch is abandoned
  REQUIRE(first);
  CHECK(rig.epoch(1) == expected);
  const InputTimes times = rig.batches->times() - before;
  CHECK(times.images >= 30);
  CHECK(times.decode_s > 0);
  CHECK(times.open_s > 0);
  CHECK(times.copy_s >= 0.001 * static_cast<double>(expected.size() - 2));
  CHECK(times.device_images == 0);
  rig.batches->start_epoch(2);  // and the source goes with the epoch just begun
}

CPU_TEST_CASE("a buffer is filled only after the compute stream has read it", "[loader]") {
  const Images images(30);
  const LoaderSettings settings = cropping_settings();
  const auto expected = test::epoch_of(images.source, settings, 1, 0);
  BatchesRig rig(images.source, settings);
  rig.batches->start_epoch(0);
  const auto first = rig.batches->next();
  rig.device.lags = true;
  const auto second = rig.batches->next();  // the first may be filled again when it has been read
  REQUIRE((first && second));
  CHECK(first->images != second->images);
  wait_until([&] { return rig.device.asked > 3; });
  CHECK(rig.keep(*first) == expected[0]);
  CHECK(rig.keep(*second) == expected[1]);
  rig.device.lags = false;
  const auto third = rig.batches->next();
  REQUIRE(third);
  CHECK(third->images == first->images);
  CHECK(rig.keep(*third) == expected[2]);
}

CPU_TEST_CASE("a stall is the compute stream's wait for a batch, not its host's", "[loader]") {
  const Images images(30);
  BatchesRig rig(images.source, cropping_settings());
  const auto epoch_stall_ms = [&](double step_ms) {
    const double before = rig.batches->times().stall_s;
    rig.batches->start_epoch(0);
    while (rig.batches->next()) rig.device.compute->now_ms += step_ms;
    return 1e3 * (rig.batches->times().stall_s - before);
  };
  // Each of the 8 batches takes 2 ms on the copy stream: pixels, labels.
  CHECK(epoch_stall_ms(0.5) == Approx(2 + 7 * 1.5));
  CHECK(epoch_stall_ms(5) == Approx(2 - 0.5));  // for the first alone: the host waits for each
  rig.device.compute->now_ms += 1000;           // it has other work, and the host runs ahead
  CHECK(epoch_stall_ms(5) == 0);
  rig.batches->start_epoch(0);
  CHECK(rig.batches->next());
  const double before = rig.batches->times().stall_s;
  rig.device.compute->now_ms = 0;
  CHECK(rig.batches->next());
  rig.device.lags = true;  // it has not come so far
  CHECK(rig.batches->times().stall_s == before);
  rig.device.lags = false;
  CHECK(rig.batches->times().stall_s > before);
  rig.device.lags = true;  // a window begins there
  rig.batches->drop_pending_stall();
  rig.device.lags = false;
  CHECK(rig.batches->times().stall_s == before);
}

CPU_TEST_CASE("a device that never finishes ends the wait for its buffers", "[loader]") {
  const Images images(30);
  test::session().set_timeout(0.1);
  BatchesRig rig(images.source, cropping_settings());
  test::session().set_timeout(60);
  rig.batches->start_epoch(0);
  CHECK(rig.batches->next());
  rig.device.lags = true;
  CHECK(rig.batches->next());
  CHECK_THROWS_AS(rig.batches->next(), TimeoutError);
  // the feeder still waits: the source ends all the same
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
CPU_TEST_CASE("a thousand batches leave no memory behind", "[loader]") {
  const Images images(64);
  const LoaderSettings settings = cropping_settings();
  FakeDecoder decoder;
  decoder.some = true;
  BatchesRig rig(images.source, settings, &decoder);
  const auto take = [&](int batches) {
    for (int epoch = 0, taken = 0; taken < batches; ++epoch) {
      rig.batches->start_epoch(epoch);
      while (rig.batches->next()) ++taken;
    }
  };
  take(200);
  const long before = resident_bytes();
  take(1000);
  CHECK(resident_bytes() - before < 1 << 20);  // 16 KB of pixels in each of 4,000 images
}
#endif

// From the loader to the device: what a device decoder decodes, and what the device scales.

CPU_TEST_CASE("who decodes an image depends on the image alone", "[loader]") {
  const Images images(60);
  const LoaderSettings settings = cropping_settings();
  const auto expected = test::epoch_of(images.source, settings, 1, 3);
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

CPU_TEST_CASE("the share that the device decodes is of the images that were read", "[loader]") {
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

CPU_TEST_CASE("what the device decoder cannot decode is decoded by the host", "[loader]") {
  const Images images(20);
  const Bytes png{0x89, 'P', 'N', 'G'};
  const LoaderSettings settings = cropping_settings();
  const auto expected = test::epoch_of(images.source, settings, 1, 0);
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
    CHECK_ERROR(InconclusiveError, rig.epoch(0),
                ContainsSubstring("image " + images.folder.path + "/") &&
                    ContainsSubstring("--decoder cpu"));
  }
  // a whole header, and a scan that breaks off
  Bytes broken = encode_jpeg(5);
  std::fill(broken.begin() + (broken.size() / 2), broken.end() - 2, std::uint8_t{0xFF});
  images.replace(5, broken);
  FakeDecoder decoder;
  REQUIRE(decoder.supports(broken));
  BatchesRig rig(images.source, settings, &decoder);
  decoder.fails = GENERATE(false, true);  // it is bad in any case
  CHECK_ERROR(UsageError, rig.epoch(0), ContainsSubstring(images.source.name(5)));
  images.replace(5, png);  // not for the device from the start
  CHECK_THROWS_WITH(rig.epoch(0), ContainsSubstring(images.source.name(5)));
  images.replace(5, encode_jpeg(5));
  CHECK(rig.epoch(0) == expected);
}

CPU_TEST_CASE("crops that the device scales have the host's pixels", "[loader]") {
  const Images images(22);
  for (int i = 0; i < 22; i += 4)  // the memory of a batch has no place for all of these
    images.replace(static_cast<std::size_t>(i), encode_jpeg(i, {900, 900}));
  const LoaderSettings settings = cropping_settings();
  const auto expected = test::epoch_of(images.source, settings, 1, 3);
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
    CHECK(rig.epoch(3, 2) == std::vector<KeptBatch>(expected.begin() + 2, expected.end()));
  }
}

}  // namespace shakedown::training

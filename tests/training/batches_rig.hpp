// Everything between a folder of images and a stream that computes, with a device and a decoder
// that tests slow down and break.
#pragma once

#include <stdlib.h>  // NOLINT: mkdtemp is POSIX, not in cstdlib

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "common/error.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/jpeg.hpp"
#include "training/data/batches.hpp"
#include "training/data/codecs.hpp"
#include "training/data/image.hpp"
#include "training/data/source.hpp"

namespace shakedown::training {

using test::Bytes;

inline constexpr int kWidth = 80;
inline constexpr int kHeight = 72;
inline constexpr int kSize = 32;
inline constexpr std::size_t kRowBytes = std::size_t{3} * kSize * kSize;

inline Bytes encode_jpeg(int number, Size size = {kWidth, kHeight}) {
  test::Picture picture{size.width, size.height, Bytes(rgb_bytes(size))};
  const std::size_t row = rgb_bytes({size.width, 1});
  for (std::size_t i = 0; i < picture.values.size(); ++i)
    picture.values[i] = static_cast<std::uint8_t>(7 * static_cast<std::size_t>(number) +
                                                  3 * (i % row) + 5 * (i / row));
  return test::write_jpeg(picture);
}

inline void write_bytes(const std::string& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

/// Different JPEG files in two classes.
struct Images {
  explicit Images(int count) {
    REQUIRE(mkdtemp(path.data()) != nullptr);
    for (int i = 0; i < count; ++i) {
      const std::string folder = path + (i < count / 2 ? "/a" : "/b");
      std::filesystem::create_directories(folder);
      files.push_back(folder + "/" + std::to_string(1000 + i) + ".jpg");
      write_bytes(files.back(), encode_jpeg(i));
    }
    source = FolderSource(scan_image_folder(path));
  }
  ~Images() { std::filesystem::remove_all(path); }
  Images(const Images&) = delete;
  Images& operator=(const Images&) = delete;

  std::string path = "/tmp/shakedown_feed_XXXXXX";
  std::vector<std::string> files;  // by index
  FolderSource source{{}};
};

inline LoaderSettings cropping_settings() {
  LoaderSettings settings;
  settings.batch_size = 4;
  settings.drop_last = false;
  settings.transform = {kSize, Augmentation::resized_crop, true, true};
  return settings;
}

inline NetworkSettings shape_of(const LoaderSettings& settings) {
  NetworkSettings shape;
  shape.batch_size = settings.batch_size;
  shape.image_size = settings.transform.image_size;
  return shape;
}

/// Work on its streams is done at once, but its events show that only when the test allows it. Each
/// stream has a time of its own, as a device that is slower, or faster, than its host.
class LaggingDevice final : public Device {
 public:
  struct LaggingStream final : public Stream {
    void wait(const Event& event) override {
      now_ms = std::max(now_ms, static_cast<const LaggingEvent&>(event).at_ms());
    }
    void synchronize() override {}
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

  BackendKind kind() const override { return BackendKind::cpu; }
  DeviceIdentity identity() const override { return {}; }
  MemoryInfo memory() const override { return {}; }
  const Kernels& kernels() const override { throw InternalError("no kernels"); }
  std::unique_ptr<Stream> make_stream(StreamPriority) override {
    return std::make_unique<LaggingStream>();
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<LaggingEvent>(*this); }
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    std::memcpy(to, from, bytes);
    ++static_cast<LaggingStream&>(stream).now_ms;
  }
  void zero(void* to, std::size_t bytes, Stream&) override { std::memset(to, 0, bytes); }

  LaggingStream* compute = nullptr;
  std::atomic<bool> lags = false;  // what the compute stream was given is not done
  std::atomic<int> asked = 0;      // meanwhile

 protected:
  void* allocate(std::size_t bytes, Place) override {
    return std::memset(::operator new(bytes), 0xEE, bytes);  // nothing starts as zero by chance
  }
  void release(void* memory, Place) noexcept override { ::operator delete(memory); }
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

struct Kept {
  Bytes images;
  std::vector<std::int32_t> labels;
  bool operator==(const Kept&) const = default;
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

  Kept keep(const DeviceBatch& batch) const {
    return {{batch.images, batch.images + rows * kRowBytes}, {batch.labels, batch.labels + rows}};
  }
  std::vector<Kept> epoch(int number, long first_batch = 0) {
    std::vector<Kept> kept;
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

inline std::vector<Kept> by_the_loader(const ImageSource& source, const LoaderSettings& settings,
                                       int epoch) {
  LaggingDevice device;
  Workers workers(1);
  Loader loader(source, settings, device, workers);
  std::vector<Kept> kept;
  loader.start_epoch(epoch);
  while (const Batch* batch = loader.next()) {
    kept.push_back({{batch->images.begin(), batch->images.end()},
                    {batch->labels.begin(), batch->labels.end()}});
    loader.release(batch);
  }
  return kept;
}

template <class Condition>
void wait_until(Condition&& condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    REQUIRE(std::chrono::steady_clock::now() < limit);
    std::this_thread::yield();
  }
}

}  // namespace shakedown::training

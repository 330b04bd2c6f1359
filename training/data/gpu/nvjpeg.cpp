// nvJPEG, opened at run time: a build needs neither its header nor a node its library.

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/ensure.hpp"
#include "common/gpu/native.hpp"
#include "common/usage_error.hpp"
#include "training/data/crops.hpp"
#include "training/data/gpu/resize.hpp"

namespace shakedown::gpu {
namespace {

/// The few declarations of nvjpeg.h that are used, the same in CUDA 11 to 13.
struct Nvjpeg {
  struct Image {
    unsigned char* channel[4];
    std::size_t pitch[4];
  };
  using Handle = void*;  // thread-safe
  using State = void*;   // of one thread at a time
  /// A handle or a state that nvJPEG destroys.
  using Owned = std::unique_ptr<void, int (*)(void*)>;

  // nvjpegStatus_t
  static constexpr int kSuccess = 0;
  // Those that blame the library or the machine.
  static constexpr int kNotInitialized = 1;
  static constexpr int kAllocatorFailure = 5;
  static constexpr int kArchMismatch = 7;
  // Those that blame the image.
  static constexpr int kBadJpeg = 3;
  static constexpr int kJpegNotSupported = 4;
  static constexpr int kImplementationNotSupported = 9;
  static constexpr int kIncompleteBitstream = 10;

  static constexpr int kHardware = 3;              // nvjpegBackend_t
  static constexpr unsigned kStrictBitstream = 4;  // an incomplete file is an error, not grey
  static constexpr int kInterleavedRgb = 5;        // nvjpegOutputFormat_t
  static constexpr int kFullChroma = 0;            // nvjpegChromaSubsampling_t

  int (*create)(int backend, void* device_allocator, void* pinned_allocator, unsigned flags,
                Handle* handle) = nullptr;
  int (*destroy)(Handle) = nullptr;
  int (*hardware_info)(Handle, unsigned* engines, unsigned* cores_per_engine) = nullptr;
  int (*create_state)(Handle, State*) = nullptr;
  int (*destroy_state)(State) = nullptr;
  int (*preallocate)(Handle, State, int batch, int width, int height, int subsampling,
                     int output_format) = nullptr;
  int (*initialize)(Handle, State, int batch, int cpu_threads, int output_format) = nullptr;
  int (*decode)(Handle, State, const unsigned char* const* files, const std::size_t* bytes,
                Image* to, cudaStream_t stream) = nullptr;

  std::shared_ptr<void> keeps_loaded;

  /// The library of this CUDA release; null with the reason where it cannot be had.
  static std::shared_ptr<const Nvjpeg> open(std::string& why_not) {
    const std::string name = fmt::format("libnvjpeg.so.{}", CUDART_VERSION / 1000);
    void* const opened = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) {
      why_not = fmt::format("{} of the CUDA toolkit cannot be loaded ({})", name, dlerror());
      return nullptr;
    }
    auto library = std::make_shared<Nvjpeg>();
    library->keeps_loaded = std::shared_ptr<void>(opened, dlclose);
    const char* missing = nullptr;
    const auto load = [&]<class Function>(Function*& function, const char* symbol) {
      function = reinterpret_cast<Function*>(dlsym(opened, symbol));
      if (function == nullptr) missing = symbol;
    };
    load(library->create, "nvjpegCreateEx");
    load(library->destroy, "nvjpegDestroy");
    load(library->hardware_info, "nvjpegGetHardwareDecoderInfo");
    load(library->create_state, "nvjpegJpegStateCreate");
    load(library->destroy_state, "nvjpegJpegStateDestroy");
    load(library->preallocate, "nvjpegDecodeBatchedPreAllocate");
    load(library->initialize, "nvjpegDecodeBatchedInitialize");
    load(library->decode, "nvjpegDecodeBatched");
    if (missing == nullptr) return library;
    why_not = fmt::format("{} is too old: it lacks {}", name, missing);
    return nullptr;
  }
};

// Decoding on the GPU's JPEG engines, through nvJPEG.

/// What became of a picture: `refused` for its content, always; `failed` may pass.
enum class Decoding { failed, refused, decoded };

/// A file and the device memory for its pixels, which gives each row `pitch` bytes.
struct EnginePicture {
  std::span<const std::uint8_t> file;
  training::Size size;
  std::uint8_t* rgb;
  std::size_t pitch;
  Decoding result = Decoding::failed;
};

// Measured on an H200, 7 engines of one core, 500x375 pixels: of 7, 16, 32 and 64 pictures a call,
// two decoders are fastest with 32 (19,700 images/s).
constexpr int kWidth = 32;
constexpr int kEnginesOfWidth = 7;
constexpr int kAttempts = 8;  // of a picture alone
// nvJPEG's own memory is allocated for such pictures at first, and grows where it must.
constexpr int kUsualSide = 512;

void check(int status, const char* expression, int line) {
  if (status == Nvjpeg::kAllocatorFailure) throw OutOfMemory("out of GPU memory: nvJPEG");
  if (status != Nvjpeg::kSuccess)
    throw_library_error("nvJPEG", expression, __FILE__, line, fmt::format("status {}", status));
}
#define CHECK_NVJPEG(expression) check((expression), #expression, __LINE__)

/// The status, unless it blames the machine: then it throws.
int checked(int status) {
  for (int fatal : {Nvjpeg::kNotInitialized, Nvjpeg::kAllocatorFailure, Nvjpeg::kArchMismatch})
    if (status == fatal) check(status, "decoding", __LINE__);
  return status;
}

bool blames_image(int status) {
  return status == Nvjpeg::kBadJpeg || status == Nvjpeg::kJpegNotSupported ||
         status == Nvjpeg::kImplementationNotSupported || status == Nvjpeg::kIncompleteBitstream;
}

Nvjpeg::Owned open_hardware(const Nvjpeg& library, std::string& why_not) {
  Nvjpeg::Handle handle = nullptr;
  int status = Nvjpeg::kSuccess;
  for (unsigned flags : {Nvjpeg::kStrictBitstream, 0U}) {  // the first is CUDA 12's
    status = library.create(Nvjpeg::kHardware, nullptr, nullptr, flags, &handle);
    if (status == Nvjpeg::kSuccess) return {handle, library.destroy};
  }
  why_not = status == Nvjpeg::kArchMismatch
                ? "this GPU has no JPEG engines"
                : fmt::format("nvJPEG opens no JPEG engines (status {})", status);
  return {nullptr, library.destroy};
}

/// nvJPEG with the hardware backend, which has engines.
class JpegEngines {
 public:
  /// Null with the reason where the machine has none or nvJPEG cannot be had.
  static std::unique_ptr<JpegEngines> open(std::string& why_not) {
    std::shared_ptr<const Nvjpeg> library = Nvjpeg::open(why_not);
    if (library == nullptr) return nullptr;
    Nvjpeg::Owned handle = open_hardware(*library, why_not);
    if (handle == nullptr) return nullptr;
    unsigned engines = 0;
    unsigned cores = 0;
    const int status = library->hardware_info(handle.get(), &engines, &cores);
    if (status != Nvjpeg::kSuccess || engines == 0) {
      why_not = fmt::format("this GPU has no JPEG engines (nvJPEG: status {}, {} engines)", status,
                            engines);
      return nullptr;
    }
    const int at_once = static_cast<int>(engines * std::max(cores, 1U));
    const int width = at_once < kEnginesOfWidth ? at_once : kWidth;
    return std::unique_ptr<JpegEngines>(
        new JpegEngines(std::move(library), std::move(handle), width));
  }

  /// Device memory that nvJPEG allocates for one decoder of usual pictures, at most: of each the
  /// planes that an engine writes and what is made of them, in RGB.
  static std::size_t decoder_bytes() {
    return std::size_t{kWidth} * 2 * 3 * kUsualSide * kUsualSide;
  }
  /// Pictures that one call should decode.
  int width() const { return width_; }
  const Nvjpeg& library() const { return *library_; }
  Nvjpeg::Handle handle() const { return handle_.get(); }

 private:
  JpegEngines(std::shared_ptr<const Nvjpeg> library, Nvjpeg::Owned handle, int width)
      : library_(std::move(library)), handle_(std::move(handle)), width_(width) {}

  std::shared_ptr<const Nvjpeg> library_;
  Nvjpeg::Owned handle_;
  int width_;
};

Nvjpeg::Owned make_state(const JpegEngines& engines) {
  Nvjpeg::State state = nullptr;
  CHECK_NVJPEG(engines.library().create_state(engines.handle(), &state));
  return {state, engines.library().destroy_state};
}

/// One decoder of nvJPEG with its stream. One thread at a time.
class EngineDecoder {
 public:
  /// `engines` must outlive it.
  EngineDecoder(Device& device, const JpegEngines& engines)
      : engines_(engines),
        state_(make_state(engines)),
        // nvJPEG's kernels are short, and the engines wait for them.
        stream_(device.make_stream(StreamPriority::high)),
        written_(device, static_cast<std::size_t>(engines.width()), Place::host) {
    static_assert(kWidth <= MarkedImages::kMost);
    // nvJPEG does without where it refuses
    checked(engines.library().preallocate(engines.handle(), state_.get(), engines.width(),
                                          kUsualSide, kUsualSide, Nvjpeg::kFullChroma,
                                          Nvjpeg::kInterleavedRgb));
  }
  ~EngineDecoder() { cudaStreamSynchronize(native(*stream_)); }
  EngineDecoder(const EngineDecoder&) = delete;
  EngineDecoder& operator=(const EngineDecoder&) = delete;

  /// Decodes at most width() pictures and sets the result of each. Returns when the pixels of those
  /// that are decoded are written.
  void decode(std::span<EnginePicture> pictures) {
    attempt(pictures);
    // One bad picture fails the call, and engines have been seen to skip others.
    for (std::size_t i = 0; i < pictures.size(); ++i)
      for (int alone = 0; alone < kAttempts && pictures[i].result == Decoding::failed; ++alone)
        attempt(pictures.subspan(i, 1));
  }

 private:
  void attempt(std::span<EnginePicture> pictures) {
    const int status = submit(pictures);
    const bool refused = pictures.size() == 1 && blames_image(status);
    const auto* const written = static_cast<const std::uint8_t*>(written_.data());
    for (std::size_t i = 0; i < pictures.size(); ++i) {
      const bool decoded = status == Nvjpeg::kSuccess && written[i] == 1;
      pictures[i].result = decoded   ? Decoding::decoded
                           : refused ? Decoding::refused
                                     : Decoding::failed;
    }
  }

  /// One call of nvJPEG, and its status. `written_` is set when it returns.
  int submit(std::span<const EnginePicture> pictures) {
    const Nvjpeg& library = engines_.library();
    const int count = static_cast<int>(pictures.size());
    const cudaStream_t stream = native(*stream_);
    MarkedImages marked{};
    files_.clear();
    bytes_.clear();
    images_.clear();
    for (const EnginePicture& picture : pictures) {
      marked.image[files_.size()] = {picture.rgb, picture.pitch, picture.size.width,
                                     picture.size.height};
      files_.push_back(picture.file.data());
      bytes_.push_back(picture.file.size());
      images_.push_back({{picture.rgb}, {picture.pitch}});
    }
    // Always width() pictures, the first one again and again, so that one initialize() does.
    const auto width = static_cast<std::size_t>(engines_.width());
    files_.resize(width, files_.front());
    bytes_.resize(width, bytes_.front());
    images_.resize(width, images_.front());
    // A success means that the call was accepted, not that every picture was decoded.
    mark_images(marked, count, stream);
    if (!std::exchange(initialized_, true))
      CHECK_NVJPEG(library.initialize(engines_.handle(), state_.get(), engines_.width(), 1,
                                      Nvjpeg::kInterleavedRgb));
    const int status = checked(library.decode(engines_.handle(), state_.get(), files_.data(),
                                              bytes_.data(), images_.data(), stream));
    if (status != Nvjpeg::kSuccess) initialized_ = false;  // a failed batch resets the state
    check_marks(marked, count, static_cast<std::uint8_t*>(written_.data()), stream);
    done_.record(stream);
    done_.wait();
    return status;
  }

  const JpegEngines& engines_;
  Nvjpeg::Owned state_;
  std::unique_ptr<Stream> stream_;
  IdleEvent done_;
  Buffer written_;  // a byte per picture, in pinned memory
  bool initialized_ = false;
  std::vector<const unsigned char*> files_;
  std::vector<std::size_t> bytes_;
  std::vector<Nvjpeg::Image> images_;
};

// The GPU's DeviceDecoder: JPEG engines fill the pixel memory, a kernel scales from it.

using training::DeviceImage;
using training::EncodedImage;
using training::Undecoded;

// Measured on an H200 with 7 engines, images/s at 500x375: one decoder 18,400 at its best width,
// two 19,700, four to eight 12,000 to 16,000.
constexpr std::size_t kDecoders = 2;
constexpr std::size_t kUsualImage = 768 << 10;  // bytes of pixels: 500x375 has 563,000

std::size_t align(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }
std::size_t pitch_of(training::Size size) {
  return align(3 * static_cast<std::size_t>(size.width), 64);
}
std::size_t pixel_bytes(training::Size size) {
  return align(pitch_of(size) * static_cast<std::size_t>(size.height), 256);
}
/// Of the largest image: of this many pixels with the longest padding of a row.
std::size_t most_pixel_bytes() {
  return align(3 * static_cast<std::size_t>(training::kMostDevicePixels) + 64 * 16384, 256);
}
/// Of a batch of usual images, and of any one.
std::size_t pixel_bytes_of(const training::DeviceDecoderSettings& settings) {
  return std::max(most_pixel_bytes(), static_cast<std::size_t>(settings.most_images) * kUsualImage);
}

class NvjpegDecoder final : public training::DeviceDecoder {
 public:
  NvjpegDecoder(Device& device, const training::DeviceDecoderSettings& settings,
                std::unique_ptr<JpegEngines> engines)
      : device_(device),
        most_images_(static_cast<std::size_t>(settings.most_images)),
        engines_(std::move(engines)),
        pixels_(device, pixel_bytes_of(settings)),
        resizer_(make_device_resizer(device, settings)) {
    for (auto& decoder : decoders_) decoder = std::make_unique<EngineDecoder>(device, *engines_);
  }

  bool supports(std::span<const std::uint8_t> file) const override {
    return size_of(file).has_value();
  }

  std::vector<Undecoded> decode(std::span<const EncodedImage> images, std::uint8_t* batch,
                                Stream& stream) override {
    ENSURE(images.size() <= most_images_, "images of a batch");
    std::vector<Undecoded> undecoded;
    while (!images.empty()) {
      resizer_->wait();  // until the pixels were read
      place(images);
      decode_placed();
      scale(images.first(pictures_.size()), batch, stream, undecoded);
      images = images.subspan(pictures_.size());
    }
    std::sort(undecoded.begin(), undecoded.end(),
              [](const Undecoded& a, const Undecoded& b) { return a.row < b.row; });
    return undecoded;
  }

 private:
  static std::optional<training::Size> size_of(std::span<const std::uint8_t> file) {
    const auto size = training::baseline_jpeg_size(file);
    const bool fits =
        size && std::int64_t{size->width} * size->height <= training::kMostDevicePixels;
    return fits ? size : std::nullopt;
  }

  /// Gives memory to this many of the images, from the first on, until it is full.
  void place(std::span<const EncodedImage> images) {
    pictures_.clear();
    std::size_t used = 0;
    for (const EncodedImage& image : images) {
      const auto size = size_of(image.file);
      ENSURE(size, "an image that the decoder supports");
      const auto& [x, y, width, height] = image.region;
      ENSURE(x >= 0 && y >= 0 && width > 0 && height > 0 && x + width <= size->width &&
                 y + height <= size->height,
             "a region of the image");
      const std::size_t needed = pixel_bytes(*size);
      if (used + needed > pixels_.bytes()) return;
      pictures_.push_back(
          {image.file, *size, static_cast<std::uint8_t*>(pixels_.data()) + used, pitch_of(*size)});
      used += needed;
    }
  }

  /// Both decoders fetch parts of the pictures until none is left: to the same pixels.
  void decode_placed() {
    const std::span<EnginePicture> pictures = pictures_;
    const auto width = static_cast<std::size_t>(engines_->width());
    std::atomic<std::size_t> next{0};
    const auto work = [&](EngineDecoder& decoder) {
      device_.use_on_this_thread();
      for (std::size_t begin; (begin = next.fetch_add(width)) < pictures.size();)
        decoder.decode(pictures.subspan(begin, std::min(width, pictures.size() - begin)));
    };
    std::future<void> others[kDecoders - 1];
    for (std::size_t d = 1; d < kDecoders; ++d)
      others[d - 1] = std::async(std::launch::async, work, std::ref(*decoders_[d]));
    work(*decoders_[0]);
    for (std::future<void>& other : others) other.get();
  }

  void scale(std::span<const EncodedImage> images, std::uint8_t* batch, Stream& stream,
             std::vector<Undecoded>& undecoded) {
    decoded_.clear();
    for (std::size_t i = 0; i < images.size(); ++i) {
      const EnginePicture& picture = pictures_[i];
      if (picture.result == Decoding::decoded)
        decoded_.push_back(
            {picture.rgb, picture.pitch, images[i].region, images[i].mirror, images[i].row});
      else
        undecoded.push_back({images[i].row, picture.result == Decoding::refused});
    }
    resizer_->enqueue(decoded_, batch, stream);
  }

  Device& device_;
  std::size_t most_images_;
  std::unique_ptr<JpegEngines> engines_;
  std::array<std::unique_ptr<EngineDecoder>, kDecoders> decoders_;
  Buffer pixels_;
  std::unique_ptr<training::DeviceResizer> resizer_;
  std::vector<EnginePicture> pictures_;
  std::vector<DeviceImage> decoded_;
};

}  // namespace

std::size_t device_decoder_bytes(const training::DeviceDecoderSettings& settings) {
  return pixel_bytes_of(settings) + device_resizer_bytes(settings) +
         kDecoders * JpegEngines::decoder_bytes();
}

std::unique_ptr<training::DeviceDecoder> make_device_decoder(
    Device& device, const training::DeviceDecoderSettings& settings, std::string& why_not) {
  std::unique_ptr<JpegEngines> engines = JpegEngines::open(why_not);
  if (engines == nullptr) return nullptr;
  return std::make_unique<NvjpegDecoder>(device, settings, std::move(engines));
}

}  // namespace shakedown::gpu

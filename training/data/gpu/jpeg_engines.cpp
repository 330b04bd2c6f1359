#include "training/data/gpu/jpeg_engines.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/error.hpp"
#include "common/gpu/native.hpp"
#include "training/data/gpu/resize.hpp"

namespace shakedown::gpu {
namespace {

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

Nvjpeg::Owned make_state(const JpegEngines& engines) {
  Nvjpeg::State state = nullptr;
  CHECK_NVJPEG(engines.library().create_state(engines.handle(), &state));
  return {state, engines.library().destroy_state};
}

}  // namespace

/// Of each picture the planes that an engine writes and what is made of them, in RGB.
std::size_t JpegEngines::decoder_bytes() {
  return std::size_t{kWidth} * 2 * 3 * kUsualSide * kUsualSide;
}

std::unique_ptr<JpegEngines> JpegEngines::open(std::string& why_not) {
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

EngineDecoder::EngineDecoder(Device& device, const JpegEngines& engines)
    : engines_(engines),
      state_(make_state(engines)),
      // nvJPEG's kernels are short, and the engines wait for them.
      stream_(device.make_stream(StreamPriority::high)),
      written_(device, static_cast<std::size_t>(engines.width()), Place::host) {
  static_assert(kWidth <= MarkedImages::kMost);
  // nvJPEG does without where it refuses
  checked(engines.library().preallocate(engines.handle(), state_.get(), engines.width(), kUsualSide,
                                        kUsualSide, Nvjpeg::kFullChroma, Nvjpeg::kInterleavedRgb));
}

EngineDecoder::~EngineDecoder() { cudaStreamSynchronize(native(*stream_)); }

void EngineDecoder::decode(std::span<EnginePicture> pictures) {
  attempt(pictures);
  // One bad picture fails the call, and engines have been seen to skip others.
  for (std::size_t i = 0; i < pictures.size(); ++i)
    for (int alone = 0; alone < kAttempts && pictures[i].result == Decoding::failed; ++alone)
      attempt(pictures.subspan(i, 1));
}

void EngineDecoder::attempt(std::span<EnginePicture> pictures) {
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
int EngineDecoder::submit(std::span<const EnginePicture> pictures) {
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

}  // namespace shakedown::gpu

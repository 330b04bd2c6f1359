#include "training/data/gpu/nvjpeg.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace shakedown::gpu {

std::shared_ptr<const Nvjpeg> Nvjpeg::open(std::string& why_not) {
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

}  // namespace shakedown::gpu

#include "tests/faulty/gpu/device.hpp"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

// The kernels, as nvcc made them: FAULTY_KERNELS is the file's path.
asm(".pushsection .rodata\n"
    ".balign 16\n"
    "faulty_kernels:\n"
    ".incbin \"" FAULTY_KERNELS
    "\"\n"
    ".byte 0\n"
    ".popsection\n");
extern "C" __attribute__((visibility("hidden"))) const unsigned char faulty_kernels[];

namespace shakedown::faulty {
namespace {

[[noreturn]] void give_up(const std::string& what) {
  std::fprintf(stderr, "libfaulty.so: %s\n", what.c_str());
  _exit(2);
}

struct Search {
  const char* library;
  std::string path;
};
int look_at(dl_phdr_info* object, std::size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  if (object->dlpi_name == nullptr || std::strstr(object->dlpi_name, search.library) == nullptr)
    return 0;
  search.path = object->dlpi_name;
  return 1;
}

template <class Function>
Function of_driver(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void* const found = library == nullptr ? nullptr : dlsym(library, name);
  if (found == nullptr) give_up(std::string("libcuda.so.1 has no ") + name);
  return reinterpret_cast<Function>(found);
}
// cuda.h's names are macros for names with versions.
#define NAME_OF_IT(name) #name
#define NAME_OF(name) NAME_OF_IT(name)
#define DRIVER(name) of_driver<decltype(&name)>(NAME_OF(name))

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  DRIVER(cuGetErrorString)(result, &text);
  give_up(std::string(what) + ": " + (text == nullptr ? "unknown error" : text));
}
#define CHECK_DRIVER(name, ...)                            \
  do {                                                     \
    static const auto function_of_driver = DRIVER(name);   \
    check(function_of_driver(__VA_ARGS__), NAME_OF(name)); \
  } while (false)

/// Allocations may be made while a graph is captured.
class Relaxed {
 public:
  Relaxed() { CHECK_DRIVER(cuThreadExchangeStreamCaptureMode, &mode_); }
  ~Relaxed() { DRIVER(cuThreadExchangeStreamCaptureMode)(&mode_); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

struct Contexts {
  std::mutex mutex;
  std::map<CUcontext, Context*> known;
  std::vector<Counts*> published;
};
Contexts& contexts() {
  static auto* const all = new Contexts;  // used until the process is gone
  return *all;
}
std::atomic<std::uint64_t> host_flips{0};

int attribute(CUdevice_attribute which, CUdevice device) {
  int value = 0;
  CHECK_DRIVER(cuDeviceGetAttribute, &value, which, device);
  return value;
}

}  // namespace

void* next_function(const char* name, const char* library) {
  if (void* const found = dlsym(RTLD_NEXT, name)) return found;
  // It may have been loaded for another library alone (dlopen without RTLD_GLOBAL).
  Search search{library, ""};
  dl_iterate_phdr(look_at, &search);
  void* const handle =
      search.path.empty() ? nullptr : dlopen(search.path.c_str(), RTLD_NOLOAD | RTLD_LAZY);
  void* const found = handle == nullptr ? nullptr : dlsym(handle, name);
  if (found == nullptr) give_up(std::string("no library has ") + name);
  return found;
}

bool is_on_device(const void* data) {
  static const auto get = DRIVER(cuPointerGetAttribute);
  unsigned type = CU_MEMORYTYPE_HOST;
  const auto at = reinterpret_cast<CUdeviceptr>(data);
  return get(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at) == CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_DEVICE;
}

Context* Context::current() {
  static const auto get = DRIVER(cuCtxGetCurrent);
  CUcontext context = nullptr;
  if (get(&context) != CUDA_SUCCESS || context == nullptr) return nullptr;
  const std::lock_guard lock(contexts().mutex);
  Context*& known = contexts().known[context];
  if (known == nullptr) {
    known = new Context;
    contexts().published.push_back(known->published_);
  }
  return known;
}

Counts Context::counts() {
  const std::lock_guard lock(contexts().mutex);
  Counts sum{};
  for (const Counts* of_one : contexts().published) {
    Counts one{};
    std::memcpy(&one, of_one, sizeof(one));
    sum.products += one.products;
    sum.wrong_products += one.wrong_products;
    sum.flips += one.flips;
    sum.copies += one.copies;
    sum.collectives += one.collectives;
    if (!sum.first.is_set()) sum.first = one.first;
  }
  sum.flips += host_flips;
  return sum;
}

void Context::add_host_flips(std::uint64_t flips) { host_flips += flips; }

CUfunction Context::function(const char* name, int shared_bytes) {
  CUfunction found = nullptr;
  CHECK_DRIVER(cuModuleGetFunction, &found, module_, name);
  if (shared_bytes > 0)
    CHECK_DRIVER(cuFuncSetAttribute, found, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                 shared_bytes);
  return found;
}

Context::Context() {
  const Relaxed relaxed;
  CUdevice device = 0;
  CHECK_DRIVER(cuCtxGetDevice, &device);
  sms_ = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  // More than half of what an SM has: one block each.
  shared_bytes_ = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device) * 7 / 8;
  CHECK_DRIVER(cuDeviceTotalMem, &memory_bytes_, device);
  CHECK_DRIVER(cuModuleLoadData, &module_, faulty_kernels);
  stand_in_ = function("faulty_stand_in", shared_bytes_);
  flip_ = function("faulty_flip");
  end_ = function("faulty_end");
  force_ = function("faulty_force");
  words_ = function("faulty_words");
  CHECK_DRIVER(cuStreamCreate, &side_, CU_STREAM_NON_BLOCKING);
  CHECK_DRIVER(cuMemAlloc, &state_, sizeof(State));
  CHECK_DRIVER(cuMemsetD8Async, state_, 0, sizeof(State), side_);
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t bytes = (sizeof(Counts) + page - 1) / page * page;
  void* const memory = std::aligned_alloc(page, bytes);
  if (memory == nullptr) give_up("no memory");
  std::memset(memory, 0, bytes);
  published_ = static_cast<Counts*>(memory);
  CHECK_DRIVER(cuMemHostRegister, memory, bytes,
               CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  CHECK_DRIVER(cuMemHostGetDevicePointer, &published_on_device_, memory, 0);
  launch(stand_in_, kBlocks, 32, static_cast<unsigned>(shared_bytes_), side_,
         state_ + offsetof(State, fixed));
  wait_for_own_stream();
}

void Context::wait_for_own_stream() { CHECK_DRIVER(cuStreamSynchronize, side_); }

template <class... Arguments>
void Context::launch(CUfunction kernel, unsigned blocks, unsigned threads, unsigned shared_bytes,
                     CUstream stream, Arguments... arguments) {
  void* pointers[] = {static_cast<void*>(&arguments)...};
  CHECK_DRIVER(cuLaunchKernel, kernel, blocks, 1, 1, threads, 1, 1, shared_bytes, stream, pointers,
               nullptr);
}

void Context::flip(const ProductFault& fault, const Result& c, CUstream stream) {
  const std::int64_t blocks = c.blocks(fault);
  if (blocks == 0) return;
  if (fault.q > 0)
    launch(stand_in_, static_cast<unsigned>(std::min<std::int64_t>(blocks, sms_)), 32,
           static_cast<unsigned>(shared_bytes_), stream, state_ + offsetof(State, moving));
  launch(flip_, static_cast<unsigned>(blocks), 256, 0, stream, fault, c, sms_, state_);
}

void Context::force(unsigned char* cell, const CellFault& fault, CUstream stream) {
  launch(force_, 1, 1, 0, stream, cell, fault.bit, fault.stuck, state_);
}

void Context::flip_words(void* data, std::uint64_t words, std::uint64_t count, std::uint64_t seed,
                         std::uint64_t flip, CUstream stream) {
  constexpr std::uint64_t kMost = 1024;
  if (words == 0 || count == 0) return;
  launch(words_, 1, static_cast<unsigned>(std::min(count, kMost)), 0, stream, data, words, seed,
         flip, state_);
}

void Context::end(Operation operation, CUstream stream) {
  launch(end_, 1, 1, 0, stream, static_cast<int>(operation), state_, published_on_device_);
}

}  // namespace shakedown::faulty

// A context of the process and the kernels of libfaulty.so in it. By the driver's functions alone,
// found at run time: a tool may have any version of the CUDA runtime, or have it linked statically.
#pragma once

#include <cuda.h>

#include <vector>

#include "tests/faulty/gpu/kernels.hpp"
#include "tests/faulty/model.hpp"

namespace shakedown::faulty {

/// The function of this name that the process would call without us: of the libraries loaded after
/// ours, or of one whose file has `library` in its name. Ends the process where there is none.
void* next_function(const char* name, const char* library);

/// Device memory at this address; false for the host's, whether registered or not.
bool is_on_device(const void* data);

/// Functions enqueue on the stream, after what the caller has enqueued; in the capture of a graph,
/// too.
class Context {
 public:
  /// Of the thread. Null before there is one.
  static Context* current();
  /// Sums of all contexts, and flips of the host's memory.
  static Counts counts();
  static void add_host_flips(std::uint64_t flips);

  void flip(const ProductFault& fault, const Result& c, CUstream stream);
  void force(unsigned char* cell, const CellFault& fault, CUstream stream);
  void flip_words(void* data, std::uint64_t words, std::uint64_t count, std::uint64_t seed,
                  std::uint64_t flip, CUstream stream);
  void end(Operation operation, CUstream stream);

  std::size_t memory_bytes() const { return memory_bytes_; }
  /// Nobody else uses it.
  CUstream own_stream() const { return side_; }
  void wait_for_own_stream();

 private:
  explicit Context();
  template <class... Arguments>
  void launch(CUfunction kernel, unsigned blocks, unsigned threads, unsigned shared_bytes,
              CUstream stream, Arguments... arguments);
  CUfunction function(const char* name, int shared_bytes = 0);

  CUmodule module_ = nullptr;
  CUfunction stand_in_, flip_, end_, force_, words_;
  CUstream side_ = nullptr;
  CUdeviceptr state_ = 0, published_on_device_ = 0;
  Counts* published_ = nullptr;  // memory of ours, which outlives the driver
  int sms_ = 0, shared_bytes_ = 0;
  std::size_t memory_bytes_ = 0;
};

}  // namespace shakedown::faulty

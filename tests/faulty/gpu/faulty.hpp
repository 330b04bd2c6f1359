// What the wrapped functions of libfaulty.so call around the real ones.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>

#include "tests/faulty/gpu/device.hpp"

namespace shakedown::faulty {

/// A call that calls others which are wrapped too: the outermost one counts.
class Outermost {
 public:
  Outermost() : is_(depth()++ == 0) {}
  ~Outermost() { --depth(); }
  Outermost(const Outermost&) = delete;
  Outermost& operator=(const Outermost&) = delete;
  explicit operator bool() const { return is_; }

 private:
  static int& depth() {
    thread_local int depth = 0;
    return depth;
  }
  bool is_;
};

/// A batch of results of the same shape; strides of the batch in bytes.
struct Product {
  Result first;
  std::size_t a_step = 0, b_step = 0, c_step = 0;
  int batch = 1;
  unsigned type = 0;  // bit of ProductFault::types
};

void before_product(CUstream stream);
/// Null: it failed. Nothing is wrong, but SMs are held until then.
void after_product(const Product* product, CUstream stream);
/// `stream`: none where the copy has ended.
void after_copy(void* to, const void* from, std::size_t bytes, const CUstream* stream);
void after_collective(const std::string& operation, void* received, std::size_t bytes,
                      CUstream stream);
void allocated(void* memory, std::size_t bytes);
void freed(void* memory);

}  // namespace shakedown::faulty

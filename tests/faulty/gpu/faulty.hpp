// What the wrapped functions of libfaulty.so call around the real ones.
#pragma once

#include <cuda.h>

#include <cstddef>

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

struct Product {
  Result result;
  unsigned type = 0;  // bit of ProductFault::types
};

void after_product(const Product& product, CUstream stream);
/// `stream`: none where the copy has ended.
void after_copy(void* to, const void* from, std::size_t bytes, const CUstream* stream);
void after_all_reduce(void* received, std::size_t bytes, CUstream stream);
void allocated(void* memory, std::size_t bytes);
void freed(void* memory);

}  // namespace shakedown::faulty

// The rates that a device reaches with random data, measured on the spot: what calls and layers are
// compared with. Activations with many zeros draw less power: a call may exceed the matrix rate.
#pragma once

#include <cstddef>

namespace shakedown {

struct Roofs {
  double copy_gbs = 0;         // 10^9 bytes/s, read and written, of a copy within device memory
  std::size_t copy_bytes = 0;  // that were copied
  double matrix_tflops = 0;    // 10^12/s of a square matrix product in the network's precision
  int matrix_size = 0;
};

}  // namespace shakedown

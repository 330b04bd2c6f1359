// The stem's max-pooling, 3x3, stride 2, padding 1, of a vector of channels: what its two kernels
// that pool share, and its two that go back.
#pragma once

#include "resnet/gpu/passes.cuh"

namespace shakedown::gpu {

// Channels are compared as z, two at a time where a register holds two: the norm is monotonic, so
// the largest value comes from the largest z, or where gamma is negative from the smallest, which
// is the largest with its sign bit turned. A NaN is larger than any number, as in PyTorch; its
// place may be any later one, as all gradients of its channel are NaN.
template <class T>
struct Lanes;
template <>
struct Lanes<float> {
  static constexpr int kCount = 1;
  static constexpr unsigned kSign = 0x80000000U;
  static constexpr unsigned kLowest = 0xFF800000U;  // -infinity
  __device__ static unsigned larger(unsigned a, unsigned b) {
    const float value = __uint_as_float(a);
    return value > __uint_as_float(b) || isnan(value) ? a : b;
  }
  __device__ static unsigned differ(unsigned a, unsigned b) { return a != b ? ~0U : 0U; }
  __device__ static unsigned equal(unsigned a, unsigned b) { return a == b ? ~0U : 0U; }
  __device__ static unsigned add(unsigned a, unsigned b) {
    return __float_as_uint(__uint_as_float(a) + __uint_as_float(b));
  }
  __device__ static float at(unsigned x, int /*lane*/) { return __uint_as_float(x); }
  /// A small number in each lane.
  __device__ static constexpr unsigned number(int x) { return static_cast<unsigned>(x); }
  /// Of a vector's bytes, those of word j, one in each lane.
  __device__ static unsigned numbers(const Vector<unsigned, 1>& bytes, int j) {
    return bytes.x[0] >> (8 * j) & 0xFFU;
  }
};
template <class Pair>
struct PairLanes {
  static constexpr int kCount = 2;
  static constexpr unsigned kSign = 0x8000U;
  __device__ static unsigned larger(unsigned a, unsigned b) {
    const Pair most = __hmax2_nan(pair_of(a), pair_of(b));
    unsigned bits = 0;
    memcpy(&bits, &most, sizeof(bits));
    return bits;
  }
  /// All bits of a lane where a and b differ, and where one is NaN.
  __device__ static unsigned differ(unsigned a, unsigned b) {
    return __hneu2_mask(pair_of(a), pair_of(b));
  }
  /// Of two small numbers, which are as good as their bits taken for a float16.
  __device__ static unsigned equal(unsigned a, unsigned b) {
    return __heq2_mask(PairLanes<__half2>::pair_of(a), PairLanes<__half2>::pair_of(b));
  }
  __device__ static unsigned add(unsigned a, unsigned b) {
    const Pair sum = __hadd2(pair_of(a), pair_of(b));
    unsigned bits = 0;
    memcpy(&bits, &sum, sizeof(bits));
    return bits;
  }
  __device__ static float at(unsigned x, int lane) {
    return to_float(lane == 0 ? pair_of(x).x : pair_of(x).y);
  }
  __device__ static constexpr unsigned number(int x) { return static_cast<unsigned>(x) * 0x10001U; }
  __device__ static unsigned numbers(const Vector<unsigned, 2>& bytes, int j) {
    return __byte_perm(bytes.x[j / 2], 0, j % 2 == 0 ? 0x4140 : 0x4342);
  }
  __device__ static Pair pair_of(unsigned bits) {
    Pair pair;
    memcpy(&pair, &bits, sizeof(pair));
    return pair;
  }
};
template <>
struct Lanes<__half> : PairLanes<__half2> {
  static constexpr unsigned kLowest = 0xFC00FC00U;
};
template <>
struct Lanes<__nv_bfloat16> : PairLanes<__nv_bfloat162> {
  static constexpr unsigned kLowest = 0xFF80FF80U;
};

/// One byte per element of a vector of T.
template <class T>
using Bytes = Vector<std::uint8_t, vector_width<T>>;

/// One access to global memory, which the compiler does not make of every store of a Vector.
__device__ inline void store_words(void* to, const Vector<unsigned, 4>& words) {
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(words.x[0]), "r"(words.x[1]),
               "r"(words.x[2]), "r"(words.x[3])
               : "memory");
}

/// The sign bits to turn in a vector of channels: of those whose gamma is negative.
template <class T>
struct TurnedSigns {
  unsigned x[4];

  __device__ static TurnedSigns of(const float (&gamma)[vector_width<T>]) {
    constexpr int L = Lanes<T>::kCount;
    TurnedSigns turned;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      turned.x[j] = 0;
#pragma unroll
      for (int l = 0; l < L; ++l)
        if (gamma[j * L + l] < 0) turned.x[j] |= Lanes<T>::kSign << (16 * l);
    }
    return turned;
  }
  __device__ Vector<unsigned, 4> turn(Vector<unsigned, 4> z) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) z.x[j] ^= x[j];
    return z;
  }
};

/// The largest of a window's nine vectors, channel by channel, and its place.
template <class T>
struct WindowMaximum {
  static constexpr int V = vector_width<T>;
  static constexpr int L = Lanes<T>::kCount;
  using Words = Vector<unsigned, 4>;  // a vector of T
  Words best = lowest();
  Words where{{~0U, ~0U, ~0U, ~0U}};

  __device__ static Words lowest() {
    constexpr unsigned x = Lanes<T>::kLowest;
    return {{x, x, x, x}};
  }
  /// Of z with its signs turned.
  __device__ void take(int place, const Words& z) {
    const unsigned number = Lanes<T>::number(place);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const unsigned larger = Lanes<T>::larger(z.x[j], best.x[j]);
      const unsigned changed = Lanes<T>::differ(larger, best.x[j]);
      best.x[j] = larger;
      where.x[j] = (changed & number) | (~changed & where.x[j]);
    }
  }
  __device__ void store(T* peak, std::uint8_t* argmax, const TurnedSigns<T>& turned) const {
    Bytes<T> place;
#pragma unroll
    for (int v = 0; v < V; ++v)
      place.x[v] = static_cast<std::uint8_t>(where.x[v / L] >> (16 * (v % L)));
    store_words(peak, turned.turn(best));
    place.store(argmax);
  }
};

/// dz of the 2x2 vectors of z at (2h, 2w), which lie in the windows (h, w) to (h + 1, w + 1) and in
/// no other: window p covers the rows 2p - 1 to 2p + 1.
template <class T>
struct PatchGradient {
  static constexpr int V = vector_width<T>;
  static constexpr int L = Lanes<T>::kCount;
  // All as words: the compiler would take smaller elements apart as soon as they are loaded, and
  // wait for them there.
  using Words = Vector<unsigned, 4>;       // a vector of T
  using Places = Vector<unsigned, V / 4>;  // argmax of one
  Words dsum[4];                           // of the four windows
  Places where[4];
  Words z[4];

  __device__ void load_window(int w, const T* dsums, const std::uint8_t* argmax, bool exists) {
    dsum[w] = Words::load(reinterpret_cast<const unsigned*>(dsums));
    where[w] = Places::load(reinterpret_cast<const unsigned*>(argmax));
#pragma unroll
    for (unsigned& places : where[w].x)
      if (!exists) places = ~0U;  // nowhere
  }
  __device__ void load_z(int k, const T* from) {
    z[k] = Words::load(reinterpret_cast<const unsigned*>(from));
  }

  __device__ void make(const NormDerivative<V>& d, Pack<T> (&dz)[4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      unsigned place[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) place[w] = Lanes<T>::numbers(where[w], j);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        unsigned sum = 0;
#pragma unroll
        for (int w = 0; w < 4; ++w) {  // the element's place in window w, where it lies in it
          const int row = 1 + k / 2 - 2 * (w / 2);
          const int column = 1 + k % 2 - 2 * (w % 2);
          if (row < 0 || column < 0) continue;
          const unsigned mine =
              dsum[w].x[j] & Lanes<T>::equal(place[w], Lanes<T>::number(3 * row + column));
          sum = w == 0 ? mine : Lanes<T>::add(sum, mine);
        }
#pragma unroll
        for (int l = 0; l < L; ++l) {
          const int v = L * j + l;
          dz[k].x[v] = from_float<T>(d.a[v] * Lanes<T>::at(sum, l) +
                                     (d.b[v] * Lanes<T>::at(z[k].x[j], l) + d.c[v]));
        }
      }
    }
  }
};

}  // namespace shakedown::gpu

// The kernels of libfaulty.so: loaded as a module, by name.
#include "tests/faulty/gpu/kernels.hpp"

namespace {

using namespace shakedown::faulty;

__device__ std::uint32_t this_sm() {
  std::uint32_t sm = 0;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  return sm;
}

__device__ void add(std::uint64_t* count, std::uint64_t more) {
  atomicAdd(reinterpret_cast<unsigned long long*>(count), static_cast<unsigned long long>(more));
}

}  // namespace

extern "C" {

/// A grid in the product's place: with its shared memory one block per SM, as those have, which
/// stays until the others have theirs. Notes the SM of each block.
__global__ void faulty_stand_in(std::uint32_t* sm_of_block) {
  extern __shared__ unsigned char room[];
  if (threadIdx.x != 0) return;
  room[0] = 1;
  sm_of_block[blockIdx.x] = this_sm();
  __nanosleep(4000);
}

/// Block b of this grid makes wrong what block b of the product computed, if that is in the fault's
/// unit, by where the blocks of a stand-in grid were at the start; with q of one after the product,
/// which has no block on an SM that is held.
__global__ void faulty_flip(ProductFault fault, Result c, int sms, State* state) {
  const std::int64_t blocks = c.blocks(fault);
  const auto block = static_cast<std::int64_t>(blockIdx.x);
  const std::int64_t shift = shift_of(fault, state->counts.products, sms);
  const auto sm =
      static_cast<int>(fault.q > 0 ? state->moving[(block + shift) % (blocks < sms ? blocks : sms)]
                                   : state->fixed[block % kBlocks]);
  int faulty_sm = sm_of(fault, blocks, sms);  // drawn: the index of a block of the first wave
  if (fault.sm == kDrawn) faulty_sm = static_cast<int>(state->fixed[faulty_sm]);
  if (faulty_sm != kAny && faulty_sm != sm) return;
  if (!fires(fault, state->counts.products)) return;
  __shared__ unsigned flips;
  if (threadIdx.x == 0) flips = 0;
  __syncthreads();
  const std::int64_t top = block / c.across(fault) * fault.block_rows;
  const std::int64_t left = block % c.across(fault) * fault.block_columns;
  for (int i = static_cast<int>(threadIdx.x); i < fault.block_rows * fault.block_columns;
       i += static_cast<int>(blockDim.x)) {
    const std::int64_t row = top + i % fault.block_rows;
    const std::int64_t column = left + i / fault.block_rows;
    if (row >= c.rows || column >= c.columns || !in_unit(fault, row, column)) continue;
    const Strike made = strike(fault, c, row, column);
    if (!made.changed) continue;
    atomicAdd(&flips, 1U);
    if (state->first_claimed == 0 && atomicCAS(&state->first_claimed, 0U, 1U) == 0)
      state->counts.first = {
          state->counts.products, made.right,          made.wrong, row, column, sm,
          warp_of(row, fault),    lane_of(row, column)};
  }
  __syncthreads();
  if (threadIdx.x == 0 && flips > 0) add(&state->counts.flips, flips);
}

/// After an operation and its faults. `published`: host memory.
__global__ void faulty_end(int operation, State* state, Counts* published) {
  Counts& counts = state->counts;
  switch (static_cast<Operation>(operation)) {
    case Operation::product:
      if (counts.flips > state->flips_before) ++counts.wrong_products;
      ++counts.products;
      break;
    case Operation::copy: ++counts.copies; break;
    case Operation::collective: ++counts.collectives; break;
  }
  state->flips_before = counts.flips;
  *published = counts;
}

/// A cell that is stuck.
__global__ void faulty_force(unsigned char* cell, int bit, int stuck, State* state) {
  const unsigned char right = *cell;
  const auto mask = static_cast<unsigned char>(1U << bit);
  const auto forced = static_cast<unsigned char>(
      stuck != 0 ? right | mask : right & static_cast<unsigned char>(~mask));
  if (forced == right) return;
  *cell = forced;
  add(&state->counts.flips, 1);
}

/// Thread i: one word of 8 bytes, which the seed chooses.
__global__ void faulty_words(unsigned char* data, std::uint64_t words, std::uint64_t seed,
                             std::uint64_t flip, State* state) {
  const std::uint64_t word = shakedown::number_format::hash(seed, threadIdx.x) % words;
  unsigned char* const at = data + 8 * word;
  const std::uint64_t wrong = load_bits(at, 8) ^ flip;
  for (int i = 0; i < 8; ++i) at[i] = static_cast<unsigned char>(wrong >> (8 * i));
  add(&state->counts.flips, 1);
}
}

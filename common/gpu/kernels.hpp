#pragma once

#include "common/kernels.hpp"

namespace shakedown::gpu {

class CudaKernels final : public Kernels {
 public:
  void fill(View x, double value, Stream& stream) const override;
  void convert(ConstView from, View to, Stream& stream) const override;
  void accumulate(View sum, ConstView x, bool first, Stream& stream) const override;
  void scale(ConstView from, View to, float factor, Stream& stream) const override;
  void gather_chunks(View to, ConstView from, const std::int64_t* sources,
                     Stream& stream) const override;
  void check_finite(ConstView x, std::int32_t* finite, Stream& stream) const override;
  void add_bit_hash(ConstView x, std::uint64_t* hash, Stream& stream) const override;
  void stamp(View x, const Stamps& stamps, std::uint32_t contributor,
             Stream& stream) const override;
  void check_stamps(ConstView x, const Stamps& stamps, StampErrors* errors,
                    Stream& stream) const override;
  void occupy_link(DuplexTime* free_at, DuplexTime needed, Stream& stream) const override;
};

}  // namespace shakedown::gpu

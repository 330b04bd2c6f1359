#include "resnet/gpu/convolution.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace shakedown::gpu {

Convolution::Convolution(GpuContext& context, ConvKind kind, const NormedConv& layer)
    : context_(context),
      kind_(kind),
      conv_(layer.conv),
      work_{work_name(kind), layer.weight,
            context.bytes_of(conv_.x) + context.bytes_of(conv_.y()) +
                static_cast<double>(conv_.weight_count() * size_of(context.type)),
            conv_.flop()},
      choice_(context.tuner.choice(kind, conv_)) {
  if (!exists() && kind != ConvKind::forward_with_sums)
    throw UsageError(fmt::format(
        "cuDNN has no {} convolution in {} for {} x {} x {} x {}, {} filters {}x{}, stride {}: try "
        "another --precision, --batch-size or --image-size",
        name_of(kind), name_of(context.precision), conv_.x.n, conv_.x.c, conv_.x.h, conv_.x.w,
        conv_.k, conv_.kernel, conv_.kernel, conv_.stride));
}

std::size_t Convolution::workspace_bytes() const {
  std::size_t most = 0;
  for (const auto& plan : choice_.candidates) most = std::max(most, plan->workspace_bytes());
  return most;
}

void Convolution::bind(const ConvBuffers& buffers, void* workspace) {
  if (!choice_.chosen) tune(buffers, workspace);
  bound_.emplace(choice_.candidates.at(*choice_.chosen), buffers, workspace);
}

void Convolution::tune(const ConvBuffers& buffers, void* workspace) {
  // zeros would run faster than data do
  if (kind_ != ConvKind::backward_data)
    randomise(buffers.x, conv_.x.count(), context_.type, context_.cuda_stream);
  if (kind_ == ConvKind::backward_data || kind_ == ConvKind::backward_weights)
    randomise(buffers.y, conv_.y().count(), context_.type, context_.cuda_stream);
  context_.tuner.choose(choice_, buffers, workspace);
}

void Convolution::run() const {
  context_.log.run(work_, [&] { bound_->execute(context_.dnn.get); });
}

}  // namespace shakedown::gpu

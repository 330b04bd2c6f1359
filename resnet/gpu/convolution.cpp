#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "common/gpu/check.hpp"
#include "resnet/gpu/units.hpp"

namespace shakedown::gpu {
namespace {

constexpr int kCandidates = 8;  // timing more gains 0.3 % at most (measured over all shapes)
constexpr std::size_t kWorkspaceShare = 32;  // of the device's memory: a workspace takes no more

}  // namespace

ConvChoice& Shared::choice(ConvKind kind, const ConvShape& c) {
  const auto [entry, fresh] =
      choices_.try_emplace(Key{kind, c.x.n, c.x.c, c.x.h, c.x.w, c.k, c.kernel, c.stride, c.pad});
  ConvChoice& choice = entry->second;
  if (!fresh) return choice;
  choice.candidates =
      plan_convolution(dnn.get, kind, c, context.precision, context.deterministic, kCandidates);
  const auto by_workspace = [](const auto& a, const auto& b) {
    return a->workspace_bytes() < b->workspace_bytes();
  };
  const auto leanest =
      *std::min_element(choice.candidates.begin(), choice.candidates.end(), by_workspace);
  const std::size_t limit = context.device.memory().total_bytes / kWorkspaceShare;
  std::erase_if(choice.candidates, [&](const auto& plan) {
    return plan->workspace_bytes() > limit && plan != leanest;
  });
  // timings differ from run to run, and another algorithm rounds otherwise
  if (!context.autotune || context.deterministic) choice.candidates.resize(1);
  if (choice.candidates.size() == 1) choice.chosen = 0;
  return choice;
}

Convolution::Convolution(Shared& shared, ConvKind kind, const ConvShape& conv)
    : shared_(shared), kind_(kind), conv_(conv), choice_(shared.choice(kind, conv)) {}

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
    randomise(buffers.x, conv_.x.count(), shared_.type, shared_.stream);
  if (kind_ != ConvKind::forward)
    randomise(buffers.y, conv_.y().count(), shared_.type, shared_.stream);

  Device& device = shared_.context.device;
  const auto start = device.make_event();
  const auto end = device.make_event();
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < choice_.candidates.size(); ++i) {
    const BoundPlan plan(choice_.candidates[i], buffers, workspace);
    double fastest = std::numeric_limits<double>::infinity();
    for (int run = 0; run < 4; ++run) {  // the first loads the kernels
      start->record(shared_.context.stream);
      plan.execute(shared_.dnn.get);
      end->record(shared_.context.stream);
      end->synchronize();
      if (run > 0) fastest = std::min(fastest, end->milliseconds_since(*start));
    }
    if (fastest >= best) continue;
    best = fastest;
    choice_.chosen = i;
  }
}

void Convolution::run() const { bound_->execute(shared_.dnn.get); }

}  // namespace shakedown::gpu

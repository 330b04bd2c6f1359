#include <fmt/format.h>

#include "common/identity.hpp"
#include "resnet/gpu/units.hpp"

namespace shakedown::gpu {
namespace {

constexpr int kCandidates = 8;  // timing more gains 0.3 % at most (measured over all shapes)
constexpr std::size_t kWorkspaceShare = 32;  // of the device's memory: a workspace takes no more

const char* work_name(ConvKind kind) {
  switch (kind) {
    case ConvKind::forward: return "conv_forward";
    case ConvKind::forward_with_sums: return "conv_forward_sums";
    case ConvKind::backward_data: return "conv_backward_data";
    case ConvKind::backward_weights: return "conv_backward_weights";
  }
  return "";
}

constexpr const char* kTogether = "together";
constexpr const char* kApart = "apart";

/// Without the ones that ask for a lot of workspace, as long as there are others.
void drop_hungry(ConvPlans& plans, std::size_t limit) {
  const auto by_workspace = [](const auto& a, const auto& b) {
    return a->workspace_bytes() < b->workspace_bytes();
  };
  const auto leanest = *std::min_element(plans.begin(), plans.end(), by_workspace);
  std::erase_if(
      plans, [&](const auto& plan) { return plan->workspace_bytes() > limit && plan != leanest; });
}

}  // namespace

Shared::Shared(const UnitContext& context)
    : context(context),
      type(compute_type(context.precision)),
      stream(native(context.stream)),
      dnn(stream),
      blas(context.device, stream),
      cache(context.tuning.autotune && !context.tuning.deterministic ? context.tuning.cache : "",
            fmt::format("{}, cuDNN {}, CUDA {}", context.device.identity().model, cudnnGetVersion(),
                        CUDART_VERSION),
            git_revision()) {}

ConvChoice& Shared::choice(ConvKind kind, const ConvShape& c) {
  const auto [entry, fresh] =
      choices_.try_emplace(Key{kind, c.x.n, c.x.c, c.x.h, c.x.w, c.k, c.kernel, c.stride, c.pad});
  ConvChoice& choice = entry->second;
  if (!fresh) return choice;
  choice.key = key(kind, c);
  const bool times = context.tuning.autotune && !context.tuning.deterministic;
  PlanQuery query{kind, c, context.precision, context.tuning.deterministic, times ? kCandidates : 1,
                  ""};
  if (const auto known = cache.find(choice.key)) {
    query.name = *known;
    choice.candidates = plan_convolution(dnn.get, query);
    query.name.clear();
  }
  if (choice.candidates.empty()) choice.candidates = plan_convolution(dnn.get, query);
  if (choice.candidates.empty()) return choice;
  drop_hungry(choice.candidates, context.device.memory().total_bytes / kWorkspaceShare);
  // timings differ from run to run, and another algorithm rounds otherwise
  if (!times) choice.candidates.resize(1);
  if (choice.candidates.size() == 1) choice.chosen = 0;
  return choice;
}

std::string Shared::key(ConvKind kind, const ConvShape& conv) const {
  return fmt::format("{} {} n{} c{} h{} w{} k{} r{} stride{} pad{}", work_name(kind),
                     name_of(context.precision), conv.x.n, conv.x.c, conv.x.h, conv.x.w, conv.k,
                     conv.kernel, conv.stride, conv.pad);
}

bool Shared::may_fuse(Fusion form, const std::string& key) const {
  const Tuning& tuning = context.tuning;
  if (tuning.takes(form)) return true;
  return tuning.fusion == Fusion::automatic && tuning.autotune && !tuning.deterministic &&
         verdict(key).value_or(true);
}

std::optional<bool> Shared::verdict(const std::string& key) const {
  const auto known = cache.find(key);
  if (!known) return std::nullopt;
  return *known == kTogether;
}

void Shared::keep_verdict(const std::string& key, bool together) {
  cache.keep(key, together ? kTogether : kApart);
}

Convolution::Convolution(Shared& shared, ConvKind kind, const NormedConv& layer)
    : shared_(shared),
      kind_(kind),
      conv_(layer.conv),
      work_{work_name(kind), layer.weight,
            shared.bytes_of(conv_.x) + shared.bytes_of(conv_.y()) +
                static_cast<double>(conv_.weight_count() * size_of(shared.type)),
            conv_.flop()},
      choice_(shared.choice(kind, conv_)) {
  if (!exists() && kind != ConvKind::forward_with_sums)
    throw UsageError(fmt::format(
        "cuDNN has no {} convolution in {} for {} x {} x {} x {}, {} filters {}x{}, stride {}: try "
        "another --precision, --batch-size or --image-size",
        name_of(kind), name_of(shared.context.precision), conv_.x.n, conv_.x.c, conv_.x.h,
        conv_.x.w, conv_.k, conv_.kernel, conv_.kernel, conv_.stride));
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
    randomise(buffers.x, conv_.x.count(), shared_.type, shared_.stream);
  if (kind_ == ConvKind::backward_data || kind_ == ConvKind::backward_weights)
    randomise(buffers.y, conv_.y().count(), shared_.type, shared_.stream);

  double fastest = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < choice_.candidates.size(); ++i) {
    const BoundPlan plan(choice_.candidates[i], buffers, workspace);
    const double ms = shared_.time([&] { plan.execute(shared_.dnn.get); });
    if (ms >= fastest) continue;
    fastest = ms;
    choice_.chosen = i;
  }
  shared_.cache.keep(choice_.key, choice_.candidates[*choice_.chosen]->name());
}

void Convolution::run() const {
  shared_.context.log.run(work_, [&] { bound_->execute(shared_.dnn.get); });
}

}  // namespace shakedown::gpu

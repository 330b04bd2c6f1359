#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "common/identity.hpp"
#include "resnet/gpu/units.hpp"
#include "resnet/verdict.hpp"

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

constexpr const char* kFused = "fused";
constexpr const char* kUnfused = "unfused";
constexpr int kRounds = 9;  // of a fused kernel and several, interleaved

/// Those with a large workspace, unless there are no others.
void drop_large_workspaces(ConvPlans& plans, std::size_t limit) {
  const auto by_workspace = [](const auto& a, const auto& b) {
    return a->workspace_bytes() < b->workspace_bytes();
  };
  const auto smallest = *std::min_element(plans.begin(), plans.end(), by_workspace);
  std::erase_if(
      plans, [&](const auto& plan) { return plan->workspace_bytes() > limit && plan != smallest; });
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
            git_revision()),
      start_(context.device.make_event()),
      end_(context.device.make_event()) {}

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
  drop_large_workspaces(choice.candidates, context.device.memory().total_bytes / kWorkspaceShare);
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
  return *known == kFused;
}

void Shared::keep_verdict(const std::string& key, bool fused) {
  cache.keep(key, fused ? kFused : kUnfused);
}

bool Shared::fuses(const std::string& key, const std::function<void()>& randomise_inputs,
                   const std::function<void()>& fused, const std::function<void()>& unfused) {
  if (context.tuning.fusion != Fusion::automatic) return true;
  if (const std::optional<bool> known = verdict(key)) return *known;
  randomise_inputs();
  fused();  // the first run of each loads its kernels
  unfused();
  std::vector<double> fused_ms;
  std::vector<double> unfused_ms;
  for (int round = 0; round < kRounds; ++round) {
    // each is first as often: the first finds the caches as the other left them
    if (round % 2 == 0) fused_ms.push_back(time_once(fused));
    unfused_ms.push_back(time_once(unfused));
    if (round % 2 != 0) fused_ms.push_back(time_once(fused));
  }
  const bool preferred = prefers_fused(fused_ms, unfused_ms);
  keep_verdict(key, preferred);
  return preferred;
}

double Shared::time_once(const std::function<void()>& body) {
  constexpr double kShortestPause_us = 100;
  constexpr double kLongestPause_us = 6400;
  double pause_us = kShortestPause_us;
  while (true) {
    pause(pause_us, stream);
    start_->record(context.stream);
    body();
    end_->record(context.stream);
    // else the stream waited for the host, which may serve several ranks
    const bool all_enqueued_before = !start_->done();
    end_->synchronize();
    if (all_enqueued_before || pause_us >= kLongestPause_us)
      return end_->milliseconds_since(*start_);
    pause_us *= 4;
  }
}

double Shared::time(const std::function<void()>& body) {
  body();  // the first run loads the kernels
  return std::min({time_once(body), time_once(body), time_once(body)});
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

#include "resnet/gpu/handles.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "common/gpu/native.hpp"
#include "common/program.hpp"
#include "resnet/gpu/cudnn.hpp"
#include "resnet/gpu/unit_kernels.hpp"
#include "resnet/plan_cache.hpp"

namespace shakedown::gpu {

void check_cublas(cublasStatus_t status, const char* expression, const char* file, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw_library_error("cuBLAS", expression, file, line, cublasGetStatusString(status));
}

cudaDataType_t blas_type(DataType type) {
  switch (type) {
    case DataType::float16: return CUDA_R_16F;
    case DataType::bfloat16: return CUDA_R_16BF;
    default: return CUDA_R_32F;
  }
}

cublasComputeType_t blas_compute(Precision precision) {
  return precision == Precision::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

DnnHandle::DnnHandle(cudaStream_t stream) {
  CHECK_CUDNN(cudnnCreate(&get));
  CHECK_CUDNN(cudnnSetStream(get, stream));
}

// cuBLAS's default on Hopper; allocated here because cuBLAS must not allocate during graph capture.
constexpr std::size_t kBlasWorkspace = std::size_t{32} << 20;

BlasHandle::BlasHandle(Device& device, cudaStream_t stream) : workspace_(device, kBlasWorkspace) {
  CHECK_CUBLAS(cublasCreate(&get));
  CHECK_CUBLAS(cublasSetStream(get, stream));  // which would forget the workspace
  CHECK_CUBLAS(cublasSetWorkspace(get, workspace_.data(), workspace_.bytes()));
}

namespace {

constexpr int kCandidates = 8;  // timing more gains 0.3 % at most (measured over all shapes)
constexpr std::size_t kWorkspaceShare = 32;  // of the device's memory: a workspace uses no more

constexpr const char* kFused = "fused";
constexpr const char* kUnfused = "unfused";
constexpr int kRounds = 9;  // of a fused kernel and several, interleaved

/// Those with a large workspace, unless there are no others.
void drop_large_workspaces(ConvPlans& plans, std::size_t limit) {
  const auto by_workspace = [](const auto& a, const auto& b) {
    return a->workspace_bytes < b->workspace_bytes;
  };
  const auto smallest = *std::min_element(plans.begin(), plans.end(), by_workspace);
  std::erase_if(
      plans, [&](const auto& plan) { return plan->workspace_bytes > limit && plan != smallest; });
}

}  // namespace

Tuner::Tuner(const UnitContext& context, const DnnHandle& dnn)
    : context_(context),
      dnn_(dnn),
      cache_(times() ? context.tuning.cache : "",
             fmt::format("{}, cuDNN {}, CUDA {}", context.device.identity().model,
                         cudnnGetVersion(), CUDART_VERSION),
             git_revision()),
      start_(context.device.make_event()),
      end_(context.device.make_event()) {}

bool Tuner::times() const { return context_.tuning.autotune && !context_.tuning.deterministic; }

ConvChoice& Tuner::choice(ConvKind kind, const ConvShape& conv) {
  const auto [entry, fresh] = choices_.try_emplace(key(kind, conv));
  ConvChoice& choice = entry->second;
  if (!fresh) return choice;
  choice.key = entry->first;
  PlanQuery query{
      kind, conv, context_.precision, context_.tuning.deterministic, times() ? kCandidates : 1, ""};
  if (const auto known = cache_.find(choice.key)) {
    query.name = *known;
    choice.candidates = plan_convolution(dnn_.get, query);
    query.name.clear();
  }
  if (choice.candidates.empty()) choice.candidates = plan_convolution(dnn_.get, query);
  if (choice.candidates.empty()) return choice;
  drop_large_workspaces(choice.candidates, context_.device.memory().total_bytes / kWorkspaceShare);
  // timings differ from run to run, and another algorithm rounds otherwise
  if (!times()) choice.candidates.resize(1);
  if (choice.candidates.size() == 1) choice.chosen = 0;
  return choice;
}

std::string Tuner::key(ConvKind kind, const ConvShape& conv) const {
  return fmt::format("{} {} n{} c{} h{} w{} k{} r{} stride{} pad{}", work_name(kind),
                     name_of(context_.precision), conv.x.n, conv.x.c, conv.x.h, conv.x.w, conv.k,
                     conv.kernel, conv.stride, conv.pad);
}

bool Tuner::chooses() const { return context_.tuning.fusion == Fusion::automatic && times(); }

bool Tuner::may_fuse(Fusion form, const std::string& key) const {
  return context_.tuning.requests(form) || (chooses() && known_to_fuse(key).value_or(true));
}

std::optional<bool> Tuner::known_to_fuse(const std::string& key) const {
  const auto known = cache_.find(key);
  if (!known) return std::nullopt;
  return *known == kFused;
}

bool Tuner::fuses(const std::string& key, const std::function<void()>& randomise_inputs,
                  const std::function<void()>& fused, const std::function<void()>& unfused) {
  if (context_.tuning.fusion != Fusion::automatic) return true;
  if (const std::optional<bool> known = known_to_fuse(key)) return *known;
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
  cache_.keep(key, preferred ? kFused : kUnfused);
  return preferred;
}

void Tuner::choose(ConvChoice& choice, const ConvBuffers& buffers, void* workspace) {
  std::vector<BoundPlan> plans;
  for (const auto& candidate : choice.candidates) plans.emplace_back(candidate, buffers, workspace);
  choice.chosen = fastest(plans.size(), [&](std::size_t i) { plans[i].execute(dnn_.get); });
  cache_.keep(choice.key, choice.candidates[*choice.chosen]->name);
}

std::size_t Tuner::fastest(std::size_t count, const std::function<void(std::size_t)>& run) {
  if (!times()) return 0;
  std::size_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < count; ++i) {
    const double ms = time([&] { run(i); });
    if (ms >= least) continue;
    least = ms;
    best = i;
  }
  return best;
}

double Tuner::time_once(const std::function<void()>& body) {
  constexpr double kShortestPause_us = 100;
  constexpr double kLongestPause_us = 6400;
  double pause_us = kShortestPause_us;
  while (true) {
    pause(pause_us, native(context_.stream));
    start_->record(context_.stream);
    body();
    end_->record(context_.stream);
    // else the stream waited for the host, which may serve several ranks
    const bool all_enqueued_before = !start_->done();
    end_->synchronize();
    if (all_enqueued_before || pause_us >= kLongestPause_us)
      return end_->milliseconds_since(*start_);
    pause_us *= 4;
  }
}

double Tuner::time(const std::function<void()>& body) {
  body();  // the first run loads the kernels
  return std::min({time_once(body), time_once(body), time_once(body)});
}

}  // namespace shakedown::gpu

#include "resnet/gpu/cudnn.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

namespace shakedown::gpu {
namespace {

constexpr std::int64_t kX = 1;  // the buffers' ids in a graph
constexpr std::int64_t kW = 2;
constexpr std::int64_t kY = 3;

cudnnDataType_t cudnn_type(Precision precision) {
  switch (precision) {
    case Precision::fp16: return CUDNN_DATA_HALF;
    case Precision::bf16: return CUDNN_DATA_BFLOAT16;
    default: return CUDNN_DATA_FLOAT;
  }
}

/// Four dimensions with the second one innermost in memory: NHWC, or KRSC.
Descriptor tensor(std::int64_t id, Precision precision, std::array<std::int64_t, 4> d) {
  Descriptor made(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, cudnn_type(precision));
  made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, std::int64_t{128});
  made.set_all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64,
                             {d[0], d[1], d[2], d[3]});
  made.set_all<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64,
                             {d[1] * d[2] * d[3], 1, d[1] * d[3], d[1]});
  made.finalize();
  return made;
}

Descriptor convolution(const ConvShape& conv) {
  Descriptor made(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  const std::vector<std::int64_t> pad(2, conv.pad);
  made.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  made.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION);
  made.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, std::int64_t{2});
  made.set_all(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, pad);
  made.set_all(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, pad);
  made.set_all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, {1, 1});
  made.set_all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64,
                             {conv.stride, conv.stride});
  made.finalize();
  return made;
}

struct OperationNames {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t alpha, beta, conv, x, w, y;
};

OperationNames names_of(ConvKind kind) {
  switch (kind) {
    case ConvKind::forward:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y};
    case ConvKind::backward_data:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY};
    case ConvKind::backward_weights:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};
  }
  throw InternalError("unknown kind of convolution");
}

Descriptor operation_graph(cudnnHandle_t handle, ConvKind kind, const ConvShape& conv,
                           Precision precision) {
  const ActivationShape y = conv.y();
  const Descriptor x_tensor = tensor(kX, precision, {conv.x.n, conv.x.c, conv.x.h, conv.x.w});
  const Descriptor w_tensor = tensor(kW, precision, {conv.k, conv.x.c, conv.kernel, conv.kernel});
  const Descriptor y_tensor = tensor(kY, precision, {y.n, y.c, y.h, y.w});
  const Descriptor shape = convolution(conv);
  const OperationNames names = names_of(kind);
  Descriptor operation(names.type);
  operation.set(names.alpha, CUDNN_TYPE_FLOAT, 1.0F);
  operation.set(names.beta, CUDNN_TYPE_FLOAT, 0.0F);
  operation.set(names.conv, shape);
  operation.set(names.x, x_tensor);
  operation.set(names.w, w_tensor);
  operation.set(names.y, y_tensor);
  operation.finalize();

  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
  graph.finalize();
  return graph;
}

std::vector<Descriptor> engine_configs(const Descriptor& graph, cudnnBackendHeurMode_t mode) {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  if (cudnnBackendFinalize(heuristics.get()) != CUDNN_STATUS_SUCCESS) return {};
  std::int64_t count = 0;
  CHECK_CUDNN(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr));
  std::vector<Descriptor> configs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < count; ++i)
    raw.push_back(configs.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
  CHECK_CUDNN(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, raw.data()));
  while (static_cast<std::int64_t>(configs.size()) > count) configs.pop_back();
  return configs;
}

/// Whether the engine behind a configuration keeps the precision and, where asked, repeats bitwise.
bool acceptable(const Descriptor& config, Precision precision, bool deterministic) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.get();
  std::int64_t count = 0;
  CHECK_CUDNN(cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw));
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  CHECK_CUDNN(cudnnBackendGetAttribute(
      engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
      static_cast<std::int64_t>(notes.size()), &count, notes.data()));
  return std::none_of(notes.begin(), notes.begin() + count, [&](cudnnBackendNumericalNote_t note) {
    return (deterministic && note == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) ||
           note == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION ||
           (precision == Precision::fp32 && (note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE ||
                                             note == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS));
  });
}

/// Nothing where cuDNN finds, at the end, that it does not support the configuration.
std::shared_ptr<const ConvPlan> build_plan(cudnnHandle_t handle, const Descriptor& config) {
  Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
  if (cudnnBackendFinalize(plan.get()) != CUDNN_STATUS_SUCCESS) return nullptr;
  return std::make_shared<ConvPlan>(std::move(plan));
}

}  // namespace

void check_cudnn(cudnnStatus_t status, const char* expression, const char* file, int line) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 512> detail{};
  cudnnGetLastErrorString(detail.data(), detail.size());
  throw_library_error("cuDNN", expression, file, line,
                      fmt::format("{} ({})", cudnnGetErrorString(status), detail.data()));
}

const char* name_of(ConvKind kind) {
  switch (kind) {
    case ConvKind::forward: return "forward";
    case ConvKind::backward_data: return "backward data";
    case ConvKind::backward_weights: return "backward weights";
  }
  throw InternalError("unknown kind of convolution");
}

ConvPlan::ConvPlan(Descriptor plan) : plan_(std::move(plan)) {
  std::int64_t bytes = 0;
  std::int64_t count = 0;
  CHECK_CUDNN(cudnnBackendGetAttribute(plan_.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                       CUDNN_TYPE_INT64, 1, &count, &bytes));
  workspace_bytes_ = static_cast<std::size_t>(bytes);
}

BoundPlan::BoundPlan(std::shared_ptr<const ConvPlan> plan, const ConvBuffers& buffers,
                     void* workspace)
    : plan_(std::move(plan)), variant_(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) {
  variant_.set_all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
                                 {kX, kW, kY});
  variant_.set_all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                          {buffers.x, buffers.w, buffers.y});
  variant_.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  variant_.finalize();
}

void BoundPlan::execute(cudnnHandle_t handle) const {
  CHECK_CUDNN(cudnnBackendExecute(handle, plan_->descriptor().get(), variant_.get()));
}

std::vector<std::shared_ptr<const ConvPlan>> plan_convolution(cudnnHandle_t handle, ConvKind kind,
                                                              const ConvShape& conv,
                                                              Precision precision,
                                                              bool deterministic, int most) {
  const Descriptor graph = operation_graph(handle, kind, conv, precision);
  std::vector<std::shared_ptr<const ConvPlan>> plans;
  for (cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    for (const Descriptor& config : engine_configs(graph, mode)) {
      if (!acceptable(config, precision, deterministic)) continue;
      if (auto plan = build_plan(handle, config)) plans.push_back(std::move(plan));
      if (static_cast<int>(plans.size()) == most) return plans;
    }
    if (!plans.empty()) return plans;
  }
  throw UsageError(fmt::format(
      "cuDNN has no {} convolution in {} for {} x {} x {} x {}, {} filters {}x{}, stride {}: try "
      "another --precision, --batch-size or --image-size",
      name_of(kind), name_of(precision), conv.x.n, conv.x.c, conv.x.h, conv.x.w, conv.k,
      conv.kernel, conv.kernel, conv.stride));
}

}  // namespace shakedown::gpu

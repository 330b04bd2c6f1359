#include "resnet/gpu/cudnn.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "common/ensure.hpp"

namespace shakedown::gpu {
namespace {

constexpr std::int64_t kX = 1;  // the buffers' ids in a graph
constexpr std::int64_t kW = 2;
constexpr std::int64_t kY = 3;
constexpr std::int64_t kSum = 4;
constexpr std::int64_t kSquareSum = 5;

cudnnDataType_t cudnn_type(Precision precision) {
  switch (precision) {
    case Precision::fp16: return CUDNN_DATA_HALF;
    case Precision::bf16: return CUDNN_DATA_BFLOAT16;
    default: return CUDNN_DATA_FLOAT;
  }
}

/// Four dimensions with the second one innermost in memory: NHWC, or KRSC.
Descriptor tensor(std::int64_t id, cudnnDataType_t type, std::array<std::int64_t, 4> d) {
  Descriptor made(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
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

#define SHAKEDOWN_NAMES(operation, attribute, x, w, y)            \
  {                                                               \
    CUDNN_BACKEND_OPERATION_CONVOLUTION_##operation##_DESCRIPTOR, \
        CUDNN_ATTR_OPERATION_CONVOLUTION_##attribute##_ALPHA,     \
        CUDNN_ATTR_OPERATION_CONVOLUTION_##attribute##_BETA,      \
        CUDNN_ATTR_OPERATION_CONVOLUTION_##attribute##_CONV_DESC, \
        CUDNN_ATTR_OPERATION_CONVOLUTION_##attribute##_##x,       \
        CUDNN_ATTR_OPERATION_CONVOLUTION_##attribute##_##w,       \
        CUDNN_ATTR_OPERATION_CONVOLUTION_##attribute##_##y        \
  }
OperationNames names_of(ConvKind kind) {
  switch (kind) {
    case ConvKind::backward_data: return SHAKEDOWN_NAMES(BACKWARD_DATA, BWD_DATA, DX, W, DY);
    case ConvKind::backward_weights: return SHAKEDOWN_NAMES(BACKWARD_FILTER, BWD_FILTER, X, DW, DY);
    default: return SHAKEDOWN_NAMES(FORWARD, FORWARD, X, W, Y);
  }
}
#undef SHAKEDOWN_NAMES

/// The sums of each channel of y, in float32.
Descriptor channel_sums(const Descriptor& y, std::int64_t channels) {
  Descriptor made(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
  made.set(CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, CUDNN_GENSTATS_SUM_SQSUM);
  made.set(CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  const Descriptor sum = tensor(kSum, CUDNN_DATA_FLOAT, {1, channels, 1, 1});
  const Descriptor square_sum = tensor(kSquareSum, CUDNN_DATA_FLOAT, {1, channels, 1, 1});
  made.set(CUDNN_ATTR_OPERATION_GENSTATS_XDESC, y);
  made.set(CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, sum);
  made.set(CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, square_sum);
  made.finalize();
  return made;
}

Descriptor operation_graph(cudnnHandle_t handle, const PlanQuery& query) {
  const ConvShape& conv = query.conv;
  const ActivationShape y = conv.y();
  const cudnnDataType_t type = cudnn_type(query.precision);
  const Descriptor x_tensor = tensor(kX, type, {conv.x.n, conv.x.c, conv.x.h, conv.x.w});
  const Descriptor w_tensor = tensor(kW, type, {conv.k, conv.x.c, conv.kernel, conv.kernel});
  const Descriptor y_tensor = tensor(kY, type, {y.n, y.c, y.h, y.w});
  const Descriptor shape = convolution(conv);
  const OperationNames names = names_of(query.kind);
  std::vector<Descriptor> operations;
  Descriptor& operation = operations.emplace_back(names.type);
  operation.set(names.alpha, CUDNN_TYPE_FLOAT, 1.0F);
  operation.set(names.beta, CUDNN_TYPE_FLOAT, 0.0F);
  operation.set(names.conv, shape);
  operation.set(names.x, x_tensor);
  operation.set(names.w, w_tensor);
  operation.set(names.y, y_tensor);
  operation.finalize();
  if (query.kind == ConvKind::forward_with_sums)
    operations.push_back(channel_sums(y_tensor, conv.k));

  std::vector<cudnnBackendDescriptor_t> raw;
  for (const Descriptor& each : operations) raw.push_back(each.get());
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle);
  graph.set_all(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, raw);
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

/// cuDNN cuts the batch of tensors with 2^31 elements or more, and adds up the weight gradients of
/// the parts in their own type, so that every engine has the note of reduced sums. How an engine
/// sums within a part, its note on this graph says: of a batch that is not cut.
Descriptor graph_of_part(cudnnHandle_t handle, PlanQuery query) {
  constexpr std::size_t kMost = std::numeric_limits<std::int32_t>::max();
  const std::size_t largest = std::max(query.conv.x.count(), query.conv.y().count());
  const auto parts = static_cast<int>((largest + kMost - 1) / kMost);
  query.conv.x.n = std::max(1, query.conv.x.n / parts);
  return operation_graph(handle, query);
}

Descriptor engine_of(const Descriptor& config) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.get();
  std::int64_t count = 0;
  CHECK_CUDNN(cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw));
  return engine;
}

template <class T>
T number_of(const Descriptor& from, cudnnBackendAttributeName_t name,
            cudnnBackendAttributeType_t type) {
  T value{};
  std::int64_t count = 0;
  CHECK_CUDNN(cudnnBackendGetAttribute(from.get(), name, type, 1, &count, &value));
  return value;
}

std::int64_t index_of_engine(const Descriptor& config) {
  return number_of<std::int64_t>(engine_of(config), CUDNN_ATTR_ENGINE_GLOBAL_INDEX,
                                 CUDNN_TYPE_INT64);
}

std::string name_of(const Descriptor& config) {
  std::string name = fmt::format("engine {}", index_of_engine(config));
  std::vector<Descriptor> knobs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; ++i)
    raw.push_back(knobs.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR).get());
  std::int64_t count = 0;
  CHECK_CUDNN(cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                       static_cast<std::int64_t>(raw.size()), &count, raw.data()));
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
    name += fmt::format(
        " {}={}",
        static_cast<int>(number_of<cudnnBackendKnobType_t>(
            knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE)),
        number_of<std::int64_t>(knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64));
  return name;
}

template <class Note, std::size_t kMost>
bool any_note(const Descriptor& engine, cudnnBackendAttributeName_t name,
              cudnnBackendAttributeType_t type, std::initializer_list<Note> unwanted) {
  std::array<Note, kMost> notes{};
  std::int64_t count = 0;
  CHECK_CUDNN(cudnnBackendGetAttribute(
      engine.get(), name, type, static_cast<std::int64_t>(notes.size()), &count, notes.data()));
  return std::find_first_of(notes.begin(), notes.begin() + count, unwanted.begin(),
                            unwanted.end()) != notes.begin() + count;
}

/// Whether the engine of a configuration keeps the precision and, where requested, is bitwise
/// repeatable. `part`: see graph_of_part.
bool acceptable(const Descriptor& config, const PlanQuery& query, const Descriptor& part) {
  const Descriptor engine = engine_of(config);
  Descriptor on_part(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  on_part.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, part);
  on_part.set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, index_of_engine(config));
  if (cudnnBackendFinalize(on_part.get()) != CUDNN_STATUS_SUCCESS) return false;
  const auto numerical = [](const Descriptor& of,
                            std::initializer_list<cudnnBackendNumericalNote_t> unwanted) {
    return any_note<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT>(
        of, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, unwanted);
  };
  // The fast kernels of the float16 stem (7x7) have this note; tests/resnet/units_test looks at
  // what they lose. Elsewhere a weight gradient would sum up to 10^6 pixels in less than float32.
  const bool is_float16_stem = query.precision == Precision::fp16 && query.conv.kernel == 7;
  if (!is_float16_stem && numerical(on_part, {CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION}))
    return false;
  if (query.deterministic && numerical(engine, {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}))
    return false;
  if (query.precision == Precision::fp32 &&
      numerical(engine,
                {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS}))
    return false;
  return query.kind != ConvKind::forward_with_sums ||
         !any_note<cudnnBackendBehaviorNote_t, CUDNN_BEHAVIOR_NOTE_TYPE_COUNT>(
             engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
             {CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION});
}

/// Nothing where cuDNN finds, at the end, that it does not support the configuration.
std::shared_ptr<const ConvPlan> build_plan(cudnnHandle_t handle, const PlanQuery& query,
                                           std::string name, const Descriptor& config) {
  Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
  if (cudnnBackendFinalize(plan.get()) != CUDNN_STATUS_SUCCESS) return nullptr;
  const auto bytes =
      number_of<std::int64_t>(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64);
  return std::make_shared<const ConvPlan>(ConvPlan{
      query.kind, query.conv, std::move(name), std::move(plan), static_cast<std::size_t>(bytes)});
}

}  // namespace

void check_cudnn(cudnnStatus_t status, const char* expression, const char* file, int line) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 512> detail{};
  cudnnGetLastErrorString(detail.data(), detail.size());
  throw_library_error("cuDNN", expression, file, line,
                      fmt::format("{} ({})", cudnnGetErrorString(status), detail.data()));
}

namespace {

struct KindNames {
  const char* name;
  const char* work;
};
constexpr KindNames kKindNames[] = {{"forward", "conv_forward"},
                                    {"forward with sums", "conv_forward_sums"},
                                    {"backward data", "conv_backward_data"},
                                    {"backward weights", "conv_backward_weights"}};

}  // namespace

const char* name_of(ConvKind kind) { return kKindNames[static_cast<int>(kind)].name; }
const char* work_name(ConvKind kind) { return kKindNames[static_cast<int>(kind)].work; }

BoundPlan::BoundPlan(std::shared_ptr<const ConvPlan> plan, const ConvBuffers& buffers,
                     void* workspace)
    : plan_(std::move(plan)), variant_(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) {
  std::vector<std::int64_t> ids{kX, kW, kY};
  std::vector<void*> pointers{buffers.x, buffers.w, buffers.y};
  if (plan_->kind == ConvKind::forward_with_sums) {
    ids.insert(ids.end(), {kSum, kSquareSum});
    pointers.insert(pointers.end(), {buffers.sums, buffers.sums + plan_->conv.k});
  }
  variant_.set_all(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids);
  variant_.set_all(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pointers);
  variant_.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  variant_.finalize();
}

void BoundPlan::execute(cudnnHandle_t handle) const {
  CHECK_CUDNN(cudnnBackendExecute(handle, plan_->descriptor.get(), variant_.get()));
}

ConvPlans plan_convolution(cudnnHandle_t handle, const PlanQuery& query) {
  const Descriptor graph = operation_graph(handle, query);
  const Descriptor part = graph_of_part(handle, query);
  ConvPlans plans;
  for (cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    for (const Descriptor& config : engine_configs(graph, mode)) {
      if (!acceptable(config, query, part)) continue;
      std::string name = name_of(config);
      if (!query.name.empty() && name != query.name) continue;
      if (auto plan = build_plan(handle, query, std::move(name), config))
        plans.push_back(std::move(plan));
      if (static_cast<int>(plans.size()) == query.most) return plans;
    }
    if (!plans.empty()) break;
  }
  return plans;
}

}  // namespace shakedown::gpu

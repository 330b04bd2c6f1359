// A thin builder over cuDNN's backend API: descriptors, and plans of convolutions.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "resnet/architecture.hpp"

namespace shakedown::gpu {

void check_cudnn(cudnnStatus_t status, const char* expression, const char* file, int line);
#define CHECK_CUDNN(expression) \
  ::shakedown::gpu::check_cudnn((expression), #expression, __FILE__, __LINE__)

/// Owns a backend descriptor. Setters throw InternalError with cuDNN's own words.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    CHECK_CUDNN(cudnnBackendCreateDescriptor(type, &descriptor_));
  }
  Descriptor(Descriptor&& other) noexcept { std::swap(descriptor_, other.descriptor_); }
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (descriptor_ != nullptr) cudnnBackendDestroyDescriptor(descriptor_);
  }

  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    CHECK_CUDNN(cudnnBackendSetAttribute(descriptor_, name, type, 1, &value));
  }
  template <class T>
  void set_all(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
               const std::vector<T>& values) {
    CHECK_CUDNN(cudnnBackendSetAttribute(descriptor_, name, type,
                                         static_cast<std::int64_t>(values.size()), values.data()));
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& other) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, other.descriptor_);
  }
  void finalize() { CHECK_CUDNN(cudnnBackendFinalize(descriptor_)); }
  cudnnBackendDescriptor_t get() const { return descriptor_; }

 private:
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

/// forward_with_sums also computes, with y, each channel's sums of y and of y squared.
enum class ConvKind { forward, forward_with_sums, backward_data, backward_weights };
/// In messages, and as work in the log and in the cache of plans.
const char* name_of(ConvKind kind);
const char* work_name(ConvKind kind);

/// The buffers of a convolution: x or dx, w or dw, y or dy. Activations are NHWC, weights KRSC.
struct ConvBuffers {
  void* x = nullptr;
  void* w = nullptr;
  void* y = nullptr;
  float* sums = nullptr;  // of forward_with_sums: K sums, then K sums of squares
};

/// An execution plan of cuDNN's: one algorithm for one convolution.
struct ConvPlan {
  ConvKind kind;
  ConvShape conv;
  std::string name;  // cuDNN's engine and how its knobs are set: it is found again by this
  Descriptor descriptor;
  std::size_t workspace_bytes;
};

/// A plan with the buffers it works on.
class BoundPlan {
 public:
  BoundPlan(std::shared_ptr<const ConvPlan> plan, const ConvBuffers& buffers, void* workspace);
  void execute(cudnnHandle_t handle) const;

 private:
  std::shared_ptr<const ConvPlan> plan_;
  Descriptor variant_;
};

using ConvPlans = std::vector<std::shared_ptr<const ConvPlan>>;

struct PlanQuery {
  ConvKind kind;
  ConvShape conv;
  Precision precision;
  bool deterministic = false;  // bitwise repeatable algorithms only
  int most = 1;
  std::string name;  // the plan of this name only, or empty
};
/// Plans that support a convolution here, the best guess of cuDNN's heuristics first, at most
/// `most`; none where there are none. With fp32, algorithms that round their inputs (TF32) are left
/// out; of forward_with_sums those that would be compiled now, for seconds.
ConvPlans plan_convolution(cudnnHandle_t handle, const PlanQuery& query);

}  // namespace shakedown::gpu

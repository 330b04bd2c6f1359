// A thin builder over cuDNN's backend API: descriptors, and plans of single convolutions.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "common/error.hpp"
#include "resnet/precision.hpp"
#include "resnet/shapes.hpp"

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

enum class ConvKind { forward, backward_data, backward_weights };
const char* name_of(ConvKind kind);

/// The three buffers of a convolution: x or dx, w or dw, y or dy. Activations are NHWC, weights
/// KRSC.
struct ConvBuffers {
  void* x = nullptr;
  void* w = nullptr;
  void* y = nullptr;
};

/// An execution plan of cuDNN's: one algorithm for one convolution.
class ConvPlan {
 public:
  explicit ConvPlan(Descriptor plan);
  std::size_t workspace_bytes() const { return workspace_bytes_; }
  const Descriptor& descriptor() const { return plan_; }

 private:
  Descriptor plan_;
  std::size_t workspace_bytes_ = 0;
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

/// Plans that support this convolution here, best guess of cuDNN's heuristics first, at most
/// `most`. With fp32, algorithms that round their inputs (TF32) are left out; with `deterministic`
/// those that are not bitwise repeatable. Throws UsageError naming the convolution when there is
/// none.
std::vector<std::shared_ptr<const ConvPlan>> plan_convolution(cudnnHandle_t handle, ConvKind kind,
                                                              const ConvShape& conv,
                                                              Precision precision,
                                                              bool deterministic, int most);

}  // namespace shakedown::gpu

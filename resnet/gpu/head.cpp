#include "resnet/gpu/handles.hpp"

namespace shakedown::gpu {
namespace {

/// A matrix stored row by row.
struct Matrix {
  const void* data;
  int columns;
  bool transposed = false;
};

class GpuHead final : public NetworkUnit {
 public:
  GpuHead(GpuContext& context, const HeadSpec& spec) : context_(context), spec_(spec) {
    const auto n = static_cast<std::size_t>(spec.x_shape.n);
    const std::size_t feature_bytes =
        n * static_cast<std::size_t>(spec.x_shape.c) * size_of(context.type);
    const Moments when = spec.when;
    features_ = context.saved("features", feature_bytes, when);
    dfeatures_ = context.scratch("dfeatures", feature_bytes, when.backward);
    dlogits_ = context.saved(
        "dlogits", n * static_cast<std::size_t>(spec.classes) * size_of(context.type), when);
    samples_ = context.scratch("sample results", n * sizeof(SampleResult), when.forward);
  }

  void bind() override {}

  void forward(Pass) override {
    const Weights& weights = context_.weights;
    const int n = spec_.x_shape.n;
    const int c = spec_.x_shape.c;
    run("average_pool", x_bytes() + bytes_of(features_),
        [&] { average_pool(spec_.x->data(), features_->data(), context_.on(spec_.x_shape)); });
    multiply({features_->data(), c}, {weights.compute(spec_.weight), c, true}, n, spec_.classes, c,
             spec_.logits->data(), DataType::float32);
    run("softmax_cross_entropy", 2 * bytes_of(spec_.logits) + bytes_of(dlogits_), [&] {
      softmax_cross_entropy(
          spec_.logits->as<float>(), weights.vector(spec_.bias), spec_.labels->as<std::int32_t>(),
          n, spec_.classes, spec_.label_smoothing, spec_.loss_scale, dlogits_->data(),
          context_.type, samples_->as<SampleResult>(), spec_.metrics, context_.cuda_stream);
    });
  }

  void backward() override {
    const Weights& weights = context_.weights;
    const int n = spec_.x_shape.n;
    const int c = spec_.x_shape.c;
    const int classes = spec_.classes;
    run("bias_gradient", bytes_of(dlogits_), [&] {
      bias_gradient(dlogits_->data(), n, classes, weights.gradient(spec_.bias), context_.type,
                    context_.cuda_stream);
    });
    multiply({dlogits_->data(), classes, true}, {features_->data(), c}, classes, c, n,
             weights.gradient(spec_.weight), context_.type);
    multiply({dlogits_->data(), classes}, {weights.compute(spec_.weight), c}, n, c, classes,
             dfeatures_->data(), context_.type);
    run("average_pool_backward", x_bytes() + bytes_of(dfeatures_), [&] {
      average_pool_backward(dfeatures_->data(), spec_.dx->data(), context_.on(spec_.x_shape));
    });
  }

 private:
  template <class Body>
  void run(const char* kernel, double bytes, Body&& body) const {
    context_.run(kernel, spec_.weight, bytes, body);
  }
  static double bytes_of(const Slot* slot) { return static_cast<double>(slot->bytes()); }
  double x_bytes() const { return context_.bytes_of(spec_.x_shape); }

  /// out (rows x columns) = a b, all row by row; sums in float32. cuBLAS is column-major, so it
  /// computes out^T = b^T a^T.
  void multiply(const Matrix& a, const Matrix& b, int rows, int columns, int inner, void* out,
                DataType out_type) const {
    const float one = 1;
    const float zero = 0;
    const double elements = 1.0 * rows * inner + 1.0 * inner * columns;
    const Work work{"matmul", spec_.weight,
                    elements * static_cast<double>(size_of(context_.type)) +
                        1.0 * rows * columns * static_cast<double>(size_of(out_type)),
                    2.0 * rows * columns * inner};
    const auto gemm = [&] {
      CHECK_CUBLAS(cublasGemmEx(context_.blas.get, b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                                a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N, columns, rows, inner,
                                &one, b.data, blas_type(context_.type), b.columns, a.data,
                                blas_type(context_.type), a.columns, &zero, out,
                                blas_type(out_type), columns, blas_compute(context_.precision),
                                CUBLAS_GEMM_DEFAULT));
    };
    context_.log.run(work, gemm);
  }

  GpuContext& context_;
  HeadSpec spec_;
  const Slot* features_;
  const Slot* dfeatures_;
  const Slot* dlogits_;
  const Slot* samples_;
};

}  // namespace

std::unique_ptr<NetworkUnit> make_head(GpuContext& context, const HeadSpec& spec) {
  return std::make_unique<GpuHead>(context, spec);
}

}  // namespace shakedown::gpu

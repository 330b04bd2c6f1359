#include "training/step/optimizer.hpp"

#include "common/kernels.hpp"
#include "common/options.hpp"

namespace shakedown::training {

void declare_options(OptionSet& options, OptimizerOptions& values) {
  options.heading("Optimizer");
  options
      .add("--optimizer,--opt", values.optimizer,
           "update rule; sgd and lars have momentum; lars adapts the rate of each parameter to its "
           "norm and its gradient's, except of norm parameters and biases, which do not decay")
      .one_of({"sgd", "lars", "adam", "adamw"});
  options
      .add("--learning-rate,--lr", values.learning_rate,
           "base learning rate, reached after warm-up")
      .at_least(0);
  options.add("--momentum", values.momentum, "momentum of sgd and lars")
      .at_least(0)
      .below(1)
      .only_where("--optimizer", {"sgd", "lars"});
  options
      .add("--weight-decay,--wd", values.weight_decay,
           "weight decay: L2 penalty (sgd, lars, adam) or decoupled (adamw)")
      .at_least(0);
  options.add("--nesterov", values.nesterov, "use Nesterov momentum")
      .only_where("--optimizer", {"sgd", "lars"});
  options
      .add("--no-norm-decay", values.no_norm_decay,
           "exclude norm parameters and biases from weight decay")
      .only_where("--optimizer", {"sgd", "adam", "adamw"});
  options
      .add("--trust-coefficient", values.trust_coefficient,
           "trust coefficient of lars (\"eeta\" in MLPerf's reference)")
      .at_least(0)
      .only_where("--optimizer", {"lars"});
  options
      .add("--clip-grad-norm", values.clip_grad_norm,
           "largest Euclidean norm of all gradients, as torch.nn.utils.clip_grad_norm_ clips them; "
           "0: off")
      .at_least(0)
      .not_with({"--ps-partition-mb"});
}

Optimizer::Optimizer(const OptimizerOptions& options, Device& device, Stream& stream,
                     const ParameterTable& table, const Weights& weights,
                     const UpdateKernels& kernels)
    : options_(options),
      device_(device),
      stream_(stream),
      table_(table),
      weights_(weights),
      kernels_(kernels) {
  const bool lars = options.optimizer == "lars";
  if (options.no_norm_decay || lars) decayed_ = decay_flags();
  if (!options.needs_norms()) return;
  const NormSettings settings{static_cast<float>(options.clip_grad_norm),
                              static_cast<float>(options.trust_coefficient),
                              static_cast<float>(options.weight_decay)};
  norms_.emplace(settings, lars, device, stream, table, kernels);
}

/// Norms and biases do not decay.
Buffer Optimizer::decay_flags() const {
  std::vector<std::uint8_t> decayed(table_.stored_count() / kFlatAlignment, 0);
  for (const Parameter& p : table_.parameters()) {
    if (p.shape.size() == 1) continue;
    const auto first = static_cast<std::ptrdiff_t>(p.offset / kFlatAlignment);
    const auto chunks =
        static_cast<std::ptrdiff_t>((p.stored + kFlatAlignment - 1) / kFlatAlignment);
    std::fill_n(decayed.begin() + first, chunks, std::uint8_t{1});
  }
  Buffer flags(device_, decayed.size());
  upload<std::uint8_t>(device_, stream_, flags.data(), decayed);
  return flags;
}

SgdSettings Optimizer::sgd_settings() const {
  return {static_cast<float>(options_.momentum), static_cast<float>(options_.weight_decay),
          options_.nesterov};
}

void Optimizer::allocate(const std::vector<Range>& ranges) {
  state_a_ = FlatBuffer();
  state_b_ = FlatBuffer();
  state_a_ = FlatBuffer(device_, stream_, DataType::float32, packed(ranges));
  if (options_.is_adam())
    state_b_ = FlatBuffer(device_, stream_, DataType::float32, packed(ranges));
  if (norms_) norms_->allocate(ranges);
}

std::vector<StateBuffer> Optimizer::state_buffers() {
  if (options_.is_adam()) return {{"exp_avg", &state_a_}, {"exp_avg_sq", &state_b_}};
  return {{"momentum_buffer", &state_a_}};
}

void Optimizer::reset() {
  for (const FlatBuffer* state : {&state_a_, &state_b_})
    device_.zero(state->memory().data, state->bytes(), stream_);
}

UpdateRange Optimizer::operands(const Share& share) const {
  const Range range = share.range;
  UpdateRange result;
  result.master = static_cast<float*>(weights_.master(range).data);
  const View copy = weights_.copy_of(range);
  result.compute = copy.data;
  result.compute_type = copy.type;
  for (const View& other : share.copies) {
    result.compute_type = other.type;
    result.copies[result.copy_count++] = other.data;
  }
  result.gradient = share.gradient.data;
  result.gradient_type = share.gradient.type;
  result.state_a = static_cast<float*>(state_a_.at(range).data);
  if (!state_b_.empty()) result.state_b = static_cast<float*>(state_b_.at(range).data);
  if (decayed_.bytes() > 0)
    result.decayed =
        static_cast<const std::uint8_t*>(decayed_.data()) + range.begin / kFlatAlignment;
  if (norms_) {
    result.tensors = norms_->parameters_from(range.begin);
    result.trust = norms_->trust();
  }
  result.count = range.count();
  return result;
}

double Optimizer::bytes_moved(const Share& share) const {
  const std::size_t states = state_b_.empty() ? 1 : 2;
  const std::size_t floats = 2 * (1 + states) * share.range.count();  // read and written
  return static_cast<double>(floats * sizeof(float) + share.gradient.bytes() +
                             weights_.copy_of(share.range).bytes());
}

void Optimizer::update(const Share& share, const StepScalars* scalars) {
  if (share.range.count() == 0) return;
  if (options_.is_adam()) {
    AdamSettings settings;
    settings.weight_decay = static_cast<float>(options_.weight_decay);
    settings.decoupled = options_.optimizer == "adamw";
    kernels_.adam(operands(share), settings, scalars, stream_);
  } else if (options_.optimizer == "lars") {
    kernels_.lars(operands(share), sgd_settings(), scalars, stream_);
  } else {
    kernels_.sgd(operands(share), sgd_settings(), scalars, stream_);
  }
}

std::size_t Optimizer::bytes() const {
  return state_a_.bytes() + state_b_.bytes() + decayed_.bytes() + (norms_ ? norms_->bytes() : 0);
}

}  // namespace shakedown::training

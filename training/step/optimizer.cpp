#include "training/step/optimizer.hpp"

#include "common/options.hpp"

namespace shakedown::training {

void declare_options(OptionSet& options, OptimizerOptions& values) {
  options.heading("Optimizer");
  options.add("--optimizer", values.optimizer, "update rule; sgd has momentum")
      .one_of({"sgd", "adam", "adamw"});
  options
      .add("--learning-rate,--lr", values.learning_rate,
           "base learning rate, reached after --lr-warmup-epochs")
      .at_least(0);
  options.add("--momentum", values.momentum, "SGD momentum")
      .at_least(0)
      .below(1)
      .only_where("--optimizer", {"sgd"});
  options
      .add("--weight-decay", values.weight_decay,
           "weight decay: L2 penalty (sgd, adam) or decoupled (adamw)")
      .at_least(0);
  options.add("--nesterov", values.nesterov, "use Nesterov momentum")
      .only_where("--optimizer", {"sgd"});
  options.add("--no-norm-decay", values.no_norm_decay,
              "exclude norm parameters and biases from weight decay");
}

Optimizer::Optimizer(const OptimizerOptions& options, Device& device, Stream& stream,
                     const ParameterTable& table, const Weights& weights)
    : options_(options), device_(device), stream_(stream), weights_(weights) {
  if (!options.no_norm_decay) return;
  std::vector<std::uint8_t> decayed(table.stored_count() / kFlatAlignment, 0);
  for (const Parameter& p : table.parameters()) {
    if (p.shape.size() == 1) continue;  // norms and biases
    const auto first = static_cast<std::ptrdiff_t>(p.offset / kFlatAlignment);
    const auto chunks =
        static_cast<std::ptrdiff_t>((p.stored + kFlatAlignment - 1) / kFlatAlignment);
    std::fill_n(decayed.begin() + first, chunks, std::uint8_t{1});
  }
  decayed_ = Buffer(device, decayed.size());
  upload<std::uint8_t>(device, stream, decayed_.data(), decayed);
}

void Optimizer::allocate(const std::vector<Range>& ranges) {
  state_a_ = FlatBuffer();
  state_b_ = FlatBuffer();
  state_a_ = FlatBuffer(device_, stream_, DataType::float32, packed(ranges));
  if (options_.optimizer != "sgd")
    state_b_ = FlatBuffer(device_, stream_, DataType::float32, packed(ranges));
}

std::vector<StateBuffer> Optimizer::state_buffers() {
  if (state_b_.empty()) return {{"momentum_buffer", &state_a_}};
  return {{"exp_avg", &state_a_}, {"exp_avg_sq", &state_b_}};
}

void Optimizer::reset() {
  for (const FlatBuffer* state : {&state_a_, &state_b_})
    device_.zero(state->memory().data, state->bytes(), stream_);
}

UpdateRange Optimizer::operands(Range range, ConstView gradient) const {
  UpdateRange result;
  result.master = static_cast<float*>(weights_.master(range).data);
  const View copy = weights_.copy_of(range);
  result.compute = copy.data;
  result.compute_type = copy.type;
  result.gradient = gradient.data;
  result.gradient_type = gradient.type;
  result.state_a = static_cast<float*>(state_a_.at(range).data);
  if (!state_b_.empty()) result.state_b = static_cast<float*>(state_b_.at(range).data);
  if (decayed_.bytes() > 0)
    result.decayed =
        static_cast<const std::uint8_t*>(decayed_.data()) + range.begin / kFlatAlignment;
  result.count = range.count();
  return result;
}

double Optimizer::bytes_moved(Range range, ConstView gradient) const {
  const std::size_t states = state_b_.empty() ? 1 : 2;
  const std::size_t floats = 2 * (1 + states) * range.count();  // read and written
  return static_cast<double>(floats * sizeof(float) + gradient.bytes() +
                             weights_.copy_of(range).bytes());
}

void Optimizer::update(Range range, ConstView gradient, const StepScalars* scalars) {
  if (range.count() == 0) return;
  const auto decay = static_cast<float>(options_.weight_decay);
  if (options_.optimizer == "sgd") {
    device_.kernels().sgd(operands(range, gradient),
                          {static_cast<float>(options_.momentum), decay, options_.nesterov},
                          scalars, stream_);
  } else {
    AdamSettings settings;
    settings.weight_decay = decay;
    settings.decoupled = options_.optimizer == "adamw";
    device_.kernels().adam(operands(range, gradient), settings, scalars, stream_);
  }
}

}  // namespace shakedown::training

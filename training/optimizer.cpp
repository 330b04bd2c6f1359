#include "training/optimizer.hpp"

#include "common/options.hpp"

namespace shakedown {

void declare_options(OptionSet& options, OptimizerOptions& values) {
  options.heading("Optimiser");
  options.add("--optimizer", values.optimizer, "sgd with momentum, adam or adamw")
      .one_of({"sgd", "adam", "adamw"});
  options.add("--learning-rate,--lr", values.learning_rate, "at the start, or after the warm-up")
      .at_least(0);
  options.add("--momentum", values.momentum, "of sgd").at_least(0);
  options.add("--weight-decay", values.weight_decay, "L2 (sgd, adam) or decoupled (adamw)")
      .at_least(0);
  options.add("--nesterov", values.nesterov, "sgd with Nesterov's momentum");
  options.add("--no-norm-decay", values.no_norm_decay, "weight decay spares norms and biases");
}

Optimizer::Optimizer(const OptimizerOptions& options, Device& device, Stream& stream,
                     const ParameterTable& table, const Weights& weights)
    : options_(options),
      device_(device),
      stream_(stream),
      weights_(weights),
      state_a_(device, table.stored_count() * sizeof(float)),
      state_b_(device, options.optimizer == "sgd" ? 0 : table.stored_count() * sizeof(float)) {
  reset();
  if (!options.no_norm_decay) return;
  std::vector<std::uint8_t> decayed(table.stored_count() / kDecayChunk, 0);
  for (const Parameter& p : table.parameters()) {
    if (p.shape.size() == 1) continue;  // norms and biases
    const auto first = static_cast<std::ptrdiff_t>(p.offset / kDecayChunk);
    const auto chunks = static_cast<std::ptrdiff_t>((p.stored + kDecayChunk - 1) / kDecayChunk);
    std::fill_n(decayed.begin() + first, chunks, std::uint8_t{1});
  }
  decayed_ = Buffer(device, decayed.size());
  upload<std::uint8_t>(device, stream, decayed_.data(), decayed);
}

void Optimizer::reset() {
  device_.zero(state_a_.data(), state_a_.bytes(), stream_);
  device_.zero(state_b_.data(), state_b_.bytes(), stream_);
}

UpdateRange Optimizer::part(Range range) const {
  UpdateRange part;
  const auto in = [&](const Buffer& buffer) {
    return buffer.bytes() > 0 ? static_cast<float*>(buffer.data()) + range.begin : nullptr;
  };
  part.master = static_cast<float*>(weights_.master().slice(range.begin, range.count()).data);
  if (weights_.has_copy()) part.compute = weights_.compute().slice(range.begin, range.count()).data;
  part.gradient = weights_.gradients().slice(range.begin, range.count()).data;
  part.gradient_type = weights_.type();
  part.state_a = in(state_a_);
  part.state_b = in(state_b_);
  if (decayed_.bytes() > 0)
    part.decayed = static_cast<const std::uint8_t*>(decayed_.data()) + range.begin / kDecayChunk;
  part.count = range.count();
  return part;
}

void Optimizer::update(const std::vector<Range>& ranges, const StepScalars* scalars) {
  const auto decay = static_cast<float>(options_.weight_decay);
  for (const Range& range : ranges) {
    if (options_.optimizer == "sgd") {
      device_.kernels().sgd(part(range),
                            {static_cast<float>(options_.momentum), decay, options_.nesterov},
                            scalars, stream_);
    } else {
      AdamSettings settings;
      settings.weight_decay = decay;
      settings.decoupled = options_.optimizer == "adamw";
      device_.kernels().adam(part(range), settings, scalars, stream_);
    }
  }
}

}  // namespace shakedown

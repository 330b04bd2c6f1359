#include "training/predict/model_inputs.hpp"

#include "training/measure/breakdown.hpp"

namespace shakedown::training {

ModelInputs model_inputs(Engine& engine, const Trace& steps) {
  const Network& network = engine.model.network();
  const ParameterTable& table = network.table();
  const DataType type = network.weights().type();
  const BackwardTimes times = backward_times(steps);
  ModelInputs inputs;
  const auto& parameters = table.parameters();
  for (auto p = parameters.rbegin(); p != parameters.rend(); ++p) {
    const auto count = static_cast<double>(table.payload_in({p->offset, p->offset + p->stored}));
    inputs.gradients.push_back(
        {count * sizeof(float), times.ready_ms.at(static_cast<std::size_t>(p->block)), p->block});
  }
  inputs.backward_ms = times.backward_ms;
  inputs.sent_bytes_factor = static_cast<double>(size_of(type)) / sizeof(float);
  inputs.input_bytes_per_image =
      static_cast<double>(batch_bytes(network.settings())) / network.settings().batch_size;
  return inputs;
}

}  // namespace shakedown::training

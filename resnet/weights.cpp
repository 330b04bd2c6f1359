#include "resnet/weights.hpp"

namespace shakedown {

Weights::Weights(Device& device, Stream& stream, const ParameterTable& table, DataType compute_type)
    : table_(table),
      type_(compute_type),
      master_(device, table.stored_count() * sizeof(float)),
      compute_(device, has_copy() ? table.stored_count() * size_of(type_) : 0),
      gradients_(device, table.stored_count() * size_of(type_)),
      statistics_(device, table.statistics_count() * sizeof(float)) {
  for (const Buffer* buffer : {&master_, &compute_, &gradients_, &statistics_})
    device.zero(buffer->data(), buffer->bytes(), stream);
}

float* Weights::master(int index) const {
  return static_cast<float*>(master_.data()) + parameter(index).offset;
}

void* Weights::compute(int index) const {
  return compute().slice(parameter(index).offset, parameter(index).stored).data;
}

void* Weights::gradient(int index) const {
  return gradients().slice(parameter(index).offset, parameter(index).stored).data;
}

float* Weights::running_mean(int index) const {
  return static_cast<float*>(statistics_.data()) +
         table_.statistics().at(static_cast<std::size_t>(index)).offset;
}

float* Weights::running_variance(int index) const {
  return running_mean(index) + table_.statistics().at(static_cast<std::size_t>(index)).channels;
}

std::size_t Weights::bytes() const {
  return master_.bytes() + compute_.bytes() + gradients_.bytes() + statistics_.bytes();
}

}  // namespace shakedown

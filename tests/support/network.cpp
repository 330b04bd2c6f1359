#include "tests/support/network.hpp"

#include <string>
#include <string_view>

#include "common/error.hpp"
#include "common/kernels.hpp"
#include "tests/support.hpp"

namespace shakedown::test {
namespace {

const Slot& slot(const Network& network, std::string_view name) {
  for (const Slot& slot : network.plan().slots())
    if (slot.name() == name) return slot;
  throw InternalError("no slot " + std::string(name));
}

std::vector<float> master(const Network& network) {
  return download<float>(network.device(), network.stream(), network.weights().master().data,
                         network.table().stored_count());
}

}  // namespace

void initialise(Network& network, std::uint64_t seed) {
  network.set_weights(network.seeded(seed));
  network.reset_statistics();
}

LoadRemarks load(Network& network, const std::vector<Tensor>& tensors, const std::string& file) {
  std::vector<float> weights = master(network);
  LoadRemarks remarks = network.take(tensors, file, weights);
  network.set_weights(weights);
  return remarks;
}

std::vector<Tensor> state(const Network& network) { return network.state(master(network)); }

std::vector<Tensor> gradients(const Network& network) {
  const std::size_t count = network.table().stored_count();
  const Buffer wide(network.device(), count * sizeof(float));
  network.device().kernels().convert(network.weights().gradients(), wide.view(DataType::float32),
                                     network.stream());
  std::vector<Tensor> tensors =
      network.state(download<float>(network.device(), network.stream(), wide.data(), count));
  tensors.resize(network.table().parameters().size());  // without the running statistics
  return tensors;
}

std::vector<float> read_logits(const Network& network) {
  const Slot& logits = slot(network, "logits");
  return download<float>(network.device(), network.stream(), logits.data(),
                         logits.bytes() / sizeof(float));
}

void set_batch(Network& network, std::span<const float> images,
               std::span<const std::int32_t> labels) {
  const NetworkSettings& s = network.settings();
  const bool gpu = network.device().kind() == BackendKind::gpu;
  const auto channels = static_cast<std::size_t>(stem_channels(network.device().kind()));
  const auto side = static_cast<std::size_t>(s.image_size);
  const std::size_t pixels = side * side;
  const auto count = static_cast<std::size_t>(s.batch_size);
  ENSURE(images.size() == 3 * pixels * count && labels.size() == count, "a batch of another shape");
  std::vector<float> stored(channels * pixels * count, 0.0F);  // N C H W, on a gpu N H W C
  for (std::size_t n = 0; n < count; ++n)
    for (std::size_t c = 0; c < 3; ++c)
      for (std::size_t i = 0; i < pixels; ++i)
        stored[gpu ? (n * pixels + i) * channels + c : (n * channels + c) * pixels + i] =
            images[(n * 3 + c) * pixels + i];
  const Slot& image = slot(network, "image");
  const DataType type = compute_type(s.precision);
  ENSURE(image.bytes() == stored.size() * size_of(type), "the image's layout");
  if (type == DataType::float32) {
    upload<float>(network.device(), network.stream(), image.data(), stored);
  } else {
    const Buffer wide = to_device(network.device(), network.stream(), stored);
    network.device().kernels().convert(wide.view(DataType::float32),
                                       {image.data(), stored.size(), type, Place::device},
                                       network.stream());
    network.stream().synchronize();
  }
  upload<std::int32_t>(network.device(), network.stream(), slot(network, "labels").data(), labels);
}

}  // namespace shakedown::test

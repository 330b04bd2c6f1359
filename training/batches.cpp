#include "training/batches.hpp"

#include <vector>

#include "common/random.hpp"

namespace shakedown {
namespace {

std::size_t image_bytes(const NetworkSettings& shape) {
  const auto side = static_cast<std::size_t>(shape.image_size);
  return static_cast<std::size_t>(shape.batch_size) * side * side * 3;
}

std::size_t label_bytes(const NetworkSettings& shape) {
  return static_cast<std::size_t>(shape.batch_size) * sizeof(std::int32_t);
}

class SyntheticBatches final : public BatchSource {
 public:
  SyntheticBatches(Device& device, Stream& stream, const NetworkSettings& shape, std::uint64_t seed)
      : images_(device, image_bytes(shape)), labels_(device, label_bytes(shape)) {
    Random random(seed);
    std::vector<std::uint8_t> pixels(images_.bytes());
    for (std::uint8_t& pixel : pixels) pixel = static_cast<std::uint8_t>(random.next() >> 56);
    std::vector<std::int32_t> labels(static_cast<std::size_t>(shape.batch_size));
    for (std::int32_t& label : labels)
      label = static_cast<std::int32_t>(random.below(static_cast<std::size_t>(shape.classes)));
    upload<std::uint8_t>(device, stream, images_.data(), pixels);
    upload<std::int32_t>(device, stream, labels_.data(), labels);
  }

  bool load_next(Network& network) override {
    if (!loaded_)
      network.set_batch(static_cast<const std::uint8_t*>(images_.data()),
                        static_cast<const std::int32_t*>(labels_.data()));
    loaded_ = true;
    return true;
  }
  void start_epoch(int) override {}
  double stall_seconds() const override { return 0; }

 private:
  Buffer images_;
  Buffer labels_;
  bool loaded_ = false;
};

class LoadedBatches final : public BatchSource {
 public:
  LoadedBatches(Loader& loader, Device& device, Stream& stream, const NetworkSettings& shape)
      : loader_(loader),
        device_(device),
        stream_(stream),
        images_(device, image_bytes(shape)),
        labels_(device, label_bytes(shape)) {
    for (Lent& lent : lent_) lent.copied = device.make_event();
  }

  bool load_next(Network& network) override {
    Lent& lent = lent_[next_];
    release(lent);  // the batch before the last: copied long ago
    lent.batch = loader_.next();
    if (lent.batch == nullptr) return false;
    next_ = (next_ + 1) % lent_.size();
    device_.copy(images_.data(), lent.batch->images.data(), images_.bytes(), stream_);
    device_.copy(labels_.data(), lent.batch->labels.data(), labels_.bytes(), stream_);
    lent.copied->record(stream_);
    network.set_batch(static_cast<const std::uint8_t*>(images_.data()),
                      static_cast<const std::int32_t*>(labels_.data()));
    return true;
  }

  void start_epoch(int epoch) override {
    for (Lent& lent : lent_) release(lent);
    loader_.start_epoch(epoch);
  }
  double stall_seconds() const override { return loader_.stall_seconds(); }

 private:
  struct Lent {
    const Batch* batch = nullptr;
    std::unique_ptr<Event> copied;
  };

  void release(Lent& lent) {
    if (lent.batch == nullptr) return;
    lent.copied->synchronize();
    loader_.release(lent.batch);
    lent.batch = nullptr;
  }

  Loader& loader_;
  Device& device_;
  Stream& stream_;
  Buffer images_;
  Buffer labels_;
  std::array<Lent, 2> lent_;
  std::size_t next_ = 0;
};

}  // namespace

std::unique_ptr<BatchSource> make_synthetic_batches(Device& device, Stream& stream,
                                                    const NetworkSettings& shape,
                                                    std::uint64_t seed) {
  return std::make_unique<SyntheticBatches>(device, stream, shape, seed);
}

std::unique_ptr<BatchSource> make_loaded_batches(Loader& loader, Device& device, Stream& stream,
                                                 const NetworkSettings& shape) {
  return std::make_unique<LoadedBatches>(loader, device, stream, shape);
}

std::size_t batch_bytes(const NetworkSettings& shape) {
  return image_bytes(shape) + label_bytes(shape);
}

}  // namespace shakedown

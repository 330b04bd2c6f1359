#include "training/data/batches.hpp"

#include <utility>
#include <vector>

#include "common/ensure.hpp"
#include "common/hash.hpp"

namespace shakedown::training {
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

  std::optional<DeviceBatch> next() override {
    return DeviceBatch{static_cast<const std::uint8_t*>(images_.data()),
                       static_cast<const std::int32_t*>(labels_.data())};
  }
  bool load_next(Network& network) override {
    return std::exchange(loaded_, true) || BatchSource::load_next(network);
  }
  void start_epoch(int, long) override {}

 private:
  Buffer images_;
  Buffer labels_;
  bool loaded_ = false;
};

using Sources = std::vector<std::unique_ptr<BatchSource>>;

InputTimes sum_of_times(const Sources& sources) {
  InputTimes all;
  for (const auto& source : sources) all = all + source->times();
  return all;
}

class InterleavedBatches final : public BatchSource {
 public:
  explicit InterleavedBatches(Sources sources) : sources_(std::move(sources)) {}

  std::optional<DeviceBatch> next() override {
    return sources_[std::exchange(next_, (next_ + 1) % sources_.size())]->next();
  }
  void start_epoch(int epoch, long first_batch) override {
    const auto sources = static_cast<long>(sources_.size());
    next_ = static_cast<std::size_t>(first_batch % sources);
    for (const auto& source : sources_) source->start_epoch(epoch, first_batch / sources);
  }
  InputTimes times() const override { return sum_of_times(sources_); }
  void drop_pending_stall() override {
    for (const auto& source : sources_) source->drop_pending_stall();
  }

 private:
  Sources sources_;
  std::size_t next_ = 0;
};

class ScatteredBatches final : public BatchSource {
 public:
  ScatteredBatches(Communicator& ranks, Device& device, Stream& stream,
                   const NetworkSettings& shape,
                   std::vector<std::unique_ptr<BatchSource>> of_every_rank, long batches_per_epoch)
      : ranks_(ranks),
        stream_(stream),
        sources_(std::move(of_every_rank)),
        batches_per_epoch_(batches_per_epoch),
        image_bytes_(image_bytes(shape)),
        label_bytes_(label_bytes(shape)) {
    if (ranks.rank() == 0) return;
    images_ = Buffer(device, image_bytes_);
    labels_ = Buffer(device, label_bytes_);
  }

  std::optional<DeviceBatch> next() override {
    if (batches_per_epoch_ > 0 && given_ == batches_per_epoch_) return std::nullopt;
    ++given_;
    if (ranks_.rank() == 0) return send();
    ranks_.group([&] {
      ranks_.recv(images_.view(DataType::uint8), 0, stream_);
      ranks_.recv(labels_.view(DataType::int32), 0, stream_);
    });
    return DeviceBatch{static_cast<const std::uint8_t*>(images_.data()),
                       static_cast<const std::int32_t*>(labels_.data())};
  }

  std::vector<DeviceBatch> of_all_ranks() const override { return sent_; }

  void start_epoch(int epoch, long first_batch) override {
    given_ = first_batch;
    for (const auto& source : sources_) source->start_epoch(epoch, first_batch);
  }
  void drop_pending_stall() override {
    for (const auto& source : sources_) source->drop_pending_stall();
  }
  InputTimes times() const override { return sum_of_times(sources_); }

 private:
  DeviceBatch send() {
    sent_.clear();
    for (const auto& source : sources_) {
      const std::optional<DeviceBatch> batch = source->next();
      ENSURE(batch, "every rank has as many batches");
      sent_.push_back(*batch);
    }
    ranks_.group([&] {
      for (std::size_t r = 1; r < sent_.size(); ++r) {
        const int rank = static_cast<int>(r);
        ranks_.send({sent_[r].images, image_bytes_, DataType::uint8, Place::device}, rank, stream_);
        ranks_.send(
            {sent_[r].labels, label_bytes_ / sizeof(std::int32_t), DataType::int32, Place::device},
            rank, stream_);
      }
    });
    return sent_.front();
  }

  Communicator& ranks_;
  Stream& stream_;
  Sources sources_;
  long batches_per_epoch_;
  long given_ = 0;
  std::size_t image_bytes_;
  std::size_t label_bytes_;
  std::vector<DeviceBatch> sent_;  // by rank 0, its own included
  Buffer images_;                  // that arrive here; rank 0 sends its sources' own
  Buffer labels_;
};

class NoBatches final : public BatchSource {
 public:
  explicit NoBatches(long batches_per_epoch) : batches_per_epoch_(batches_per_epoch) {}
  std::optional<DeviceBatch> next() override { return std::nullopt; }
  bool load_next(Network&) override { return given_ < batches_per_epoch_ && ++given_ > 0; }
  void start_epoch(int, long first_batch) override { given_ = first_batch; }

 private:
  const long batches_per_epoch_;
  long given_ = 0;
};

}  // namespace

void EndlessBatches::load_next(Network& network) {
  if (source_.load_next(network)) return;
  source_.start_epoch(++epoch_);
  ENSURE(source_.load_next(network), "an epoch without batches");
}

bool BatchSource::load_next(Network& network) {
  const std::optional<DeviceBatch> batch = next();
  if (batch) network.set_batch(batch->images, batch->labels);
  return batch.has_value();
}

std::unique_ptr<BatchSource> make_scattered_batches(
    Communicator& ranks, Device& device, Stream& stream, const NetworkSettings& shape,
    std::vector<std::unique_ptr<BatchSource>> of_every_rank, long batches_per_epoch) {
  return std::make_unique<ScatteredBatches>(ranks, device, stream, shape, std::move(of_every_rank),
                                            batches_per_epoch);
}

std::unique_ptr<BatchSource> make_interleaved_batches(
    std::vector<std::unique_ptr<BatchSource>> sources) {
  return std::make_unique<InterleavedBatches>(std::move(sources));
}

std::unique_ptr<BatchSource> make_no_batches(long batches_per_epoch) {
  return std::make_unique<NoBatches>(batches_per_epoch);
}

std::unique_ptr<BatchSource> make_synthetic_batches(Device& device, Stream& stream,
                                                    const NetworkSettings& shape,
                                                    std::uint64_t seed) {
  return std::make_unique<SyntheticBatches>(device, stream, shape, seed);
}

std::size_t batch_bytes(const NetworkSettings& shape) {
  return image_bytes(shape) + label_bytes(shape);
}

}  // namespace shakedown::training

#include "training/data/cached_source.hpp"

#include <chrono>

namespace shakedown::training {
namespace {

constexpr std::uint64_t kStep = std::uint64_t{64} << 20;

}  // namespace

CachedSource::CachedSource(std::unique_ptr<ImageSource> source, std::function<bool()> has_room,
                           std::function<void(const CachedSource&)> on_full)
    : source_(std::move(source)),
      has_room_(std::move(has_room)),
      on_full_(std::move(on_full)),
      kept_(source_->size()) {}

CachedSource::~CachedSource() {
  for (const auto& bytes : kept_) delete bytes.load();
}

void CachedSource::read(std::size_t index, std::vector<std::uint8_t>& bytes,
                        StageTimes& times) const {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  if (const Bytes* kept = kept_[index].load(std::memory_order_acquire)) {
    bytes = *kept;
    times.read_s += std::chrono::duration<double>(Clock::now() - start).count();
    return;
  }
  source_->read(index, bytes, times);
  if (!full_.load(std::memory_order_relaxed)) keep(index, bytes);
}

void CachedSource::keep(std::size_t index, const Bytes& bytes) const {
  const std::uint64_t before = bytes_kept_.fetch_add(bytes.size());
  const bool new_step = before == 0 || before / kStep != (before + bytes.size()) / kStep;
  if (new_step && !has_room_()) {
    bytes_kept_ -= bytes.size();
    if (!full_.exchange(true)) on_full_(*this);
    return;
  }
  auto copy = std::make_unique<const Bytes>(bytes);
  const Bytes* none = nullptr;  // another thread may have kept it meanwhile
  if (kept_[index].compare_exchange_strong(none, copy.get(), std::memory_order_release))
    copy.release();
  else
    bytes_kept_ -= bytes.size();
}

}  // namespace shakedown::training

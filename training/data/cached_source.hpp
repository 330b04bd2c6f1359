// Keeps the encoded images of another source in memory.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "training/data/image_source.hpp"

namespace shakedown::training {

/// Each image after its first read, as long as there is room. Reading a kept one locks nothing.
class CachedSource final : public ImageSource {
 public:
  /// `has_room` decides, once per 64 MiB, whether more may be kept; `on_full` is called once, when
  /// it may not.
  CachedSource(std::unique_ptr<ImageSource> source, std::function<bool()> has_room,
               std::function<void(const CachedSource&)> on_full);
  ~CachedSource() override;

  std::size_t size() const override { return source_->size(); }
  std::int32_t label(std::size_t index) const override { return source_->label(index); }
  std::string path(std::size_t index) const override { return source_->path(index); }
  const std::string& root() const override { return source_->root(); }
  const std::vector<std::string>& classes() const override { return source_->classes(); }
  std::string remark() const override { return source_->remark(); }
  std::uint64_t checksum() const override { return source_->checksum(); }
  void read(std::size_t index, std::vector<std::uint8_t>& bytes, StageTimes& times) const override;

  std::uint64_t bytes_kept() const { return bytes_kept_; }

 private:
  using Bytes = std::vector<std::uint8_t>;
  void keep(std::size_t index, const Bytes& bytes) const;

  const std::unique_ptr<ImageSource> source_;
  const std::function<bool()> has_room_;
  const std::function<void(const CachedSource&)> on_full_;
  mutable std::vector<std::atomic<const Bytes*>> kept_;  // by index; owned
  mutable std::atomic<std::uint64_t> bytes_kept_ = 0;
  mutable std::atomic<bool> full_ = false;
};

}  // namespace shakedown::training

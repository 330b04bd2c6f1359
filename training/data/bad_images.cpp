#include "training/data/bad_images.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>

#include "common/error.hpp"

namespace shakedown::training {

BadImages::BadImages(long most_allowed, std::function<void(const std::string&)> report)
    : most_allowed_(most_allowed), report_(std::move(report)) {}

void BadImages::note(const ImageSource& source, std::size_t index, const std::string& reason) {
  constexpr std::size_t kReported = 20;
  const std::string text = fmt::format("image {}: {}", source.name(index), reason);
  const std::lock_guard lock(mutex_);
  const bool is_new = indices_.insert(index).second;
  if (static_cast<long>(indices_.size()) > most_allowed_) {
    if (most_allowed_ == 0) throw UsageError(text);
    std::set<std::size_t> before = indices_;
    before.erase(index);
    throw UsageError(fmt::format("{}; --max-bad-images {}: {} were bad before: {}", text,
                                 most_allowed_, before.size(), names_of(source, before)));
  }
  if (!is_new || indices_.size() > kReported) return;
  report_(text + "; another image replaces it" +
          (indices_.size() == kReported ? "; further bad images are only counted" : ""));
}

void BadImages::restore(const std::vector<std::size_t>& indices) {
  const std::lock_guard lock(mutex_);
  indices_.insert(indices.begin(), indices.end());
  if (static_cast<long>(indices_.size()) > most_allowed_)
    throw UsageError(fmt::format("--max-bad-images {}: {} were bad before the interruption",
                                 most_allowed_, indices_.size()));
}

long BadImages::count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<long>(indices_.size());
}

std::vector<std::size_t> BadImages::indices() const {
  const std::lock_guard lock(mutex_);
  return {indices_.begin(), indices_.end()};
}

std::set<std::size_t> over_ranks(const BadImages& mine, const MpiSession& session) {
  std::set<std::size_t> all;
  for (const auto& list : session.all_gather(fmt::format("{}", fmt::join(mine.indices(), " ")))) {
    std::istringstream in(list);
    for (std::size_t index = 0; in >> index;) all.insert(index);
  }
  return all;
}

std::string names_of(const ImageSource& source, const std::set<std::size_t>& indices) {
  constexpr std::size_t kShown = 5;
  std::string text;
  std::size_t shown = 0;
  for (const std::size_t index : indices) {
    if (shown == kShown) return text + fmt::format(" and {} more", indices.size() - kShown);
    text += (shown++ > 0 ? ", " : "") + source.name(index);
  }
  return text;
}

}  // namespace shakedown::training

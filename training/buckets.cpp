#include "training/buckets.hpp"

#include "common/error.hpp"

namespace shakedown {

std::vector<Range> ddp_buckets(const ParameterTable& table, double first_cap_mb, double cap_mb) {
  const auto first_cap = static_cast<std::size_t>(first_cap_mb * 1048576.0);
  const auto cap = static_cast<std::size_t>(cap_mb * 1048576.0);
  std::vector<Range> buckets;
  Range open{0, 0};
  std::size_t bytes = 0;
  const auto& parameters = table.parameters();
  for (std::size_t i = parameters.size(); i-- > 0;) {  // the flat order is the reverse
    bytes += parameters[i].count * sizeof(float);
    open.end = i > 0 ? parameters[i - 1].offset : table.stored_count();
    if (bytes < (buckets.empty() ? first_cap : cap) && i > 0) continue;
    buckets.push_back(open);
    open.begin = open.end;
    bytes = 0;
  }
  return buckets;
}

void BucketProgress::restart() {
  next_ = 0;
  end_ = 0;
}

std::vector<Range> BucketProgress::finished(Range range) {
  ENSURE(range.begin == end_, "gradients finish in the flat buffer's order");
  end_ = range.end;
  std::vector<Range> done;
  while (next_ < buckets_.size() && buckets_[next_].end <= end_) done.push_back(buckets_[next_++]);
  return done;
}

}  // namespace shakedown

// What most of a group have: the reference where there is no other.
#pragma once

#include <map>
#include <optional>
#include <vector>

namespace shakedown::node {

/// The value that more than half of at least three have; none where there is no such. With two that
/// differ nobody can say which is right.
template <class T>
std::optional<T> majority_of(const std::vector<T>& values) {
  if (values.size() < 3) return std::nullopt;
  std::map<T, std::size_t> counts;
  for (const T& value : values)
    if (2 * ++counts[value] > values.size()) return value;
  return std::nullopt;
}

}  // namespace shakedown::node

// Images that cannot be read or decoded: named, counted, and refused when they are too many.
#pragma once

#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "common/mpi_session.hpp"
#include "training/data/image_source.hpp"

namespace shakedown::training {

/// Those of one source. Any thread may call it.
class BadImages {
 public:
  /// `report` prints a line about each of the first few.
  BadImages(long most_allowed, std::function<void(const std::string&)> report);

  /// Notes that the image is bad, for this reason; each image counts once. Throws UsageError naming
  /// it and those before when more are bad than allowed.
  void note(const ImageSource& source, std::size_t index, const std::string& reason);

  /// Counts those that a training met before it was interrupted. Throws UsageError where they are
  /// more than allowed.
  void restore(const std::vector<std::size_t>& indices);

  long most_allowed() const { return most_allowed_; }
  long count() const;
  /// In rising order.
  std::vector<std::size_t> indices() const;

 private:
  const long most_allowed_;
  const std::function<void(const std::string&)> report_;
  mutable std::mutex mutex_;
  std::set<std::size_t> indices_;
};

/// Those of all ranks: each rank knows those of its own shards, which change with the epoch.
/// Collective.
std::set<std::size_t> over_ranks(const BadImages& mine, const MpiSession& session);

/// "a.jpg, b.jpg and 3 more": the first few of these images by name.
std::string names_of(const ImageSource& source, const std::set<std::size_t>& indices);

}  // namespace shakedown::training

// Chooses by timing, and keeps the choices in the plan cache: the algorithm of each convolution,
// and whether a fused kernel replaces the separate ones.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "resnet/gpu/cudnn.hpp"
#include "resnet/gpu/handles.hpp"
#include "resnet/plan_cache.hpp"
#include "resnet/units.hpp"

namespace shakedown::gpu {

/// The name of a convolution's kernels in the log and in the cache.
const char* work_name(ConvKind kind);

/// The algorithms that can compute a convolution, and the one that does.
struct ConvChoice {
  ConvPlans candidates;
  std::optional<std::size_t> chosen;  // none before they were timed
  std::string key;                    // in the cache
};

class Tuner {
 public:
  /// `dnn` outlives it.
  Tuner(const UnitContext& context, const DnnHandle& dnn);

  /// One for all units whose convolutions have the same shape.
  ConvChoice& choice(ConvKind kind, const ConvShape& conv);
  /// Times every candidate bound to `buffers` and chooses the fastest.
  void choose(ConvChoice& choice, const ConvBuffers& buffers, void* workspace);

  /// Whether it chooses between fused and unfused work, rather than the options.
  bool chooses() const;
  /// Whether this form of fusion may be used for the work that `key` names: it is requested, or no
  /// run has found it slower.
  bool may_fuse(Fusion form, const std::string& key) const;
  /// Whether the fused kernel is used: it is requested, or timed and preferred
  /// (resnet/verdict.hpp). `randomise_inputs` enqueues the data that both are timed on.
  bool fuses(const std::string& key, const std::function<void()>& randomise_inputs,
             const std::function<void()>& fused, const std::function<void()>& unfused);
  std::string key(ConvKind kind, const ConvShape& conv) const;
  /// The fastest of `count` ways, timed; without timing the first. Not kept in the cache.
  std::size_t fastest(std::size_t count, const std::function<void(std::size_t)>& run);

  /// Writes what was timed to the cache's file.
  void save() { cache_.save(); }

 private:
  bool times() const;
  std::optional<bool> known_to_fuse(const std::string& key) const;
  /// Milliseconds on the stream of one run.
  double time_once(const std::function<void()>& body);
  /// Time of the fastest of three runs, after one that loads the kernels.
  double time(const std::function<void()>& body);

  UnitContext context_;
  const DnnHandle& dnn_;
  PlanCache cache_;
  using Key = std::tuple<ConvKind, int, int, int, int, int, int, int, int>;
  std::map<Key, ConvChoice> choices_;
  std::unique_ptr<Event> start_;
  std::unique_ptr<Event> end_;
};

}  // namespace shakedown::gpu

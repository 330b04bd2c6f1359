#include "training/step/step_graphs.hpp"

#include <string>
#include <utility>

#include "common/error.hpp"

namespace shakedown::training {

void StepGraphs::capture(int parts, const std::function<void(int part)>& enqueue) {
  std::vector<Part> captured(static_cast<std::size_t>(parts));
  for (int i = 0; i < parts; ++i) {
    Part& part = captured[static_cast<std::size_t>(i)];
    try {
      part.marks = timeline_.captured(
          [&] { part.graph = ranks_.capture(device_, compute_, [&] { enqueue(i); }); });
    } catch (const InternalError& error) {
      throw InternalError(std::string("the step cannot be a CUDA graph here, --graph off does "
                                      "without: ") +
                          error.what());
    }
  }
  graphs() = std::move(captured);
}

void StepGraphs::launch(int part) {
  const Part& p = graphs().at(static_cast<std::size_t>(part));
  timeline_.launched(p.marks);
  p.graph->launch(compute_);
}

}  // namespace shakedown::training

#include "training/step/step_graphs.hpp"

#include <string>
#include <utility>

#include "common/error.hpp"

namespace shakedown::training {

void StepGraphs::capture(int micro_batches, const std::function<void(int micro_batch)>& enqueue) {
  std::vector<MarkedGraph> captured(static_cast<std::size_t>(micro_batches));
  try {
    for (int m = 0; m < micro_batches; ++m) {
      MarkedGraph& made = captured[static_cast<std::size_t>(m)];
      made.marks = timeline_.captured(
          [&] { made.graph = ranks_.capture(device_, compute_, [&] { enqueue(m); }); });
    }
  } catch (const InternalError& error) {
    throw InternalError(std::string("the step cannot be captured as a CUDA graph here, --graph off "
                                    "runs without: ") +
                        error.what());
  }
  graphs() = std::move(captured);
}

void StepGraphs::launch(int micro_batch) {
  const MarkedGraph& made = graphs().at(static_cast<std::size_t>(micro_batch));
  timeline_.launched(made.marks);
  made.graph->launch(compute_);
}

}  // namespace shakedown::training

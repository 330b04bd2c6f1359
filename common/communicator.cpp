#include "common/communicator.hpp"

#include <utility>

#include "common/error.hpp"

namespace shakedown {

Traffic operator+(const Traffic& a, const Traffic& b) {
  return {a.operations + b.operations, a.sent_bytes + b.sent_bytes,
          a.received_bytes + b.received_bytes, a.staged_bytes + b.staged_bytes};
}

Traffic operator-(const Traffic& a, const Traffic& b) {
  return {a.operations - b.operations, a.sent_bytes - b.sent_bytes,
          a.received_bytes - b.received_bytes, a.staged_bytes - b.staged_bytes};
}

/// Known to its communicator for as long as both live.
class Communicator::Captured final : public Graph {
 public:
  Captured(Communicator& owner, std::unique_ptr<Graph> graph, const Traffic& traffic)
      : owner_(&owner), graph_(std::move(graph)), traffic_(traffic) {
    owner.graphs_.push_back(this);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  ~Captured() override {
    if (owner_ != nullptr) std::erase(owner_->graphs_, this);
  }

  void launch(Stream& stream) override {
    ENSURE(owner_ != nullptr, "a graph is launched while its communicator lives");
    graph_->launch(stream);
    owner_->launched_ = owner_->launched_ + traffic_;
  }
  void drop() noexcept {
    graph_.reset();
    owner_ = nullptr;
  }

 private:
  Communicator* owner_;
  std::unique_ptr<Graph> graph_;
  Traffic traffic_;
};

std::unique_ptr<Graph> Communicator::capture(Device& device, Stream& stream,
                                             const std::function<void()>& body) {
  const Traffic before = traffic_;
  auto graph = capture_uncounted(device, stream, body);
  const Traffic captured = traffic_ - before;
  launched_ = launched_ - captured;
  return std::make_unique<Captured>(*this, std::move(graph), captured);
}

Peers& Communicator::peers() {
  throw UsageError(
      "peer memory (--strategy peer): only on the gpu backend, and without --throttle-gbs");
}

void Communicator::drop_graphs() noexcept {
  for (Captured* graph : graphs_) graph->drop();
  graphs_.clear();
}

}  // namespace shakedown

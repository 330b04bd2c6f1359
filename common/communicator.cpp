#include "common/communicator.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "common/error.hpp"
#include "common/kernels.hpp"

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

namespace {

/// The link of this rank, on the device's clock.
class Link {
 public:
  Link(Device& device, double gbs)
      : kernels_(device.kernels()), gbs_(gbs), free_at_(device, sizeof(DuplexTime)) {
    const auto stream = device.make_stream();
    device.zero(free_at_.data(), free_at_.bytes(), *stream);
    stream->synchronize();
  }

  void occupy(double sent_bytes, double received_bytes, Stream& stream) {
    const DuplexTime needed{nanoseconds(sent_bytes), nanoseconds(received_bytes)};
    if (needed.send > 0 || needed.receive > 0)
      kernels_.occupy_link(static_cast<DuplexTime*>(free_at_.data()), needed, stream);
  }

 private:
  std::uint64_t nanoseconds(double bytes) const {
    constexpr double kForEver = 1e18;  // 30 years; clocks count further
    return static_cast<std::uint64_t>(std::ceil(std::min(bytes / gbs_, kForEver)));
  }

  const Kernels& kernels_;
  double gbs_;
  Buffer free_at_;
};

class ThrottledCommunicator final : public Communicator {
 public:
  ThrottledCommunicator(std::unique_ptr<Communicator> fast, std::shared_ptr<Link> link)
      : fast_(std::move(fast)), link_(std::move(link)) {}

  const char* transport() const override { return fast_->transport(); }
  int rank() const override { return fast_->rank(); }
  int size() const override { return fast_->size(); }
  bool supports(DataType type) const override { return fast_->supports(type); }
  /// So is what slows them down: it reads the device's clock anew with each launch.
  bool capturable() const override { return fast_->capturable(); }

  void all_reduce(ConstView send, View recv, Reduction op, Stream& stream) override {
    count_ring(recv.bytes(), 2);
    slowed(stream, [=, this, &stream] { fast_->all_reduce(send, recv, op, stream); });
  }
  void reduce(ConstView send, View recv, Reduction op, int root, Stream& stream) override {
    count_reduce(send.bytes(), root);
    slowed(stream, [=, this, &stream] { fast_->reduce(send, recv, op, root, stream); });
  }
  void broadcast(ConstView send, View recv, int root, Stream& stream) override {
    count_broadcast(recv.bytes(), root);
    slowed(stream, [=, this, &stream] { fast_->broadcast(send, recv, root, stream); });
  }
  void all_gather(ConstView send, View recv, Stream& stream) override {
    count_ring(recv.bytes(), 1);
    slowed(stream, [=, this, &stream] { fast_->all_gather(send, recv, stream); });
  }
  void reduce_scatter(ConstView send, View recv, Reduction op, Stream& stream) override {
    count_ring(send.bytes(), 1);
    slowed(stream, [=, this, &stream] { fast_->reduce_scatter(send, recv, op, stream); });
  }
  void gather(ConstView send, View recv, int root, Stream& stream) override {
    count_gather(send.bytes(), root);
    slowed(stream, [=, this, &stream] { fast_->gather(send, recv, root, stream); });
  }
  void scatter(ConstView send, View recv, int root, Stream& stream) override {
    count_scatter(recv.bytes(), root);
    slowed(stream, [=, this, &stream] { fast_->scatter(send, recv, root, stream); });
  }
  void all_to_all(ConstView send, View recv, Stream& stream) override {
    count_ring(send.bytes(), 1);
    slowed(stream, [=, this, &stream] { fast_->all_to_all(send, recv, stream); });
  }
  void send(ConstView view, int peer, Stream& stream) override {
    count(view.bytes(), 1, 0);
    slowed(stream, [=, this, &stream] { fast_->send(view, peer, stream); });
  }
  void recv(View view, int peer, Stream& stream) override {
    count(view.bytes(), 0, 1);
    slowed(stream, [=, this, &stream] { fast_->recv(view, peer, stream); });
  }

  std::unique_ptr<TransportMemory> allocate(std::size_t bytes, Registration registration) override {
    return fast_->allocate(bytes, registration);
  }
  void barrier() override { fast_->barrier(); }
  void notify(int peer, int value) override { fast_->notify(peer, value); }
  Notice next_notice() override { return fast_->next_notice(); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<ThrottledCommunicator>(fast_->split(color, key), link_);
  }
  void wait(const Event& event, HostWait how) override { fast_->wait(event, how); }

 protected:
  std::unique_ptr<Graph> capture_uncounted(Device& device, Stream& stream,
                                           const std::function<void()>& body) override {
    return fast_->capture(device, stream, body);
  }
  void begin_group() override { ++groups_; }
  void end_group() override {
    if (--groups_ == 0 && !requested_.empty()) start();
  }

 private:
  /// Requested, and already counted.
  void slowed(Stream& stream, std::function<void()> operation) {
    ENSURE(requested_.empty() || stream_ == &stream, "a throttled group is on one stream");
    stream_ = &stream;
    requested_.push_back(std::move(operation));
    if (groups_ == 0) start();
  }

  void start() {
    link_->occupy(traffic_.sent_bytes - started_.sent_bytes,
                  traffic_.received_bytes - started_.received_bytes, *stream_);
    fast_->group([&] {
      for (const auto& operation : requested_) operation();
    });
    requested_.clear();
    traffic_.staged_bytes = fast_->traffic().staged_bytes;
    started_ = traffic_;
  }

  std::unique_ptr<Communicator> fast_;
  std::shared_ptr<Link> link_;
  int groups_ = 0;  // one within another
  // Operations that wait for the end of their group; all on one stream.
  std::vector<std::function<void()>> requested_;
  Stream* stream_ = nullptr;
  Traffic started_;  // of what has started
};

}  // namespace

std::unique_ptr<Communicator> make_throttled_communicator(std::unique_ptr<Communicator> fast,
                                                          Device& device, double gbs) {
  ENSURE(gbs > 0, "a rate above 0");
  return std::make_unique<ThrottledCommunicator>(std::move(fast),
                                                 std::make_shared<Link>(device, gbs));
}

}  // namespace shakedown

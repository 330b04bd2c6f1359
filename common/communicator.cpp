#include "common/communicator.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "common/ensure.hpp"
#include "common/kernels.hpp"
#include "common/usage_error.hpp"

namespace shakedown {

Traffic operator+(const Traffic& a, const Traffic& b) {
  return {a.operations + b.operations, a.sent_bytes + b.sent_bytes,
          a.received_bytes + b.received_bytes, a.staged_bytes + b.staged_bytes};
}

Traffic operator-(const Traffic& a, const Traffic& b) {
  return {a.operations - b.operations, a.sent_bytes - b.sent_bytes,
          a.received_bytes - b.received_bytes, a.staged_bytes - b.staged_bytes};
}

const char* Communicator::Exchange::name() const {
  constexpr std::array kNames{"all_reduce", "reduce",  "broadcast",  "all_gather", "reduce_scatter",
                              "gather",     "scatter", "all_to_all", "send",       "recv"};
  return kNames[kind];
}

void Communicator::request(const Exchange& x, Stream& stream) {
  const auto ranks = static_cast<std::size_t>(size());
  const std::size_t sent = x.from.count;
  const std::size_t received = x.to.count;
  const bool fits = x.kind == Exchange::all_gather       ? received == sent * ranks
                    : x.kind == Exchange::reduce_scatter ? sent == received * ranks
                    : x.kind == Exchange::all_to_all     ? sent == received && sent % ranks == 0
                                                         : true;
  ENSURE(fits, std::string(x.name()) + " counts");
  count(x);
  enqueue(x, stream);
}

/// Reductions and gathers by rings, broadcast and reduce along a chain that begins, or ends, at the
/// root.
void Communicator::count(const Exchange& x) {
  const int n = size();
  const bool is_root = rank() == x.peer;
  const auto all_but = [&](int one) { return rank() == one ? 0.0 : 1.0; };
  switch (x.kind) {
    case Exchange::all_reduce: return add_ring(x.to.bytes(), 2);
    case Exchange::all_gather: return add_ring(x.to.bytes(), 1);
    case Exchange::reduce_scatter:
    case Exchange::all_to_all: return add_ring(x.from.bytes(), 1);
    case Exchange::reduce: return add(x.from.bytes(), all_but(x.peer), all_but((x.peer + 1) % n));
    case Exchange::broadcast:
      return add(x.to.bytes(), all_but((x.peer + n - 1) % n), all_but(x.peer));
    case Exchange::gather: return add(x.from.bytes(), all_but(x.peer), is_root ? n - 1 : 0);
    case Exchange::scatter: return add(x.to.bytes(), is_root ? n - 1 : 0, all_but(x.peer));
    case Exchange::send: return add(x.from.bytes(), 1, 0);
    case Exchange::recv: return add(x.to.bytes(), 0, 1);
  }
}

void Communicator::add(std::size_t bytes, double sends, double receives) {
  ++traffic_.operations;
  traffic_.sent_bytes += sends * static_cast<double>(bytes);
  traffic_.received_bytes += receives * static_cast<double>(bytes);
}

void Communicator::add_ring(std::size_t bytes, int passes) {
  const double share = static_cast<double>(passes) * (size() - 1) / size();
  add(bytes, share, share);
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

  std::unique_ptr<TransportMemory> allocate(std::size_t bytes, Registration registration) override {
    return fast_->allocate(bytes, registration);
  }
  void barrier() override { fast_->barrier(); }
  void notify(int peer, int value) override { fast_->notify(peer, value); }
  Notice next_notice() override { return fast_->next_notice(); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<ThrottledCommunicator>(fast_->split(color, key), link_);
  }
  void wait_until(const std::function<bool()>& done, HostWait how) override {
    fast_->wait_until(done, how);
  }

 protected:
  std::unique_ptr<Graph> capture_uncounted(Device& device, Stream& stream,
                                           const std::function<void()>& body) override {
    return fast_->capture(device, stream, body);
  }
  void begin_group() override { ++groups_; }
  void end_group() override {
    if (--groups_ == 0 && !requested_.empty()) start();
  }
  void enqueue(const Exchange& exchange, Stream& stream) override {
    ENSURE(requested_.empty() || stream_ == &stream, "a throttled group is on one stream");
    stream_ = &stream;
    requested_.push_back(exchange);
    if (groups_ == 0) start();
  }

 private:
  void start() {
    link_->occupy(traffic_.sent_bytes - started_.sent_bytes,
                  traffic_.received_bytes - started_.received_bytes, *stream_);
    fast_->group([&] {
      for (const Exchange& exchange : requested_) pass_on(*fast_, exchange, *stream_);
    });
    requested_.clear();
    traffic_.staged_bytes = fast_->traffic().staged_bytes;
    started_ = traffic_;
  }

  std::unique_ptr<Communicator> fast_;
  std::shared_ptr<Link> link_;
  int groups_ = 0;  // one within another
  // Operations that wait for the end of their group; all on one stream.
  std::vector<Exchange> requested_;
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

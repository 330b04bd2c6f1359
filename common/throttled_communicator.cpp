#include "common/throttled_communicator.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "common/error.hpp"
#include "common/kernels.hpp"

namespace shakedown {
namespace {

/// The link of this rank, on the device's clock.
class Link {
 public:
  Link(Device& device, double gbs)
      : kernels_(device.kernels()), gbs_(gbs), memory_(device, sizeof(Memory)) {
    const auto stream = device.make_stream();
    device.zero(memory_.data(), memory_.bytes(), *stream);
    stream->synchronize();
  }

  /// The place of the time at which something begins, which is now in the stream's order.
  const std::uint64_t* begin(Stream& stream) {
    std::uint64_t* time = &memory()->began[next_++ % kPlaces];
    kernels_.mark_time(time, stream);
    return time;
  }
  void occupy(const std::uint64_t* began, double sent_bytes, double received_bytes,
              Stream& stream) {
    const DuplexTime needed{nanoseconds(sent_bytes), nanoseconds(received_bytes)};
    if (needed.send > 0 || needed.receive > 0)
      kernels_.occupy_link(&memory()->free_at, began, needed, stream);
  }

 private:
  // Operations on one stream follow one another and could share a place; so many, taken in turns,
  // keep streams apart.
  static constexpr std::size_t kPlaces = 1024;
  struct Memory {
    DuplexTime free_at;
    std::uint64_t began[kPlaces];
  };

  Memory* memory() const { return static_cast<Memory*>(memory_.data()); }
  std::uint64_t nanoseconds(double bytes) const {
    constexpr double kForEver = 1e18;  // 30 years; clocks count further
    return static_cast<std::uint64_t>(std::ceil(std::min(bytes / gbs_, kForEver)));
  }

  const Kernels& kernels_;
  double gbs_;
  Buffer memory_;
  std::size_t next_ = 0;
};

class ThrottledCommunicator final : public Communicator {
 public:
  ThrottledCommunicator(std::unique_ptr<Communicator> fast, std::shared_ptr<Link> link)
      : fast_(std::move(fast)), link_(std::move(link)) {}

  const char* transport() const override { return fast_->transport(); }
  int rank() const override { return fast_->rank(); }
  int size() const override { return fast_->size(); }
  bool supports(DataType type) const override { return fast_->supports(type); }

  void all_reduce(ConstView send, View recv, Reduction op, Stream& stream) override {
    slowed(stream, [&] { fast_->all_reduce(send, recv, op, stream); });
  }
  void reduce(ConstView send, View recv, Reduction op, int root, Stream& stream) override {
    slowed(stream, [&] { fast_->reduce(send, recv, op, root, stream); });
  }
  void broadcast(ConstView send, View recv, int root, Stream& stream) override {
    slowed(stream, [&] { fast_->broadcast(send, recv, root, stream); });
  }
  void all_gather(ConstView send, View recv, Stream& stream) override {
    slowed(stream, [&] { fast_->all_gather(send, recv, stream); });
  }
  void reduce_scatter(ConstView send, View recv, Reduction op, Stream& stream) override {
    slowed(stream, [&] { fast_->reduce_scatter(send, recv, op, stream); });
  }
  void gather(ConstView send, View recv, int root, Stream& stream) override {
    slowed(stream, [&] { fast_->gather(send, recv, root, stream); });
  }
  void scatter(ConstView send, View recv, int root, Stream& stream) override {
    slowed(stream, [&] { fast_->scatter(send, recv, root, stream); });
  }
  void all_to_all(ConstView send, View recv, Stream& stream) override {
    slowed(stream, [&] { fast_->all_to_all(send, recv, stream); });
  }
  void send(ConstView view, int peer, Stream& stream) override {
    slowed(stream, [&] { fast_->send(view, peer, stream); });
  }
  void recv(View view, int peer, Stream& stream) override {
    slowed(stream, [&] { fast_->recv(view, peer, stream); });
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
  const Traffic& traffic() const override { return fast_->traffic(); }

 protected:
  void begin_group() override {
    begin_group_of(*fast_);
    ++groups_;
  }
  void end_group() override {
    end_group_of(*fast_);
    if (--groups_ > 0 || !group_) return;
    finish(*group_);
    group_.reset();
  }

 private:
  /// What is under way: an operation, or a group of them.
  struct Turn {
    Stream* stream;
    const std::uint64_t* began;
    Traffic before;
  };

  Turn start(Stream& stream) { return {&stream, link_->begin(stream), traffic()}; }
  void finish(const Turn& turn) {
    link_->occupy(turn.began, traffic().sent_bytes - turn.before.sent_bytes,
                  traffic().received_bytes - turn.before.received_bytes, *turn.stream);
  }

  template <class Operation>
  void slowed(Stream& stream, Operation&& operation) {
    if (groups_ > 0) {
      if (!group_) group_ = start(stream);
      ENSURE(group_->stream == &stream, "a throttled group is on one stream");
      return operation();
    }
    const Turn turn = start(stream);
    operation();
    finish(turn);
  }

  std::unique_ptr<Communicator> fast_;
  std::shared_ptr<Link> link_;
  int groups_ = 0;  // one within another
  std::optional<Turn> group_;
};

}  // namespace

std::unique_ptr<Communicator> make_throttled_communicator(std::unique_ptr<Communicator> fast,
                                                          Device& device, double gbs) {
  ENSURE(gbs > 0, "a rate above 0");
  return std::make_unique<ThrottledCommunicator>(std::move(fast),
                                                 std::make_shared<Link>(device, gbs));
}

}  // namespace shakedown

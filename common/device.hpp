// The device a rank computes on: its memory, streams and events. One contract for both backends:
// work on a stream runs in order; on the cpu backend it has run when the call returns.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/types.hpp"

namespace shakedown {

class Kernels;

enum class BackendKind { cpu, gpu };
const char* name_of(BackendKind kind);

class Event;

class Stream {
 public:
  virtual ~Stream() = default;
  /// Later work on this stream starts after what `event` recorded; the host does not wait.
  /// A stream that is not being captured joins the capture that `event` was recorded in, while that
  /// goes on. Else an event of another capture, or of none while this stream is being captured, is
  /// ignored: a graph starts after all earlier work of the stream that it is launched on, and ends
  /// before all later work, so whatever it depends on must be joined to that stream.
  virtual void wait(const Event& event) = 0;
  /// Blocks the host; throws TimeoutError past --timeout. Where ranks depend on one another, use
  /// Communicator::wait: it names them.
  virtual void synchronize() = 0;
  /// Whether all that was enqueued is done.
  virtual bool done() const = 0;
};

class Event {
 public:
  virtual ~Event() = default;
  /// For Stream::wait, and outside of graphs for the rest. While the stream is being captured it
  /// only orders what is captured, and measures no time.
  virtual void record(Stream& stream) = 0;
  /// For done() and milliseconds_since(), also from within a graph: each launch records it anew. A
  /// stream must not wait for it.
  virtual void record_time(Stream& stream) { record(stream); }
  virtual bool done() const = 0;
  /// As Stream::synchronize.
  virtual void synchronize() const = 0;
  /// Milliseconds from `start` to this event; both made with timing and done.
  virtual double milliseconds_since(const Event& start) const = 0;
};

/// Work captured once, launched as often as wanted.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch(Stream& stream) = 0;
};

struct MemoryInfo {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
};

/// The description of a device; an empty string is "not known".
struct DeviceIdentity {
  std::string model;
  std::string uuid;
  std::string pci_id;
  int compute_threads = 0;  // cpu: threads this rank computes with; gpu: multiprocessors
  std::string compute_capability = "";  // gpu: "9.0"
};

enum class StreamPriority { normal, high };

class Device {
 public:
  virtual ~Device() = default;

  virtual BackendKind kind() const = 0;
  virtual DeviceIdentity identity() const = 0;
  virtual MemoryInfo memory() const = 0;
  virtual const Kernels& kernels() const = 0;

  /// For every thread that enqueues work here but the one that made the device, before it does.
  virtual void use_on_this_thread() {}

  virtual std::unique_ptr<Stream> make_stream(StreamPriority priority = StreamPriority::normal) = 0;
  virtual std::unique_ptr<Event> make_event() = 0;

  /// Whether there are graphs here: on the gpu backend.
  virtual bool has_graphs() const { return false; }
  /// Captures what `body` enqueues on the stream, without running it, and brings it to the device.
  /// Other streams take part that wait for an event recorded in it; `body` must make the stream
  /// wait for them in the end. Their priorities are kept. When `body` throws, or what it does
  /// cannot be captured, this throws and no stream is left capturing. Throws UsageError where there
  /// are no graphs.
  virtual std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& body);

  /// Enqueues a copy between any two places of this rank. Ordinary (not pinned) host memory may
  /// be changed as soon as the call returns.
  virtual void copy(void* to, const void* from, std::size_t bytes, Stream& stream) = 0;
  virtual void zero(void* to, std::size_t bytes, Stream& stream) = 0;

  /// Name what the host enqueues between them, for profilers (NVTX); they nest.
  virtual void begin_range(const std::string& /*name*/) {}
  virtual void end_range() {}

  /// Bytes held by Buffers in device memory, now and at most.
  std::size_t allocated_bytes() const { return allocated_; }
  std::size_t peak_allocated_bytes() const { return peak_; }
  /// Forgets what was held at most before: for programs that measure one thing after another.
  void restart_peak() { peak_ = allocated_; }

  /// Whether a Buffer of this device holds the byte.
  bool owns(const void* byte) const;
  /// From now on no Buffer's memory is released: after a time-out a transport may still read and
  /// write it.
  void keep_memory() { keeps_memory_ = true; }

 protected:
  /// Throws OutOfMemory naming the bytes needed and free when there is not enough.
  virtual void* allocate(std::size_t bytes, Place place) = 0;
  virtual void release(void* memory, Place place) noexcept = 0;

 private:
  friend class Buffer;
  std::size_t allocated_ = 0;
  std::size_t peak_ = 0;
  std::map<const std::byte*, std::size_t> buffers_;  // bytes by where they begin
  mutable std::mutex mutex_;  // of these three: threads may make Buffers of one device
  bool keeps_memory_ = false;
};

/// Names the work enqueued during its lifetime, for profilers.
class ProfilerRange {
 public:
  ProfilerRange(Device& device, const std::string& name) : device_(device) {
    device.begin_range(name);
  }
  ~ProfilerRange() { device_.end_range(); }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

 private:
  Device& device_;
};

/// Owns `bytes` of device memory, or of host memory pinned for copies. Contents start undefined.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, std::size_t bytes, Place place = Place::device);
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Place place() const { return place_; }

  /// The whole buffer as elements of `type`.
  View view(DataType type) const { return {data_, bytes_ / size_of(type), type, place_}; }

 private:
  void swap(Buffer& other) noexcept;

  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Place place_ = Place::device;
};

/// Copies device memory to a new host vector and the other way; both wait for the copy.
template <class T>
std::vector<T> download(Device& device, Stream& stream, const void* from, std::size_t count) {
  std::vector<T> host(count);
  stream.synchronize();  // which times out, while a copy to pageable memory waits for ever
  device.copy(host.data(), from, count * sizeof(T), stream);
  stream.synchronize();
  return host;
}
template <class T>
void upload(Device& device, Stream& stream, void* to, std::span<const T> host) {
  device.copy(to, host.data(), host.size_bytes(), stream);
  stream.synchronize();
}

// Times between marks on a stream.

class Laps {
 public:
  /// For about `count` laps. Events are made here, before what is timed: of a long run those of its
  /// last laps, which the device has yet to reach.
  Laps(Device& device, int count) {
    constexpr int kAhead = 256;
    for (int i = 0; i <= std::min(count, kAhead); ++i) marks_.push_back(device.make_event());
  }
  /// Enqueues: a lap ends, and the next one begins. The first call begins the first.
  void mark(Stream& stream) {
    if (marked_ >= marks_.size()) measure(marked_ - marks_.size() + 1);  // its event is used again
    event(marked_++).record(stream);
  }
  /// Waits for the last mark. Milliseconds of each lap.
  std::vector<double> milliseconds() {
    event(marked_ - 1).synchronize();
    while (ms_.size() + 1 < marked_) measure(ms_.size() + 1);
    return ms_;
  }

 private:
  Event& event(std::size_t mark) { return *marks_[mark % marks_.size()]; }
  /// The lap that ends with this mark, once the device has reached it.
  void measure(std::size_t mark) {
    event(mark).synchronize();
    ms_.push_back(event(mark).milliseconds_since(event(mark - 1)));
  }

  std::vector<std::unique_ptr<Event>> marks_;
  std::size_t marked_ = 0;
  std::vector<double> ms_;
};

// Waiting for a device without trusting that it will finish.

[[noreturn]] void throw_device_timeout(double timeout_s, const std::string& cause);

/// Polls `done`, and `check` (which throws on an asynchronous error) now and then; sleeps between
/// polls once it has waited `spin_s`. Throws TimeoutError with the cause past the timeout.
template <class Done, class Check>
void wait_until(Done&& done, double timeout_s, double spin_s, Check&& check,
                const std::string& cause) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (long round = 0; !done(); ++round) {
    if (round % 64 != 0) continue;
    check();
    const std::chrono::duration<double> waited = Clock::now() - start;
    if (waited.count() > timeout_s) throw_device_timeout(timeout_s, cause);
    if (waited.count() > spin_s) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

/// For what waits for other ranks.
template <class Done, class Check>
void wait_for_ranks(Done&& done, double timeout_s, double spin_s, Check&& check) {
  wait_until(std::forward<Done>(done), timeout_s, spin_s, std::forward<Check>(check),
             "another rank has stopped, died or fallen behind");
}

}  // namespace shakedown

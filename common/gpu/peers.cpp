// Peers by CUDA's interprocess memory: each rank opens the handles of the others' allocations.
// (NCCL 2.28's device API has such pointers and barriers too, but its barriers spin without an end,
// so that one stopped rank hangs the other GPUs; and it needs windows of NCCL's own memory.)
#include "common/communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <string>

#include "common/error.hpp"
#include "common/gpu/native.hpp"
#include "common/gpu/peer_kernels.hpp"
#include "common/host.hpp"
#include "common/kernels.hpp"

namespace shakedown::gpu {
namespace {

using Text = std::array<char, 256>;

Text text_of(const std::string& words) {
  Text text{};
  std::copy_n(words.begin(), std::min(words.size(), text.size() - 1), text.begin());
  return text;
}

/// One value of every rank, by rank.
template <class Struct>
std::vector<Struct> gather(Communicator& host, Device& device, const Struct& mine) {
  std::vector<Struct> all(static_cast<std::size_t>(host.size()));
  const auto stream = device.make_stream();
  host.all_gather(ConstView(&mine, sizeof(Struct), DataType::uint8, Place::host),
                  View(all.data(), all.size() * sizeof(Struct), DataType::uint8, Place::host),
                  *stream);
  stream->synchronize();
  return all;
}

/// What a rank offers of its memory, and where it is.
struct Offer {
  Text host;
  cudaIpcMemHandle_t handle;
  Text problem;
};

/// "" for success; the error is not sticky.
std::string problem_of(cudaError_t status) {
  if (status == cudaSuccess) return "";
  cudaGetLastError();
  return cudaGetErrorString(status);
}

Offer offer_of(View own) {
  Offer offer{};
  offer.host = text_of(host_name());
  offer.problem = text_of(problem_of(cudaIpcGetMemHandle(&offer.handle, own.data)));
  return offer;
}

class MappedMemory final : public PeerMemory {
 public:
  /// Maps what can be mapped.
  MappedMemory(Communicator& host, Device& device, View own)
      : host_(host), problems_(static_cast<std::size_t>(host.size())) {
    const std::vector<Offer> offers = gather(host, device, offer_of(own));
    for (int r = 0; r < host.size(); ++r) {
      views_.push_back(r == host.rank() ? own : View());
      if (r != host.rank()) problems_[static_cast<std::size_t>(r)] = open(r, offers, own);
    }
  }
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;
  ~MappedMemory() override {
    if (std::uncaught_exceptions() > exceptions_) return;  // the job ends, and peers may hang
    cudaDeviceSynchronize();  // kernels that read the others' memory; they end by themselves
    close();
    try {
      host_.barrier();  // the others have closed this rank's
    } catch (const Error&) {
    }
  }

  const std::vector<View>& views() const override { return views_; }
  const std::vector<std::string>& problems() const override { return problems_; }

 private:
  /// Returns the reason where it cannot.
  std::string open(int rank, const std::vector<Offer>& offers, View own) {
    const Offer& mine = offers[static_cast<std::size_t>(host_.rank())];
    const Offer& other = offers[static_cast<std::size_t>(rank)];
    std::string problem = other.problem.data();
    if (mine.host != other.host)
      problem = fmt::format("they are on {} and {}", mine.host.data(), other.host.data());
    void* data = nullptr;
    if (problem.empty())
      problem =
          problem_of(cudaIpcOpenMemHandle(&data, other.handle, cudaIpcMemLazyEnablePeerAccess));
    if (!problem.empty())
      return fmt::format("rank {} cannot map the GPU memory of rank {}: {}", host_.rank(), rank,
                         problem);
    views_[static_cast<std::size_t>(rank)] = View(data, own.count, own.type, own.place);
    return "";
  }

  void close() noexcept {
    for (int r = 0; r < static_cast<int>(views_.size()); ++r) {
      void* const data = views_[static_cast<std::size_t>(r)].data;
      if (r != host_.rank() && data != nullptr) cudaIpcCloseMemHandle(data);
    }
  }

  Communicator& host_;
  std::vector<View> views_;
  std::vector<std::string> problems_;
  int exceptions_ = std::uncaught_exceptions();
};

class CudaPeers final : public Peers {
 public:
  CudaPeers(Communicator& host, Device& device, double timeout_s)
      : host_(host),
        device_(device),
        timeout_s_(timeout_s),
        words_(device, sizeof(PeerWords)),
        status_(device, sizeof(PeerStatus), Place::host) {
    if (host.size() > kMostPeers)
      throw UsageError(fmt::format("peer memory (--strategy peer): {} ranks, {} at most",
                                   host.size(), kMostPeers));
    std::memset(status_.data(), 0, status_.bytes());
    const auto stream = device.make_stream();
    device.zero(words_.data(), words_.bytes(), *stream);
    stream->synchronize();  // before another rank, which has come to map(), writes to it
    mapped_ = map(words_.view(DataType::uint8));
    for (int r = 0; r < host.size(); ++r)
      table_.words[r] = static_cast<PeerWords*>(mapped_->views()[static_cast<std::size_t>(r)].data);
    table_.status = static_cast<PeerStatus*>(status_.data());
    table_.rank = host.rank();
    table_.ranks = host.size();
    table_.timeout_ns = std::isfinite(timeout_s) ? static_cast<std::uint64_t>(timeout_s * 1e9)
                                                 : std::numeric_limits<std::uint64_t>::max();
  }

  std::unique_ptr<PeerMemory> map(View own) override {
    auto mapped = std::make_unique<MappedMemory>(host_, device_, own);
    std::string problem;
    for (const std::string& each : mapped->problems())
      if (problem.empty()) problem = each;
    for (const Text& text : gather(host_, device_, text_of(problem))) {
      if (text[0] == '\0') continue;
      mapped.reset();  // on every rank, so that none frees memory that another has mapped
      throw UsageError(
          fmt::format("peer memory (--strategy peer): {}. The GPUs of all ranks must be of one "
                      "node and have peer access to one another",
                      text.data()));
    }
    return mapped;
  }

  void meet(Stream& stream) override { launch_meet(table_, nullptr, stream); }
  void agree(std::int32_t* flag, Stream& stream) override { launch_meet(table_, flag, stream); }

  /// Each rank begins with its own memory, so that not all read from one GPU at the same time.
  void average(std::span<const View> from, View to, std::int32_t* finite, Stream& stream) override {
    ENSURE(from.size() == static_cast<std::size_t>(table_.ranks), "a view of every rank");
    PeerPlaces places{};
    for (std::size_t i = 0; i < from.size(); ++i) {
      const View& view = from[(static_cast<std::size_t>(table_.rank) + i) % from.size()];
      ENSURE(view.type == to.type && view.count == to.count, "averaged views are alike");
      places.at[i] = view.data;
    }
    launch_average(table_, places, to, finite, stream);
  }

  void push_chunks(std::span<const View> to, ConstView from, const std::int64_t* sources,
                   Stream& stream) override {
    ENSURE(to.size() == static_cast<std::size_t>(table_.ranks), "a view of every rank");
    PeerPlaces places{};
    for (std::size_t r = 0; r < to.size(); ++r) places.at[r] = to[r].data;
    launch_push_chunks(table_, places, to[0].count / kFlatAlignment,
                       static_cast<const float*>(from.data), sources, stream);
  }

  void abort() noexcept override { status().aborted = 1; }
  void check() const override {
    if (const int missing = status().missing; missing > 0)
      throw TimeoutError(fmt::format(
          "rank {} has stopped, died or fallen behind: it did not come to an exchange over peer "
          "memory within {:g} s (--timeout)",
          missing - 1, timeout_s_));
  }

 private:
  volatile PeerStatus& status() const { return *static_cast<PeerStatus*>(status_.data()); }

  Communicator& host_;
  Device& device_;
  double timeout_s_;
  Buffer words_;
  Buffer status_;
  std::unique_ptr<PeerMemory> mapped_;  // the words of all
  PeerTable table_{};
};

}  // namespace

std::unique_ptr<Peers> make_peers(Communicator& host, Device& device, double timeout_s) {
  return std::make_unique<CudaPeers>(host, device, timeout_s);
}

std::unique_ptr<PeerMemory> map_reachable(Communicator& host, Device& device, View own) {
  return std::make_unique<MappedMemory>(host, device, own);
}

void copy_of_peers(View to, ConstView from, CopyBy by, Stream& stream) {
  ENSURE(to.bytes() == from.bytes(), "a copy's two sides are alike");
  if (by == CopyBy::sms) return launch_copy(to, from, stream);
  CHECK_CUDA(
      cudaMemcpyAsync(to.data, from.data, to.bytes(), cudaMemcpyDeviceToDevice, native(stream)));
}

}  // namespace shakedown::gpu

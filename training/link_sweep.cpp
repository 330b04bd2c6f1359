#include "training/link_sweep.hpp"

#include <algorithm>
#include <functional>

#include "common/statistics.hpp"

namespace shakedown {
namespace {

constexpr std::size_t kParts = 32;
constexpr int kRepetitions = 5;

/// Of one of `in_a_row` exchanges.
double seconds_of(Backend& backend, Stream& stream, int in_a_row, const MpiSession& session,
                  const std::function<void()>& exchange) {
  const auto begin = backend.device->make_event();
  const auto end = backend.device->make_event();
  std::vector<double> samples;
  for (int repetition = 0; repetition <= kRepetitions; ++repetition) {
    backend.world->barrier();
    begin->record(stream);
    for (int i = 0; i < in_a_row; ++i) exchange();
    end->record(stream);
    backend.world->wait(*end, HostWait::polite);
    const auto all = session.all_gather(end->milliseconds_since(*begin) / 1e3 / in_a_row);
    if (repetition > 0) samples.push_back(*std::max_element(all.begin(), all.end()));
  }
  return median_of(samples);
}

}  // namespace

MeasuredLinks measure_links(Backend& backend, Stream& stream, DataType type,
                            std::size_t largest_bytes, const MpiSession& session) {
  MeasuredLinks links;
  Communicator& world = *backend.world;
  if (world.size() == 1) return links;
  const auto workers = static_cast<std::size_t>(world.size() - 1);
  const Buffer mine(*backend.device, largest_bytes);
  const Buffer theirs(*backend.device, world.rank() == 0 ? largest_bytes * workers : 0);
  backend.device->zero(mine.data(), mine.bytes(), stream);
  const int in_a_row = backend.kind == BackendKind::gpu ? 10 : 1;
  for (std::size_t part = kParts; part >= 1; part /= 2) {
    const std::size_t count = largest_bytes / size_of(type) / part;
    const View view = mine.view(type).slice(0, count);
    const auto bytes = static_cast<double>(view.bytes());
    links.ring.push_back({bytes, seconds_of(backend, stream, in_a_row, session, [&] {
                            world.all_reduce(view, view, Reduction::sum, stream);
                          })});
    links.star.push_back({bytes, seconds_of(backend, stream, in_a_row, session, [&] {
                            world.group([&] {
                              if (world.rank() > 0) return world.send(view, 0, stream);
                              for (std::size_t w = 0; w < workers; ++w)
                                world.recv(theirs.view(type).slice(w * count, count),
                                           static_cast<int>(w) + 1, stream);
                            });
                          })});
  }
  return links;
}

}  // namespace shakedown

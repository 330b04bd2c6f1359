#include "launch/node/health/check/work.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "common/mpi_session.hpp"
#include "common/program.hpp"
#include "launch/node/health/facts/near_device.hpp"
#include "launch/node/health/rules/node_rules.hpp"

namespace shakedown::node {
namespace {

constexpr std::size_t kCopyBytes = 256u << 20;
constexpr int kCopies = 200;  // a second at 55 GB/s
constexpr std::size_t kElements = 1u << 20;

/// The reports while every rank's GPU is busy, without the hosts' facts. Collective.
std::vector<NodeReport> reports_under_load(const CheckOptions& options, MpiSession& session,
                                           Backend& backend) {
  Device& device = *backend.device;
  const auto stream = device.make_stream();
  const auto done = device.make_event();
  const Buffer from(device, kCopyBytes, Place::host), to(device, kCopyBytes);
  for (int i = 0; i < kCopies; ++i) device.copy(to.data(), from.data(), kCopyBytes, *stream);
  done->record(*stream);
  ReportSource gpus_alone = options.source;
  gpus_alone.facts = false;
  auto reports = gather_reports(session, gpus_alone);
  auto busy = session.all_gather(done->done() ? std::string() : device.identity().uuid);
  std::erase(busy, "");
  for (NodeReport& report : reports) report.loaded_gpus = busy;
  backend.world->wait(*done, HostWait::polite);
  return reports;
}

std::vector<RankPlace> places_of_ranks(const MpiSession& session, const Device& device) {
  const DeviceIdentity identity = device.identity();
  const auto gpus = session.all_gather(identity.uuid);
  const auto near = session.all_gather(NearDevice(identity.pci_id).text());
  std::vector<RankPlace> ranks;
  for (std::size_t rank = 0; rank < gpus.size(); ++rank)
    ranks.push_back({session.hosts()[rank], gpus[rank], near[rank]});
  return ranks;
}

/// Wrong elements of a sum over all ranks, on this rank. Collective.
std::size_t wrong_elements(Backend& backend, bool corrupts) {
  Device& device = *backend.device;
  const auto stream = device.make_stream();
  const auto done = device.make_event();
  const Buffer buffer(device, kElements * sizeof(float));
  std::vector<float> values(kElements);
  // Small integers: their sum is exact in any order.
  for (std::size_t i = 0; i < kElements; ++i)
    values[i] = static_cast<float>(backend.world->rank() + 1 + static_cast<int>(i % 7));
  upload<float>(device, *stream, buffer.data(), values);
  const View view = buffer.view(DataType::float32);
  backend.world->all_reduce(view, view, Reduction::sum, *stream);
  done->record(*stream);
  backend.world->wait(*done, HostWait::polite);
  auto sums = download<float>(device, *stream, buffer.data(), kElements);
  if (corrupts) sums[kElements / 3] += 1;
  const int n = backend.world->size();
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < kElements; ++i)
    wrong += sums[i] != static_cast<float>(n * (n + 1) / 2 + n * static_cast<int>(i % 7));
  return wrong;
}

std::vector<Finding> judge_sums(const MpiSession& session, const std::vector<double>& wrong) {
  std::vector<Finding> found;
  for (std::size_t rank = 0; rank < wrong.size(); ++rank)
    if (wrong[rank] > 0)
      found.push_back(finding_of("all-reduce",
                                 failure(Class::hardware,
                                         fmt::format("{:.0f} of {} elements are wrong on rank {}",
                                                     wrong[rank], kElements, rank),
                                         "inspect links of this rank: bin/link_matrix, bin/soak"),
                                 Scope::rank, std::to_string(rank), session.hosts()[rank]));
  if (found.empty())
    found.push_back(finding_of("all-reduce",
                               passed(fmt::format("the sum over {} ranks is right", wrong.size())),
                               Scope::job, "node_check"));
  return found;
}

}  // namespace

void look_at_work(const CheckOptions& options, MpiSession& session,
                  const std::vector<NodeReport>& before, bool corrupts,
                  std::vector<Finding>& found) {
  Backend backend = open_backend(options.backend, session);
  const auto add = [&](std::vector<Finding> more) {
    std::ranges::move(more, std::back_inserter(found));
  };
  const bool on_gpus = backend.kind == BackendKind::gpu;
  if (on_gpus) add(judge_places(before, places_of_ranks(session, *backend.device)));
  add(judge_load(before, on_gpus ? reports_under_load(options, session, backend) : before,
                 options.expected));
  const auto wrong = session.all_gather(static_cast<double>(wrong_elements(backend, corrupts)));
  add(judge_sums(session, wrong));
  if (on_gpus) add(judge_growth(before, gather_reports(session, options.source), options.expected));
}

}  // namespace shakedown::node

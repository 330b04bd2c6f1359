#include "collectives/links/link_messages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>

#include "common/random.hpp"
#include "common/statistics.hpp"

namespace shakedown::collectives {
namespace {

constexpr std::size_t kStep = 2;  // words from message to message: 16 bytes, NCCL's widest access
constexpr std::size_t kWord = sizeof(std::uint64_t);

}  // namespace

Pattern pattern_of(int from, int to) {
  Pattern pattern;
  pattern.type = DataType::uint64;
  pattern.seed = derive_seed(static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to));
  return pattern;
}

Verdict wrong_data(const NodeMap& nodes, int from, int to, const std::string& what,
                   const std::string& complaint) {
  std::vector<std::string> hosts{nodes.name_of(from)};
  if (nodes.name_of(to) != hosts.front()) hosts.push_back(nodes.name_of(to));
  return {.scope = Scope::link,
          .name = fmt::format("{}->{}", from, to),
          .outcome = Outcome::fail,
          .cause = fmt::format("{}: {}", what, complaint),
          .action = kWrongDataAction,
          .check = "wrong-data",
          .hosts = hosts};
}

MessageTimes times_of(const std::vector<double>& messages_us) {
  const Summary summary = summarize(messages_us);
  MessageTimes times{summary.median, summary.cv};
  const std::size_t count = messages_us.size();
  const std::size_t parts = std::min<std::size_t>(count, kLinkSamples);
  times.parts = static_cast<int>(parts);
  for (std::size_t part = 0; part < parts; ++part)
    times.parts_us[part] = median_of(
        std::span(messages_us)
            .subspan(part * count / parts, (part + 1) * count / parts - part * count / parts));
  return times;
}

LinkMessages::LinkMessages(Backend& backend, const MessageSettings& settings)
    : settings_(settings),
      device_(*backend.device),
      stream_(device_.make_stream()),
      event_(device_.make_event()) {
  // one message more than there are, for `meet`
  const int messages =
      settings.warmup + std::max(settings.iterations, settings.latency_iterations) + 1;
  outgoing_words_ = settings.words + kStep * static_cast<std::size_t>(messages);
  outgoing_ = backend.world->allocate(outgoing_words_ * kWord, Registration::none);
  incoming_ = backend.world->allocate(settings.words * kWord, Registration::none);
  verifier_ = make_verifier(backend.kind);
  mismatches_ = Buffer(device_, sizeof(Mismatches));
}

void LinkMessages::fill(const Pattern& pattern, int rank) {
  fill({outgoing_->data(), outgoing_words_, DataType::uint64, outgoing_->place()}, pattern, rank);
}

void LinkMessages::fill(View to, const Pattern& pattern, int rank) {
  verifier_->fill(to, pattern, rank, 0, *stream_);
  stream_->synchronize();
}

ConstView LinkMessages::outgoing(std::size_t words, int message) const {
  return View(outgoing_->data(), outgoing_words_, DataType::uint64, outgoing_->place())
      .slice(kStep * static_cast<std::size_t>(message), words);
}

View LinkMessages::incoming(std::size_t words) const {
  return {incoming_->data(), words, DataType::uint64, incoming_->place()};
}

double LinkMessages::time_us(Communicator& communicator,
                             const std::function<void(Stream&)>& enqueue) {
  const auto start = std::chrono::steady_clock::now();
  enqueue(*stream_);
  event_->record(*stream_);
  communicator.wait(*event_, HostWait::timed);
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

void LinkMessages::meet(Communicator& communicator, int peer, int message) {
  communicator.group([&] {
    communicator.send(outgoing(1, message + 1), peer, *stream_);
    communicator.recv(incoming(1), peer, *stream_);
  });
  event_->record(*stream_);
  communicator.wait(*event_, HostWait::timed);
}

unsigned long long LinkMessages::check(const Pattern& pattern, int source, std::size_t words,
                                       int message, std::string& complaint) {
  return check(incoming(words), pattern, source, kStep * static_cast<std::uint64_t>(message),
               message, complaint);
}

unsigned long long LinkMessages::check(View found, const Pattern& pattern, int source,
                                       std::uint64_t start, int message, std::string& complaint) {
  const Mismatches none;
  upload<Mismatches>(device_, *stream_, mismatches_.data(), {&none, 1});
  verifier_->check(found, pattern, source, start, 0, static_cast<Mismatches*>(mismatches_.data()),
                   *stream_);
  const Mismatches result = download<Mismatches>(device_, *stream_, mismatches_.data(), 1).front();
  if (result.wrong == 0 || !complaint.empty()) return result.wrong;
  std::uint64_t bits = 0;
  device_.copy(&bits, found.slice(result.first, 1).data, kWord, *stream_);
  stream_->synchronize();
  complaint =
      fmt::format("word {} of {} of message {}: expected {:016x}, found {:016x}", result.first,
                  found.count, message, expected_bits(pattern, source, start + result.first), bits);
  return result.wrong;
}

}  // namespace shakedown::collectives

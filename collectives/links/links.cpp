#include "collectives/links/links.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>

#include "common/hash.hpp"
#include "common/mpi_session.hpp"
#include "common/statistics.hpp"
#include "common/usage_error.hpp"

namespace shakedown::collectives {

judge::Observation LinkObserver::of(const std::string& metric, int from, int to) const {
  const bool latency = metric == "link/latency";
  const bool both_ways = !metric.ends_with("/one_way");
  judge::Observation observation =
      observed(metric, latency ? "us" : "GB/s", units_[static_cast<std::size_t>(from)],
               units_[static_cast<std::size_t>(to)], both_ways);
  const Path path = paths_.between(from, to);
  observation.path_class = path.path_class;
  if (!path.clique.empty()) observation.conditions["clique"] = path.clique;
  if (!latency && std::isfinite(path.peak_gbs))
    observation.peak = (both_ways ? 2 : 1) * path.peak_gbs;
  return observation;
}

std::vector<int> others_than(const MpiSession& session, int peer) {
  std::vector<int> others;
  for (int r = 0; r < session.world_size(); ++r)
    if (r != session.rank() && r != peer) others.push_back(r);
  return others;
}

LinkMeter::LinkMeter(Backend& backend, MpiSession& session, const NodeMap& nodes,
                     const LinkObserver& observer, LinkMessages& messages, Record& record,
                     bool sampled)
    : world_(*backend.world),
      session_(session),
      nodes_(nodes),
      observer_(observer),
      messages_(messages),
      backend_(backend),
      versions_(versions_of(BackendKind::gpu, {world_.transport()})),
      record_(record),
      sampled_(sampled) {}

void LinkMeter::enqueue(Exchange exchange, bool first, int peer, std::size_t words, int message,
                        Stream& stream) {
  const auto send = [&] { world_.send(messages_.outgoing(words, message), peer, stream); };
  const auto recv = [&] { world_.recv(messages_.incoming(words), peer, stream); };
  switch (exchange) {
    case ping_pong:
      first ? send() : recv();
      first ? recv() : send();
      return;
    case forward: return first ? send() : recv();
    case backward: return first ? recv() : send();
    default:
      world_.group([&] {
        send();
        recv();
      });
  }
}

MessageTimes LinkMeter::time_exchange(Exchange exchange, bool first, int peer) {
  const MessageSettings& settings = messages_.settings();
  const bool latency = exchange == ping_pong;
  const std::size_t words = latency ? 1 : settings.words;
  const int timed = latency ? settings.latency_iterations : settings.iterations;
  const bool receives = exchange != (first ? forward : backward);

  const std::vector<int> others = others_than(session_, peer);
  WrongWords& wrong = wrong_[exchange];
  std::vector<double> samples;
  for (int message = 0; message < settings.warmup + timed; ++message) {
    session_.progress(others);  // who may wait for this pair
    messages_.meet(world_, peer, message);
    const double time_us = messages_.time_us(
        world_, [&](Stream& stream) { enqueue(exchange, first, peer, words, message, stream); });
    if (message >= settings.warmup) samples.push_back(time_us);
    if (receives) messages_.check(pattern_of(peer, session_.rank()), 0, words, message, wrong);
  }
  MessageTimes times = times_of(samples);
  times.wrong_words = wrong.words;
  return times;
}

void LinkMeter::add_results(const RankPair& pair, const std::vector<Times>& times,
                            const std::vector<Diagnoses>& diagnoses, bool alone,
                            LinkRound& results) const {
  const double bytes = 8.0 * static_cast<double>(messages_.settings().words);
  const Times& first = times[static_cast<std::size_t>(pair.first)];
  const Times& second = times[static_cast<std::size_t>(pair.second)];
  // The receiver is the last to have the message. But where it started its clock after the sender,
  // whose clock then ran longer, its own would flatter the link.
  const auto observe = [&](const std::string& metric, const Link& link, double size,
                           const MessageTimes& of, std::uint64_t wrong, const auto& shown) {
    judge::Observation seen = observer_.of("link/" + metric, link.from, link.to);
    seen.conditions.insert({{"bytes", fmt::format("{:.0f}", size)},
                            {"transport", world_.transport()},
                            {"concurrency", concurrency_of(alone)}});
    seen.versions = versions_;
    for (int part = 0; part < of.parts; ++part)
      seen.samples.push_back(shown(of.parts_us[static_cast<std::size_t>(part)]));
    if (wrong > 0) seen.check = judge::Check::wrong;
    results.observations.push_back(std::move(seen));
  };
  const auto add = [&](int from, int to, Exchange exchange) {
    const MessageTimes& longer = first[exchange].time_us_p50 > second[exchange].time_us_p50
                                     ? first[exchange]
                                     : second[exchange];
    const int messages = exchange == both ? 2 : 1;
    results.links.push_back({from, to, exchange == both, alone,
                             messages * bytes / longer.time_us_p50 / 1e3,
                             exchange == both ? 0 : first[ping_pong].time_us_p50 / 2,
                             longer.time_us_p50, longer.time_us_cv});
    const bool apart = nodes_.name_of(from) != nodes_.name_of(to);
    Link& link = results.links.back();
    Diagnosis diagnosis;
    for (const auto& [rank, of] :
         {std::pair(to, exchange),
          exchange == both ? std::pair(from, both) : std::pair(to, ping_pong)}) {
      const auto r = static_cast<std::size_t>(rank);
      link.wrong_elements += times[r][of].wrong_words;
      if (!diagnoses.empty()) diagnosis.add(diagnoses[r][of]);
    }
    if (link.wrong_elements > 0) link.diagnosis = std::make_shared<const Diagnosis>(diagnosis);
    observe(fmt::format("{}/{}", apart ? "network" : world_.transport(),
                        exchange == both ? "both_ways" : "one_way"),
            link, bytes, longer, link.wrong_elements,
            [&](double us) { return messages * bytes / us / 1e3; });
  };
  add(pair.first, pair.second, forward);
  add(pair.second, pair.first, backward);
  add(pair.first, pair.second, both);
  observe("latency", results.links[results.links.size() - 3], 8, first[ping_pong],
          first[ping_pong].wrong_words + second[ping_pong].wrong_words,
          [](double us) { return us / 2; });
}

LinkRound LinkMeter::measure(const std::vector<RankPair>& round, bool alone) {
  const int rank = session_.rank();
  std::size_t turn = 0;
  while (turn < round.size() && round[turn].first != rank && round[turn].second != rank) ++turn;
  const bool plays = turn < round.size();  // else it has a bye
  const bool first = plays && round[turn].first == rank;
  const int peer = !plays ? -1 : first ? round[turn].second : round[turn].first;

  wrong_ = {};
  if (plays) messages_.fill(pattern_of(rank, peer), 0);
  session_.barrier();
  Times times{};
  const auto time = [&](Exchange exchange) {
    times[exchange] = time_exchange(exchange, first, peer);
  };
  // Ranks whose turn has not come, or is over, wait without a timeout; it applies only to those
  // that exchange.
  constexpr Exchange kAll[] = {ping_pong, forward, backward, both};
  if (alone) {
    for (std::size_t t = 0; t < round.size(); ++t) {
      if (t == turn) std::for_each(std::begin(kAll), std::end(kAll), time);
      session_.wait_idle();
    }
  } else {
    for (Exchange exchange : kAll) {
      session_.barrier();  // after wait_idle, ranks continue up to milliseconds apart
      if (plays) time(exchange);
      session_.wait_idle();
    }
  }

  const std::vector<Times> all = session_.all_gather(times);
  std::vector<Diagnoses> diagnoses;
  std::vector<std::string> complaints(all.size());
  if (std::ranges::any_of(all, [](const Times& rank) {
        return std::ranges::any_of(rank, [](const auto& each) { return each.wrong_words > 0; });
      })) {
    Diagnoses mine;
    std::string complaint;  // the first
    for (std::size_t exchange = 0; exchange < exchanges; ++exchange) {
      mine[exchange] = wrong_[exchange].diagnosis;
      if (complaint.empty()) complaint = wrong_[exchange].complaint;
    }
    diagnoses = session_.all_gather(mine);
    complaints = session_.all_gather(complaint);
  }
  const auto accuse = [&](int from, int to) {
    const std::string& complaint = complaints[static_cast<std::size_t>(to)];
    if (complaint.empty()) return;
    Diagnosis diagnosis;
    for (const Diagnosis& each : diagnoses[static_cast<std::size_t>(to)]) diagnosis.add(each);
    corruptions_.push_back(
        wrong_data(nodes_, from, to, concurrency_of(alone), complaint, diagnosis));
  };
  LinkRound results;
  for (const RankPair& pair : round) {
    accuse(pair.first, pair.second);
    accuse(pair.second, pair.first);
    add_results(pair, all, diagnoses, alone, results);
  }
  if (session_.is_root())
    write_links(results.links, sampled_ ? std::optional(round_++) : std::nullopt,
                messages_.settings(), nodes_, identity_of(backend_), record_);
  return results;
}

namespace {

Json record_of(const Link& link, const MessageSettings& settings, const NodeMap& nodes) {
  Json fields{{"from", link.from},
              {"to", link.to},
              {"from_host", nodes.name_of(link.from)},
              {"to_host", nodes.name_of(link.to)},
              {"direction", link.bidirectional ? "bidirectional" : "unidirectional"},
              {"concurrency", concurrency_of(link.alone)},
              {"bytes", 8 * settings.words},
              {"bandwidth_gbs", link.bandwidth_gbs}};
  if (!link.bidirectional) fields["latency_us"] = link.latency_us;
  fields.update({{"iterations", settings.iterations},
                 {"time_us_p50", link.time_us_p50},
                 {"time_us_cv", link.time_us_cv},
                 {"wrong_elements", link.wrong_elements}});
  if (link.diagnosis) fields.update(fields_of(*link.diagnosis));
  return fields;
}

}  // namespace

Json identity_of(const Backend& backend) {
  return {{"backend", name_of(backend.kind)},
          {"transport", backend.world->transport()},
          {"world_size", backend.world->size()}};
}

void write_links(const std::vector<Link>& links, std::optional<int> round,
                 const MessageSettings& settings, const NodeMap& nodes, const Json& identity,
                 Record& record) {
  std::vector<Json> visits;
  for (std::size_t i = 0; i < links.size(); i += round ? 3 : 1) {
    const auto of_pair = std::span(links).subspan(i, round ? 3 : 1);
    if (!round ||
        std::ranges::any_of(of_pair, [](const Link& link) { return link.wrong_elements > 0; })) {
      for (const Link& link : of_pair)
        record.write("link", merged(identity, record_of(link, settings, nodes)));
      continue;
    }
    const Link& forward = of_pair[0];
    visits.push_back(merged(identity, {{"round", *round},
                                       {"from_host", nodes.name_of(forward.from)},
                                       {"to_host", nodes.name_of(forward.to)},
                                       {"bytes", 8 * settings.words},
                                       {"from", forward.from},
                                       {"to", forward.to},
                                       {"forward_gbs", forward.bandwidth_gbs},
                                       {"backward_gbs", of_pair[1].bandwidth_gbs},
                                       {"both_gbs", of_pair[2].bandwidth_gbs},
                                       {"latency_us", forward.latency_us}}));
  }
  record.write_table("visit", visits,
                     {"from", "to", "forward_gbs", "backward_gbs", "both_gbs", "latency_us"});
}

namespace {

constexpr std::size_t kStep = 2;  // words from message to message: 16 bytes, NCCL's widest access
constexpr std::size_t kWord = sizeof(std::uint64_t);
constexpr int kMostRegions = 16;  // decoded of the first wrong message

}  // namespace

Operands pattern_of(int from, int to) {
  return operands::make_operands(
      DataType::uint64, false, Reduction::sum, 1,
      derive_seed(static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to)));
}

Verdict wrong_data(const NodeMap& nodes, int from, int to, const std::string& what,
                   const std::string& complaint, const Diagnosis& diagnosis) {
  std::vector<std::string> hosts{nodes.name_of(from)};
  if (nodes.name_of(to) != hosts.front()) hosts.push_back(nodes.name_of(to));
  return {.scope = Scope::link,
          .name = fmt::format("{}->{}", from, to),
          .outcome = Outcome::fail,
          .cause = fmt::format("{}: {}", what, complaint),
          .action = operands::action_of(diagnosis.foremost().kind),
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
  const std::int64_t messages = std::int64_t{settings.warmup} + 1 +
                                std::max(settings.iterations, settings.latency_iterations);
  outgoing_words_ = settings.words + kStep * static_cast<std::size_t>(messages);
  try {
    outgoing_ = backend.world->allocate(outgoing_words_ * kWord, Registration::none);
    incoming_ = backend.world->allocate(settings.words * kWord, Registration::none);
  } catch (const OutOfMemory& error) {
    throw UsageError(fmt::format("--bytes {}, {} messages (--iterations, --latency-iterations): {}",
                                 settings.words * kWord, messages, error.what()));
  }
  verifier_ = make_verifier(backend.kind);
  mismatches_ = Buffer(device_, sizeof(Mismatches));
}

void LinkMessages::fill(const Operands& operands, int rank) {
  fill({outgoing_->data(), outgoing_words_, DataType::uint64, outgoing_->place()}, operands, rank);
}

void LinkMessages::fill(View to, const Operands& operands, int rank) {
  verifier_->fill(to, operands, rank, 0, *stream_);
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

void LinkMessages::check(const Operands& operands, int source, std::size_t words, int message,
                         WrongWords& wrong) {
  check(incoming(words), operands, source, kStep * static_cast<std::uint64_t>(message), message,
        wrong);
}

void LinkMessages::check(View found, const Operands& operands, int source, std::uint64_t start,
                         int message, WrongWords& wrong) {
  check(Received{.data = found,
                 .sent = {},
                 .operands = operands,
                 .ranges = {{0, found.count, source, start}},
                 .extent = outgoing_words_,
                 .earlier = {0, kStep}},
        message, wrong);
}

void LinkMessages::check(const Received& received, int message, WrongWords& wrong) {
  const SourceRange& range = received.ranges.front();
  const Mismatches none;
  upload<Mismatches>(device_, *stream_, mismatches_.data(), {&none, 1});
  verifier_->check(received.data, received.operands, range.source, range.position, 0,
                   static_cast<Mismatches*>(mismatches_.data()), *stream_);
  const Mismatches result = download<Mismatches>(device_, *stream_, mismatches_.data(), 1).front();
  if (result.wrong == 0) return;
  wrong.words += result.wrong;
  if (!wrong.complaint.empty()) return;
  wrong.diagnosis = diagnose(received, result, kMostRegions, device_, *stream_);
  const auto word = fetch(received, range, result.first, 1, device_, *stream_);
  wrong.complaint = fmt::format("word {} of {} of message {}: expected {:016x}, found {:016x}; {}",
                                result.first, range.count, message,
                                expected_bits(received.operands, range.source, word.position),
                                word.found[0], text_of(wrong.diagnosis));
}

}  // namespace shakedown::collectives

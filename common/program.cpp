#include "common/program.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <variant>

#include "common/backend.hpp"
#include "common/error.hpp"
#include "common/mpi_session.hpp"
#include "common/options.hpp"
#include "common/output_file.hpp"
#include "common/placement.hpp"
#include "git_revision.hpp"

namespace shakedown {
namespace {

/// A launcher ends the other ranks when one has ended: the one that prints, or records, comes
/// first.
constexpr std::chrono::milliseconds kAfterTheFirst{300};

/// The time of --timeout, which every program with ranks has; 0 there is never.
double timeout_of(const OptionSet& set) {
  for (const OptionValue& option : set.values())
    if (option.name == "timeout")
      if (const auto* seconds = std::get_if<double>(&option.value); seconds && *seconds > 0)
        return *seconds;
  return INFINITY;
}

/// The record of a job that ends for ranks that do not answer names them, in a line of the first
/// rank that does: the one whose record it is, or the one that does without it. Best effort: what
/// those ranks hang on may be the record's file system.
void record_silence(const OptionSet& set, const MpiSession& session,
                    const std::vector<int>& silent) {
  constexpr std::chrono::seconds kPatience{2};
  int first = 0;
  while (std::find(silent.begin(), silent.end(), first) != silent.end()) ++first;
  if (session.rank() != first) return;
  std::string path;
  for (const OptionValue& option : set.values())
    if (const auto* text = std::get_if<std::string>(&option.value);
        option.name == "record" && text != nullptr)
      path = *text;
  if (path.empty()) return;
  Json line = {{"check", "no-answer"}, {"ranks", silent}, {"hosts", Json::array()}};
  for (int r : silent) line["hosts"].push_back(session.hosts()[static_cast<std::size_t>(r)]);
  if (const double waited = timeout_of(set); std::isfinite(waited)) line["waited_s"] = waited;
  const auto written = std::make_shared<std::promise<void>>();
  std::thread([written, path, line] {
    try {
      // A file that is not there is another host's.
      if (access(path.c_str(), W_OK) == 0) Record(path).write("failure", line);
    } catch (const std::exception&) {
    }
    written->set_value();
  }).detach();
  written->get_future().wait_for(kPatience);
}

/// Who did not come, in words; ranks time out together, those that still run say so within seconds.
std::string who_is_silent(const OptionSet& set, const MpiSession& session) {
  constexpr double kPatience_s = 2;
  std::string who;
  try {
    const std::vector<int> silent = session.silent_ranks(kPatience_s);
    for (int r : silent)
      who += fmt::format("{}rank {} on {}", who.empty() ? "; no answer from " : ", ", r,
                         session.hosts()[static_cast<std::size_t>(r)]);
    if (!silent.empty()) record_silence(set, session, silent);
  } catch (const Error& error) {
    if (who.empty()) return fmt::format("; which ranks answer is unknown: {}", error.what());
  }
  return who;
}

/// Whether this process is the first, or the only one, that a launcher started.
bool is_first_task() {
  const std::string rank = launched_rank();
  return rank.empty() || rank == "0";
}

/// A write past `ulimit -f` then fails like one on a full disk, and is reported, where the signal
/// would end the process with half a line written.
void fail_writes_past_the_limit() { std::signal(SIGXFSZ, SIG_IGN); }

/// Collective.
void check_hosts(const MpiSession& session) {
  const auto local = session.all_gather(static_cast<double>(session.local_rank()));
  check_machines(session.hosts(), session.boot_ids(), {local.begin(), local.end()},
                 requested_hosts());
}

/// "rank 1 on n1: --weights w.safetensors: No such file or directory" of the first rank that cannot
/// read a file which an option names, or "". Collective.
std::string missing_file(const OptionSet& set, const MpiSession& session) {
  const auto missing = session.all_gather(set.missing_file());
  for (std::size_t r = 0; r < missing.size(); ++r)
    if (!missing[r].empty())
      return fmt::format("rank {} on {}: {}", r, session.hosts()[r], missing[r]);
  return "";
}

}  // namespace

std::optional<ExitCode> parse_options(OptionSet& set, int argc, const char* const* argv) {
  set.add_text("--version", "print version, revision, backends and libraries, and exit",
               [&] { return version_text(set.program()); });
  const auto ending = set.parse(argc, argv);
  if (!ending) return std::nullopt;
  if (is_first_task()) {
    std::FILE* const out = ending->code == ExitCode::pass ? stdout : stderr;
    std::fputs(ending->text.c_str(), out);
    std::fflush(out);
  } else if (ending->code != ExitCode::pass) {
    std::this_thread::sleep_for(kAfterTheFirst);
  }
  return if_printed(ending->code);
}

int run_program(const OptionSet& set, int argc, char** argv,
                const std::function<ExitCode(MpiSession&)>& body) {
  fail_writes_past_the_limit();
  try {
    MpiSession session(&argc, &argv, timeout_of(set));
    try {
      check_hosts(session);
      if (const std::string missing = missing_file(set, session); !missing.empty()) {
        if (session.is_root()) std::fprintf(stderr, "error: %s\n", missing.c_str());
        return static_cast<int>(ExitCode::usage);
      }
      const ExitCode mine = body(session);
      const auto codes = session.all_gather(static_cast<double>(mine));
      return static_cast<int>(*std::max_element(codes.begin(), codes.end()));
    } catch (const TimeoutError& error) {
      session.abort(error.code(), error.what() + who_is_silent(set, session));
    } catch (const Error& error) {
      session.abort(error.code(), set.explained(error.what()));
    } catch (const std::exception& error) {
      session.abort(ExitCode::internal, error.what());
    }
  } catch (const Error& error) {  // of the session's start
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(ExitCode::internal);
  }
}

int run_alone(const std::function<ExitCode()>& body) {
  const auto ended = [](ExitCode code, const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(code);
  };
  fail_writes_past_the_limit();
  try {
    return static_cast<int>(body());
  } catch (const Error& error) {
    return ended(error.code(), error);
  } catch (const std::exception& error) {
    return ended(ExitCode::internal, error);
  }
}

ExitCode recorded(Record& record, const std::function<ExitCode()>& body) {
  return recorded(record, body, Json::object());
}

ExitCode recorded(Record& record, const std::function<ExitCode()>& body, const Json& summary) {
  const auto start = std::chrono::steady_clock::now();
  const auto end = [&](ExitCode code) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    record.write(
        "end",
        merged({{"exit_code", static_cast<int>(code)}, {"elapsed_s", elapsed.count()}}, summary));
    return code;
  };
  const auto stopped = [&] {
    if (record.path().empty()) return std::this_thread::sleep_for(kAfterTheFirst);
    end(ExitCode::stopped);
  };
  const auto run = [&] {
    const LastWords last_words(stopped);
    return body();
  };
  try {
    return end(if_printed(run()));
  } catch (const Error& error) {
    if (error.code() == ExitCode::fail || error.code() == ExitCode::usage) end(error.code());
    throw;
  }
}

void say(const MpiSession& session, const std::string& line) {
  if (!session.is_root() || line.empty()) return;
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

const char* name_of(FaultKind kind) {
  constexpr const char* kNames[] = {"product", "memory", "copy", "collective",
                                    "hash",    "slow",   "stall"};
  return kNames[static_cast<int>(kind)];
}

Option& declare_fault_option(OptionSet& options, std::string& value) {
  options.heading("");
  return options.add("--inject-fault", value, "KIND:RANK: a fault for tests, which must be found");
}

namespace {

/// "3sms" or "5%".
bool parse_amount(const std::string& text, Fault& fault) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end == std::string("%") && number >= 0.1 && number <= 1000)
    fault.idle_share = number / 100;
  else if (end == std::string("sms") && number >= 1 && number <= HeldSms::kMost)
    fault.held_sms = static_cast<int>(number);
  return fault.idle_share > 0 || (fault.held_sms > 0 && fault.held_sms == number);
}

}  // namespace

std::optional<Fault> parse_fault(const std::string& value, const std::vector<FaultKind>& kinds,
                                 int ranks, FaultAmount amount) {
  if (value.empty()) return std::nullopt;
  const std::size_t colon = value.find(':');
  const std::string name = value.substr(0, colon);
  const auto kind = std::find_if(kinds.begin(), kinds.end(),
                                 [&](FaultKind known) { return name == name_of(known); });
  const std::size_t second = colon == std::string::npos ? colon : value.find(':', colon + 1);
  Fault fault;
  char rest = 0;
  const bool has_rank =
      colon != std::string::npos &&
      std::sscanf(value.substr(0, second).c_str() + colon, ":%d%c", &fault.rank, &rest) == 1;
  if (kind == kinds.end() || !has_rank || fault.rank < 0 || fault.rank >= ranks) {
    std::vector<std::string> names;
    for (const FaultKind known : kinds) names.emplace_back(name_of(known));
    throw UsageError(
        fmt::format("--inject-fault {}: must be KIND:RANK with KIND one of {} and a rank below {}",
                    value, fmt::join(names, ", "), ranks));
  }
  fault.kind = *kind;
  if (second == std::string::npos) return fault;
  if (amount == FaultAmount::none || fault.kind != FaultKind::slow)
    throw UsageError(fmt::format("--inject-fault {}: must be {}:RANK, without an amount{}", value,
                                 name, amount == FaultAmount::none ? " in this program" : ""));
  if (!parse_amount(value.substr(second + 1), fault))
    throw UsageError(
        fmt::format("--inject-fault {}: the amount must be 1sms to {}sms (SMs that are held) or "
                    "0.1% to 1000% (idle time after each piece of work)",
                    value, HeldSms::kMost));
  return fault;
}

void flip_bit(Device& device, Stream& stream, View in, std::size_t index, int bit) {
  if (in.count == 0) return;
  const View element = in.slice(std::min(index, in.count - 1), 1);
  auto bytes = download<unsigned char>(device, stream, element.data, element.bytes());
  auto& byte = bytes[static_cast<std::size_t>(bit) / 8 % bytes.size()];
  byte = static_cast<unsigned char>(byte ^ (1U << (bit % 8)));
  upload<unsigned char>(device, stream, element.data, bytes);
}

void flip_bit(Device& device, View in, std::size_t index, int bit) {
  flip_bit(device, *device.make_stream(), in, index, bit);
}

std::string line_of(const Fault& fault) {
  std::string amount;
  if (fault.held_sms > 0) amount = fmt::format(", {} of its SMs held", fault.held_sms);
  if (fault.idle_share > 0) amount = fmt::format(", idle for {:g} %", 100 * fault.idle_share);
  return fmt::format("fault injected: {} on rank {}{}", name_of(fault.kind), fault.rank, amount);
}

HeldSms::HeldSms(Device& device, int count)
    : stream_(device.make_stream()), words_(device, sizeof(HoldWords), Place::host) {
  auto* const words = new (words_.data()) HoldWords;
  gpu::launch_hold_sms(words, count, *stream_);
  constexpr auto kPatience = std::chrono::seconds(5);
  const auto start = std::chrono::steady_clock::now();
  while (std::atomic_ref(words->resident).load() < count) {
    if (std::chrono::steady_clock::now() - start < kPatience) continue;
    std::atomic_ref(words->stop).store(1);
    throw InconclusiveError(fmt::format("--inject-fault slow: {} SMs could not be held", count));
  }
}

HeldSms::~HeldSms() {
  std::atomic_ref(static_cast<HoldWords*>(words_.data())->stop).store(1);
  try {
    stream_->synchronize();  // the blocks read the words
  } catch (...) {            // past the timeout, which has its own report
  }
}

namespace {

void add_line(std::string& text, const std::string& what, const std::string& value) {
  text += fmt::format("{:14} {}\n", what, value);
}

/// "9.1.0", or "9.1.0 (built with 9.0.0)".
void add_library(std::string& text, const std::string& what, const std::string& running,
                 const std::string& built) {
  add_line(text, what,
           running == built ? built : fmt::format("{} (built with {})", running, built));
}

}  // namespace

std::string git_revision() { return SHAKEDOWN_GIT_REVISION; }

std::string version_text(const std::string& program) {
  std::vector<const char*> backends;
  if (cpu::built()) backends.push_back("cpu");
  if (gpu::built()) backends.push_back("gpu");
  std::string text = fmt::format("{} (Shakedown) {}\n", program, SHAKEDOWN_VERSION);
  add_line(text, "revision", git_revision());
  add_line(text, "backends", fmt::format("{}", fmt::join(backends, ", ")));
  if (gpu::built()) add_line(text, "architectures", SHAKEDOWN_CUDA_ARCHS);
  std::string mpi = MpiSession::library_version();
  if (const auto v = mpi.find(" v"); v != std::string::npos)
    mpi.erase(v + 1, 1);  // Open MPI v4.1.4
  add_library(text, "mpi", mpi, MpiSession::build_version());
  for (const BackendKind kind : {BackendKind::gpu, BackendKind::cpu})
    for (const LibraryVersion& library : library_versions(kind, true))
      add_library(text, library.name, library.running, library.built);
  return text;
}

std::string differing_versions(const std::vector<std::string>& hosts,
                               const std::vector<Versions>& by_rank) {
  const auto in = [](const Versions& versions, const std::string& name) {
    const auto found = std::ranges::find(versions, name, &Versions::value_type::first);
    return found == versions.end() ? "none" : found->second;
  };
  std::set<std::string> seen;
  std::vector<std::string> others;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    std::vector<std::string> differences;
    Versions names = by_rank[0];
    for (const auto& version : by_rank[r])
      if (in(by_rank[0], version.first) == "none") names.push_back(version);
    for (const auto& [name, _] : names)
      if (in(by_rank[r], name) != in(by_rank[0], name))
        differences.push_back(
            fmt::format("{} {} instead of {}", name, in(by_rank[r], name), in(by_rank[0], name)));
    if (!differences.empty() && seen.insert(hosts[r]).second)
      others.push_back(
          fmt::format("rank {} on {} ({})", r, hosts[r], fmt::join(differences, ", ")));
  }
  if (others.empty()) return "";
  return fmt::format("versions differ from those of rank 0 on {}: {}", hosts[0],
                     fmt::join(others, ", "));
}

}  // namespace shakedown

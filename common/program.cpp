#include "common/program.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <variant>

#include "common/nodes.hpp"
#include "common/stop_signals.hpp"
#include "common/version.hpp"

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

/// Whether standard output, a file, lacks something. A reader that has left needs nothing more.
bool output_is_incomplete() {
  std::fflush(stdout);
  struct stat file {};
  return std::ferror(stdout) != 0 && fstat(STDOUT_FILENO, &file) == 0 && !S_ISFIFO(file.st_mode) &&
         !S_ISSOCK(file.st_mode);
}

/// What was measured and could not be printed is no pass.
ExitCode if_printed(ExitCode code) {
  if (!output_is_incomplete()) return code;
  std::fputs("error: standard output cannot be written: what was printed is incomplete\n", stderr);
  return code == ExitCode::pass ? ExitCode::inconclusive : code;
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

}  // namespace shakedown

#include "common/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace shakedown {
namespace {

/// Who did not come, in words; ranks time out together, those that still run say so within seconds.
std::string who_is_silent(const MpiSession& session) {
  constexpr double kPatience_s = 2;
  std::string who;
  try {
    for (int r : session.silent_ranks(kPatience_s))
      who += fmt::format("{}rank {} on {}", who.empty() ? "" : ", ", r,
                         session.hosts()[static_cast<std::size_t>(r)]);
  } catch (const Error& error) {
    return fmt::format("; asking around failed: {}", error.what());
  }
  return who.empty() ? "" : "; no answer from " + who;
}

}  // namespace

int run_program(int argc, char** argv, ProgramBody body) {
  try {
    MpiSession session(&argc, &argv);
    try {
      const ExitCode mine = body(session, argc, argv);
      const auto codes = session.all_gather(static_cast<double>(mine));
      return static_cast<int>(*std::max_element(codes.begin(), codes.end()));
    } catch (const TimeoutError& error) {
      session.abort(error.code(), error.what() + who_is_silent(session));
    } catch (const Error& error) {
      session.abort(error.code(), error.what());
    } catch (const std::exception& error) {
      session.abort(ExitCode::internal, error.what());
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(ExitCode::internal);
  }
}

ExitCode recorded(Record& record, const std::function<ExitCode()>& body) {
  const auto start = std::chrono::steady_clock::now();
  const auto end = [&](ExitCode code) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    record.write("end", {{"exit_code", static_cast<int>(code)}, {"elapsed_s", elapsed.count()}});
    return code;
  };
  try {
    return end(body());
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

std::optional<ExitCode> parse_options(OptionSet& set, const MpiSession& session, int argc,
                                      char** argv) {
  auto ending = set.parse(argc, argv);
  if (!ending)
    if (const std::string missing = set.missing_file(); !missing.empty())
      ending = {ExitCode::usage,
                fmt::format("error: rank {} on {}: {}\n", session.rank(), session.host(), missing)};
  constexpr double kGoesOn = -1;
  const auto codes = session.all_gather(ending ? static_cast<double>(ending->code) : kGoesOn);
  const auto worst = std::max_element(codes.begin(), codes.end());  // the first of its kind
  if (*worst == kGoesOn) return std::nullopt;
  if (worst - codes.begin() == session.rank()) {
    std::FILE* const out = ending->code == ExitCode::pass ? stdout : stderr;
    std::fputs(ending->text.c_str(), out);
    std::fflush(out);
  }
  return static_cast<ExitCode>(*worst);
}

}  // namespace shakedown

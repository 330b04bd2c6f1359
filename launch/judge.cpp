// bin/judge: what records of any program, or of an acceptance, amount to. It runs nothing, and
// needs neither MPI nor a GPU.
#include <cstdio>

#include "common/judge/court.hpp"
#include "common/output_file.hpp"
#include "common/usage_error.hpp"
#include "git_revision.hpp"

int main(int argc, char** argv) {
  using namespace shakedown;
  judge::RejudgeOptions options;
  OptionSet set("judge", "Concludes from records what the machines that made them are fit for.");
  judge::declare_options(set, options);
  set.add_text("--version", "print version and revision, and exit", [] {
    return "judge (Shakedown) " SHAKEDOWN_VERSION "\nrevision       " SHAKEDOWN_GIT_REVISION "\n";
  });
  const auto error = [](ExitCode code, const char* what) {
    std::fprintf(stderr, "error: %s\n", what);
    return static_cast<int>(code);
  };
  try {
    if (const auto ending = set.parse(argc, argv)) {
      std::fputs(ending->text.c_str(), ending->code == ExitCode::pass ? stdout : stderr);
      return static_cast<int>(if_printed(ending->code));
    }
    return static_cast<int>(if_printed(judge::rejudge(options)));
  } catch (const Error& problem) {
    return error(problem.code(), problem.what());
  } catch (const std::exception& problem) {
    return error(ExitCode::internal, problem.what());
  }
}

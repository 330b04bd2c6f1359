#include "common/judge/court.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

namespace shakedown::judge {
namespace {

Limits limits_of(const std::string& path) {
  if (path.empty()) return Limits::embedded();
  return named_by("--limits", [&] {
    std::ifstream in(path, std::ios::binary);
    in.peek();  // a folder can be opened
    if (!in.is_open() || in.bad())
      throw UsageError(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
    const std::string text(std::istreambuf_iterator<char>(in), {});
    return Limits::embedded().with(text, path);
  });
}

References references_of(const std::string& path) {
  if (path.empty()) return References::embedded();
  return named_by("--reference", [&] { return References::load(path); });
}

}  // namespace

void declare_options(OptionSet& options, JudgeOptions& values) {
  options
      .add("--reference", values.reference,
           "reference figures to compare rates with: a file of results/reference or "
           "--record-reference, a record of a good machine, or a folder of them")
      .metavar("PATH")
      .default_text("the built-in ones")
      .existing_file();
  options
      .add("--limits", values.limits,
           "file of limits that replace the built-in ones (docs/judge.md)")
      .metavar("FILE")
      .existing_file();
}

Court::Court(const JudgeOptions& options)
    : references_(references_of(options.reference)),
      limits_(limits_of(options.limits)),
      limits_file_(options.limits) {}

Judgement Court::judge(const Evidence& evidence, const Request& request) const {
  Judgement judgement = judge::judge(evidence, references_, limits_, Boards::embedded(), request);
  if (limits_file_.empty()) return judgement;
  const std::string by = fmt::format("; limits of {}", limits_file_);
  for (Verdict& node : judgement.nodes)
    if (node.outcome == Outcome::pass) node.cause += by;
  if (judgement.job.outcome == Outcome::pass) judgement.job.cause += by;
  return judgement;
}

}  // namespace shakedown::judge

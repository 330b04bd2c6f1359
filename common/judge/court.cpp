#include "common/judge/court.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <ostream>

#include "common/error.hpp"
#include "common/judge/strict_json.hpp"
#include "common/output_file.hpp"

namespace shakedown::judge {
namespace {

Limits limits_of(const std::string& path) {
  if (path.empty()) return Limits::embedded();
  return named_by("--limits", [&] { return Limits::embedded().with(text_of_file(path), path); });
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
      .existing_path();
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

namespace {

bool is_unjudged(const Verdict& finding, const Judgement& judgement) {
  return finding.scope == Scope::node &&
         std::any_of(judgement.unjudged.begin(), judgement.unjudged.end(),
                     [&](const Unjudged& each) { return each.rates == finding.metric; });
}

/// What others published of the boards is kept in a file that is measured anew.
void keep_published(const std::string& path, Reference& made) {
  if (!std::filesystem::exists(path)) return;
  const Reference before =
      named_by("--record-reference", [&] { return reference_of(text_of_file(path), path); });
  made.note = before.note;
  for (const ReferenceFigure& figure : before.figures)
    if (figure.kind != "measured") made.figures.push_back(figure);
}

void write_reference(const RejudgeOptions& options, const Read& read, const Judgement& judgement,
                     const Limits& limits) {
  const std::string& path = options.reference;
  // Without a reference there may be no witness yet: that alone does not keep one from being made.
  for (const Verdict& finding : judgement.findings)
    if (finding.outcome >= Outcome::inconclusive && !is_unjudged(finding, judgement))
      throw UsageError("--record-reference " + path + ": not of nodes with " + line_of(finding));
  const std::string name = path.substr(path.rfind('/') + 1);
  Reference made =
      recorded(read.evidence.observations, limits, name.substr(0, name.rfind('.')),
               fmt::format("bin/judge --record-reference of {}", fmt::join(options.paths, ", ")));
  const std::string noisy = fmt::format(
      "{}: too noisy, as looks or units differ by half: measure again with nothing else "
      "running",
      fmt::join(made.noisy, ", "));
  if (made.figures.empty())
    throw InconclusiveError(fmt::format("--record-reference {}: not written: {}", path, noisy));
  if (!made.noisy.empty()) fmt::print("{}: without {}\n", path, noisy);
  keep_published(path, made);
  write_file({"--record-reference", path}, [&](std::ostream& out) { out << text_of(made); });
}

}  // namespace

void declare_options(OptionSet& set, RejudgeOptions& values) {
  set.take_operands("RECORD_OR_FOLDER...", values.paths);
  declare_options(set, values.court);
  set.add("--rates", values.rates, "classes of rates that each node must have a judgement of")
      .one_of({"products", "memory", "host_link", "links", "collectives", "training"})
      .metavar("LIST")
      .default_text("those that were measured");
  set.add("--stage", values.stage, "stage of an acceptance to judge alone").metavar("NAME");
  set.add("--strict", values.strict, "make a node INCONCLUSIVE by a warning or an unknown fact");
  set.add("--record", values.record, "file of figures, verdicts and what would have been found")
      .metavar("FILE");
  set.add("--record-reference", values.reference,
          "write what passed as a reference; three GPUs of a model at least")
      .metavar("FILE");
  set.check([&] {
    if (values.paths.empty()) throw UsageError("name a record or a folder of records");
  });
}

ExitCode rejudge(const RejudgeOptions& options) {
  Court court(options.court);
  const Read records = read(options.paths, options.stage);
  const Judgement judgement =
      court.judge(records.evidence, {"judge", options.rates, options.strict});
  for (const std::string& remark : records.remarks) fmt::print("{}\n", remark);
  std::fputs((text_of_stated(judgement) + text_of(judgement)).c_str(), stdout);
  Record record(options.record);
  write_lines(records, judgement,
              [&](const std::string& kind, const Json& fields) { record.write(kind, fields); });
  if (!options.reference.empty()) write_reference(options, records, judgement, court.limits());
  return exit_code_of(judgement.job.outcome);
}

}  // namespace shakedown::judge

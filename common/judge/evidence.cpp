#include "common/judge/judge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <tuple>

#include "common/usage_error.hpp"

namespace shakedown::judge {
namespace {

namespace fs = std::filesystem;
constexpr const char* kRuns = "runs.jsonl";
constexpr std::array<const char*, 5> kOfWrongData{"mismatch", "certificate", "collective", "link",
                                                  "split"};
// Metrics that each GPU of a run has where one has; of a training, servers have none.
constexpr std::array<std::string_view, 3> kOfEachGpu{"product", "memory", "host_link"};

std::string text_at(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_string() ? found->get<std::string>() : "";
}

std::vector<std::string> texts(const Json& line, const char* key) {
  std::vector<std::string> found;
  if (line.contains(key) && line[key].is_array())
    for (const Json& each : line[key])
      found.push_back(each.is_string() ? each.get<std::string>() : "");
  return found;
}

Statement statement_of(const Json& line) {
  Statement said;
  said.verdict = {named(kScopes, text_at(line, "scope")).value_or(Scope::job),
                  text_at(line, "name"),
                  named(kOutcomes, text_at(line, "verdict")).value_or(Outcome::inconclusive),
                  text_at(line, "cause"),
                  named(kClasses, text_at(line, "class")),
                  text_at(line, "action")};
  said.verdict.check = text_at(line, "check");
  said.stage = text_at(line, "stage");
  said.nodes = texts(line, "nodes");
  said.accepted = line.value("accepted", Json()) == true;
  return said;
}

/// What a line shows of itself, where the run did not come to its verdicts. Empty: nothing wrong.
std::string wrong_data_of(const Json& line) {
  const std::string kind = text_at(line, "kind");
  const auto above_zero = [&](const char* key) {
    return line.contains(key) && line[key].is_number() && line[key].get<double>() > 0;
  };
  if (kind == "mismatch" && text_at(line, "verdict") != name_of(Outcome::inconclusive))
    return fmt::format("{} {}: {}", text_at(line, "load"), text_at(line, "where"),
                       text_at(line, "cause"));
  if (kind == "certificate" && line.value("pass", Json()) == false)
    return fmt::format("{}: {}", text_at(line, "strategy"),
                       line.value("cause", "other weights than " + text_at(line, "reference")));
  if (above_zero("wrong_elements"))
    return fmt::format("{} wrong elements in a {} record", json_text(line["wrong_elements"]), kind);
  return "";
}

/// In a folder: to open a pipe would wait for its writer.
const fs::path& regular(const fs::path& path) {
  if (fs::exists(path) && !fs::is_regular_file(path))
    throw UsageError(path.string() + ": is no regular file");
  return path;
}

class Reader {
 public:
  explicit Reader(std::string stage) : stage_(std::move(stage)) {}

  /// Whether there was a record.
  bool read(const std::string& path) {
    if (!fs::is_directory(path)) {
      record(path, path, stage_, true);
      return true;
    }
    const fs::path runs = fs::path(path) / kRuns;
    if (fs::exists(runs) && !fs::is_empty(runs)) {  // empty: of a full disk
      acceptance(path);
      return true;
    }
    std::vector<std::string> parts;
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.path().extension() == ".jsonl" || (entry.is_directory() && !entry.is_symlink()))
        parts.push_back(entry.is_directory() ? entry.path() : regular(entry.path()));
      // Its log. What it found, and what has not run, is known by its runs.jsonl alone.
      if (entry.path().extension() == ".log" &&
          entry.path().filename().string().starts_with("acceptance_"))
        incomplete(path + ": an acceptance that did not come to its end", {});
    }
    std::sort(parts.begin(), parts.end());
    bool found = false;
    for (const std::string& part : parts) found = read(part) || found;
    return found;
  }

  Read take() {
    // One machine has a GPU of it after another boot, too.
    for (const auto& [host, of] : machines_)
      if (of.boots.size() > 1 && of.pairs.size() == of.uuids.size())
        read_.remarks.push_back(fmt::format(
            "{} node {}: machines of one name, with {} boots and each its own GPUs, are judged as "
            "one node",
            name_of(Outcome::warn), host, of.boots.size()));
    for (const auto& [training, why, hosts] : stopped_)
      if (std::ranges::none_of(trainings_, std::bind_front(continues, training)))
        incomplete(why, hosts);
    return std::move(read_);
  }

 private:
  void acceptance(const std::string& folder) {
    struct Part {
      std::string record, stage;
      std::vector<std::string> nodes;
      bool ended = false;  // with 0 or 1; else the acceptance has stated why
    };
    std::vector<Part> parts;
    std::size_t cut = 0;
    const auto use = [&](const Json& line) {
      const std::string kind = text_at(line, "kind");
      if (kind == "node") {
        read_.evidence.nodes.push_back(text_at(line, "name"));
        for (const std::string& host : texts(line, "hosts")) node_of_[host] = text_at(line, "name");
      } else if (kind == "stage") {
        const Json code = line.value("exit_code", Json());
        parts.push_back({text_at(line, "record"), text_at(line, "name"), texts(line, "nodes"),
                         code == 0 || code == 1});
      } else if (stage_.empty() || text_at(line, "stage") == stage_) {
        read_.evidence.statements.push_back(statement_of(line));
      }
    };
    for_lines(fs::path(folder) / kRuns, {"node", "stage", "verdict"}, use, &cut);
    if (cut > 0) incomplete(fmt::format("{}: line {} is cut", kRuns, cut), read_.evidence.nodes);
    if (!stage_.empty() && std::none_of(parts.begin(), parts.end(),
                                        [&](const Part& part) { return part.stage == stage_; }))
      throw UsageError(fmt::format("{}: {} has no stage of that name", stage_, folder));
    for (const Part& part : parts) {
      const std::string file = fs::path(folder) / part.record;
      if (part.record.empty() || !(stage_.empty() || part.stage == stage_)) continue;
      if (!fs::exists(file)) {
        incomplete(part.record + ": the record is missing", part.nodes);
        continue;
      }
      const bool complete = record(regular(file), part.record, part.stage, false);
      if (!part.ended) continue;
      if (complete)  // what it says against a node is a line of its own
        read_.evidence.statements.push_back(
            {{Scope::job, part.stage, Outcome::pass, ""}, part.stage, part.nodes});
      else
        incomplete(part.record + ": the record is not complete", part.nodes);
    }
  }

  /// What shows that a run continues another, as results/reporting/trainings.py has it.
  struct Training {
    std::string program, started;
    fs::path from, to;  // folders of the checkpoint that it starts with, and of its own
    std::optional<double> first_epoch;  // that it finished
  };
  static bool continues(const Training& stopped, const Training& run) {
    return !stopped.to.empty() && run.from == stopped.to && run.program == stopped.program &&
           run.started > stopped.started &&
           (!stopped.first_epoch || !run.first_epoch || *run.first_epoch > 1);
  }
  static Training training_of(const Json& line) {
    const auto folder = [](const fs::path& path) {
      return path.empty() ? path : (path / "").lexically_normal();
    };
    const std::string resume = text_at(line, "options.resume");
    Training found{text_at(line, "program"), text_at(line, "started"), {}, {}, {}};
    found.to = folder(text_at(line, "options.checkpoint_dir"));
    if (resume != "none")
      found.from = resume.empty() || resume == "auto"
                       ? found.to
                       : folder("." / fs::path(resume).parent_path());
    return found;
  }

  /// Of a program; its lines have a run_id in common.
  struct Run {
    Training training;
    bool began = false, ended = false;
    std::vector<std::string> hosts;                         // distinct
    std::map<std::string, std::string> places;              // UUIDs and ranks: hosts
    std::map<std::string, std::set<std::string>> measured;  // of kOfEachGpu: UUIDs
    std::vector<Json> verdicts;
    std::map<std::string, std::string> wrong;  // ranks, "" of none: the first wrong data of each
    Json exit_code;
  };

  /// Whether all of it is there.
  bool record(const std::string& file, const std::string& name, const std::string& stage,
              bool with_statements) {
    std::vector<const char*> kinds{"run", "metric", "verdict", "end", "epoch"};
    if (with_statements) kinds.insert(kinds.end(), kOfWrongData.begin(), kOfWrongData.end());
    std::map<std::string, Run> runs;
    std::size_t cut = 0;
    for_lines(
        file, kinds,
        [&](const Json& line) {
          const std::string kind = text_at(line, "kind");
          Run& run = runs[text_at(line, "run_id")];
          if (kind == "metric") {
            metric(line, name, stage, run);
          } else if (kind == "end") {
            run.ended = true;
            run.exit_code = line.value("exit_code", Json());
          } else if (kind == "epoch") {
            const Json epoch = line.value("epoch", Json());
            if (!run.training.first_epoch && epoch.is_number())
              run.training.first_epoch = epoch.get<double>();
          } else if (kind == "run") {
            run.began = true;
            run.training = training_of(line);
            hosts_of(line, run);
          } else if (kind == "verdict") {
            run.verdicts.push_back(line);
          } else if (const std::string wrong = wrong_data_of(line); !wrong.empty()) {
            run.wrong.try_emplace(json_text(line.value("rank", Json(""))), wrong);
          }
        },
        &cut);
    if (!with_statements)
      return cut == 0 && !runs.empty() && std::ranges::all_of(runs, [](const auto& each) {
               const Run& run = each.second;
               return run.began && run.ended && unmeasured(run).empty();
             });
    std::vector<std::string> hosts;
    for (const auto& [id, run] : runs) {
      if (!run.began && std::ranges::any_of(run.verdicts, is_conclusion)) continue;
      for (const Json& line : run.verdicts) statement(line, run);
      for (const auto& [host, why] : unmeasured(run)) incomplete(name + ": " + why, {host});
      if (!run.ended || run.exit_code == 0 || !says(run, Outcome::fail)) wrong_data(name, run);
      if (!run.began)
        incomplete(name + ": a run without its first line (kind run)", run.hosts);
      else if (!run.ended)
        incomplete(name + ": a run without an end line", run.hosts);
      else if (!is_explained(run))
        ended_badly(
            run, fmt::format("{}: a run ended with exit code {}", name, json_text(run.exit_code)));
      trainings_.push_back(run.training);
      hosts.insert(hosts.end(), run.hosts.begin(), run.hosts.end());
    }
    if (cut > 0) incomplete(fmt::format("{}: line {} is cut", name, cut), hosts);
    return true;
  }

  void ended_badly(const Run& run, const std::string& why) {
    if (run.exit_code == static_cast<int>(ExitCode::stopped))
      stopped_.emplace_back(run.training, why, run.hosts);
    else
      incomplete(why, run.hosts, run.exit_code == 1 ? Outcome::fail : Outcome::inconclusive);
  }

  /// Of a run that passed or was cut off, or of which no verdict fails.
  void wrong_data(const std::string& name, const Run& run) {
    for (const auto& [rank, wrong] : run.wrong) {
      Statement said;
      const auto at = run.places.find(rank);
      const bool placed = at != run.places.end();
      said.verdict = {placed ? Scope::rank : Scope::job, placed ? rank : name, Outcome::fail,
                      fmt::format("{}: wrong data{}: {}", name,
                                  run.ended ? "" : " before the run was cut off", wrong)};
      said.verdict.action = "run bin/soak on it";
      said.verdict.check = "wrong-data";
      said.nodes = placed ? std::vector{at->second} : run.hosts;
      read_.evidence.statements.push_back(said);
    }
  }

  /// Hosts, and of which GPU there are none of the figures that others of the run have.
  static std::map<std::string, std::string> unmeasured(const Run& run) {
    std::map<std::string, std::string> found;
    for (const auto& [what, uuids] : run.measured)
      for (const auto& [gpu, host] : run.places)
        if (gpu.find('-') != std::string::npos && !uuids.contains(gpu))
          found.try_emplace(host, fmt::format("no {} figure of {}", what, gpu));
    return found;
  }

  void hosts_of(const Json& line, Run& run) {
    const std::vector<std::string> all = texts(line, "hosts");
    const std::vector<std::string> uuids = texts(line, "gpu_uuids");
    const std::vector<std::string> boots = texts(line, "boot_ids");
    run.hosts = distinct(all);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      run.places[std::to_string(rank)] = all[rank];
      if (rank < uuids.size()) run.places[uuids[rank]] = all[rank];
      if (rank >= std::min(uuids.size(), boots.size()) || boots[rank].empty() ||
          uuids[rank].empty())
        continue;
      Machines& of = machines_[all[rank]];
      of.boots.insert(boots[rank]);
      of.uuids.insert(uuids[rank]);
      of.pairs.insert(boots[rank] + uuids[rank]);
    }
  }

  /// Of bin/judge --record, on other runs.
  static bool is_conclusion(const Json& line) {
    return text_at(line, "scope") == "job" && text_at(line, "name") == "judge";
  }

  /// Whether it ended, and if not well, its verdicts say why.
  static bool is_explained(const Run& run) {
    const Outcome least = run.exit_code == 1 ? Outcome::fail : Outcome::inconclusive;
    return run.exit_code == 0 || (run.ended && says(run, least));
  }

  /// Whether a verdict of it is as bad as that.
  static bool says(const Run& run, Outcome least) {
    return std::ranges::any_of(run.verdicts, [&](const Json& line) {
      return named(kOutcomes, text_at(line, "verdict")).value_or(Outcome::inconclusive) >= least;
    });
  }

  void incomplete(const std::string& why, const std::vector<std::string>& hosts,
                  Outcome outcome = Outcome::inconclusive) {
    Statement said;
    said.verdict = {Scope::job, why.substr(0, why.find(':')), outcome, why};
    said.verdict.check = "not-finished";
    said.nodes = hosts;
    read_.evidence.statements.push_back(said);
  }

  void metric(const Json& line, const std::string& name, const std::string& stage, Run& run) {
    Observation o = observation_of(line);
    const std::string what = o.metric.substr(0, o.metric.find('/'));
    if (o.of.scope == Scope::gpu && std::ranges::count(kOfEachGpu, what) > 0)
      run.measured[what].insert(o.of.uuids.begin(), o.of.uuids.end());
    for (std::string& host : o.of.hosts)
      if (const auto node = node_of_.find(host); node != node_of_.end()) host = node->second;
    if (!stage.empty()) o.stage = stage;
    o.run = text_at(line, "run_id");
    read_.evidence.observations.push_back(std::move(o));
    read_.records.push_back(name);
  }

  /// A rate's verdict, and a job's that rates are the reason of, is concluded anew.
  void statement(const Json& line, const Run& run) {
    const std::string scope = text_at(line, "scope");
    if (line.contains("metric") || (scope == "job" && text_at(line, "check") == "rates")) return;
    Statement said = statement_of(line);
    const auto at = run.places.find(said.verdict.name);
    if (scope == "node")
      said.nodes = {said.verdict.name};
    else if ((scope == "gpu" || scope == "rank") && at != run.places.end())
      said.nodes = {at->second};
    else
      said.nodes = run.hosts;
    read_.evidence.statements.push_back(said);
  }

  struct Machines {
    std::set<std::string> boots, uuids, pairs;  // of both
  };

  std::string stage_;
  std::map<std::string, std::string> node_of_;  // host: node
  std::map<std::string, Machines> machines_;    // of a host's name
  std::vector<Training> trainings_;             // and other runs
  std::vector<std::tuple<Training, std::string, std::vector<std::string>>> stopped_;  // why, hosts
  Read read_;
};

}  // namespace

void for_lines(const std::string& path, const std::vector<const char*>& kinds,
               const std::function<void(const Json& line)>& use, std::size_t* cut) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw UsageError(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  std::size_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const auto start = line.find_first_not_of(" \t\r");
    if (start == std::string::npos) continue;
    const auto begins = [&](const std::string& head) {
      return line.compare(start, head.size(), head) == 0;
    };
    const bool known = begins(R"({"kind":"table")") ||
                       std::any_of(kinds.begin(), kinds.end(), [&](const char* kind) {
                         return begins(fmt::format(R"({{"kind":"{}")", kind));
                       });
    if (begins(R"({"kind":")") && !known && line.back() == '}') continue;
    const Json json = Json::parse(line, nullptr, false);
    // NUL: of a block that a power failure kept from the disk.
    if (cut != nullptr && json.is_discarded() && (line[start] == '{' || line[start] == '\0')) {
      *cut = number;
      continue;
    }
    if (!json.is_object() || !json.contains("kind"))
      throw UsageError(fmt::format("{}: line {} is no record", path, number));
    try {
      for (const Json& each : lines_of(json))
        if (std::find(kinds.begin(), kinds.end(), text_at(each, "kind")) != kinds.end()) use(each);
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("{}: line {}: {}", path, number, error.what()));
    }
  }
}

Read read(const std::vector<std::string>& paths, const std::string& stage) {
  Reader reader(stage);
  try {
    for (const std::string& path : paths)
      if (!reader.read(path)) throw UsageError(path + ": a folder without records (.jsonl)");
  } catch (const fs::filesystem_error& error) {
    throw UsageError(
        fmt::format("{}: cannot be read: {}", error.path1().string(), error.code().message()));
  }
  return reader.take();
}

}  // namespace shakedown::judge

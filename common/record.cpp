#include "common/record.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>

#include "common/error.hpp"
#include "common/host.hpp"
#include "common/output_file.hpp"

namespace shakedown {
namespace {

constexpr const char* kLaunchers = "SHAKEDOWN_RECORD";  // of launch/mpi, which prints the headline

std::string new_run_id() {
  std::random_device random;
  return fmt::format("{}-{}-{:08x}{:08x}", utc_now(), host_name(), random(), random());
}

/// Whether records may be appended to the file: it is empty, or its first line is a record, which a
/// full disk may have cut.
bool holds_a_record(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string first;
  if (!std::getline(in, first)) return true;
  const Json json = Json::parse(first, nullptr, false);
  if (json.is_object()) return json.contains("kind");
  constexpr std::string_view kBeginning = R"({"kind":)";
  return json.is_discarded() && kBeginning.starts_with(first.substr(0, kBeginning.size()));
}

/// Keeps other processes that append to the file out while it lives, where the file system has
/// locks; without them an appended line is whole on all but network file systems.
class Lock {
 public:
  explicit Lock(int file) : file_(file) { flock(file_, LOCK_EX); }
  ~Lock() { flock(file_, LOCK_UN); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int file_;
};

/// Of a regular file; 0 of another.
off_t size_of(int file) {
  struct stat status {};
  return fstat(file, &status) == 0 && S_ISREG(status.st_mode) ? status.st_size : 0;
}

/// Whether the last line was cut short: by a full disk, or a copy made while it was written.
bool is_cut(int file, off_t size) {
  char last = '\n';
  return size > 0 && pread(file, &last, 1, size - 1) == 1 && last != '\n';
}

/// Takes back what was written of a line, unless somebody else has appended to it since. Where that
/// fails too, the next line starts on a line of its own.
void remove_half(int file, off_t before, std::size_t written) {
  if (written > 0 && size_of(file) == before + static_cast<off_t>(written)) [[maybe_unused]]
    const int failed = ftruncate(file, before);
}

}  // namespace

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

Record::Record(const std::string& path) : path_(path), run_id_(new_run_id()) {
  if (path.empty()) return;
  const auto refuse = [&](int why) {
    throw UsageError(fmt::format("--record {}: cannot be written: {}", path, std::strerror(why)));
  };
  if (const int why = make_folder_of(path); why != 0) refuse(why);
  const bool itself = is_written_itself(path);  // and cannot be read
  if (!itself && !holds_a_record(path))
    throw UsageError(fmt::format(
        "--record {}: is not a record (.jsonl), and would be appended to; name another file",
        path));
  file_ = open(path.c_str(), (itself ? O_WRONLY : O_RDWR) | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file_ < 0) refuse(errno);
}

Record::~Record() {
  if (file_ >= 0) close(file_);
}

void Record::write(const std::string& kind, const Json& fields) {
  const std::lock_guard guard(mutex_);
  if (file_ < 0 || ended_) return;
  ended_ = kind == "end";
  Json line = {{"kind", kind}, {"run_id", run_id_}};
  line.update(fields);
  const Lock lock(file_);
  const off_t before = size_of(file_);
  const std::string text = (is_cut(file_, before) ? "\n" : "") + json_text(line) + "\n";
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(file_, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      const int why = errno;
      remove_half(file_, before, done);
      throw InconclusiveError(
          fmt::format("--record {}: cannot be written: {}", path_, std::strerror(why)));
    }
    done += static_cast<std::size_t>(wrote);
  }
}

void Record::write_table(const std::string& kind, const std::vector<Json>& lines,
                         const std::vector<const char*>& columns) {
  std::vector<std::pair<Json, Json>> tables;  // what their lines have in common, and the rows
  std::map<std::string, std::size_t> known;
  for (const Json& line : lines) {
    Json common = line;
    Json row = Json::array();
    for (const char* column : columns) {
      row.push_back(line.value(column, Json()));
      common.erase(column);
    }
    const auto [at, is_new] = known.try_emplace(json_text(common), tables.size());
    if (is_new) tables.emplace_back(common, Json::array());
    tables[at->second].second.push_back(row);
  }
  for (const auto& [common, rows] : tables)
    write("table", merged(merged({{"of", kind}}, common), {{"columns", columns}, {"rows", rows}}));
}

std::vector<Json> lines_of(const Json& line) {
  if (line.value("kind", Json()) != "table") return {line};
  std::vector<Json> lines;
  try {
    const std::vector<std::string> columns = line.at("columns");
    Json common = line;
    common["kind"] = line.at("of");
    for (const char* key : {"of", "columns", "rows"}) common.erase(key);
    for (const Json& row : line.at("rows")) {
      Json& one = lines.emplace_back(common);
      for (std::size_t i = 0; i < columns.size(); ++i)
        if (const Json& cell = row.at(i); !cell.is_null()) one[columns[i]] = cell;
    }
  } catch (const Json::exception&) {
    throw UsageError("a table has `of`, columns and rows, each with a cell per column");
  }
  return lines;
}

std::int64_t unix_ms() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
}

std::string record_or_launchers(const std::string& path) {
  const char* launchers = std::getenv(kLaunchers);
  return path.empty() && launchers != nullptr ? launchers : path;
}

std::string text_of_report(const std::string& path) {
  if (std::getenv(kLaunchers) != nullptr) return "";
  return "report: " + (path.empty() ? "--record FILE keeps what results/report reads"
                                    : "results/report " + path);
}

std::string json_text(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

Json merged(Json fields, const Json& more) {
  fields.update(more);
  return fields;
}

namespace {

// In the order of their enumerations.
constexpr std::array kScopeNames{"operation", "link",  "rank",     "gpu", "rail",
                                 "node",      "group", "strategy", "job"};
constexpr std::array kOutcomeNames{"PASS", "WARN", "UNKNOWN", "INCONCLUSIVE", "FAIL"};
constexpr std::array kClassNames{"HARDWARE", "CONFIG", "SOFTWARE", "ENVIRONMENT", "INFRASTRUCTURE"};
static_assert(kScopeNames.size() == kScopes.size() && kOutcomeNames.size() == kOutcomes.size() &&
              kClassNames.size() == kClasses.size());

}  // namespace

const char* name_of(Scope scope) { return kScopeNames.at(static_cast<std::size_t>(scope)); }
const char* name_of(Outcome outcome) { return kOutcomeNames.at(static_cast<std::size_t>(outcome)); }
const char* name_of(Class class_) { return kClassNames.at(static_cast<std::size_t>(class_)); }

Json record_of(const Verdict& verdict) {
  Json fields{{"scope", name_of(verdict.scope)},
              {"name", verdict.name},
              {"verdict", name_of(verdict.outcome)},
              {"cause", verdict.cause}};
  if (verdict.class_) fields["class"] = name_of(*verdict.class_);
  if (!verdict.action.empty()) fields["action"] = verdict.action;
  if (!verdict.check.empty()) fields["check"] = verdict.check;
  if (!verdict.metric.empty()) fields["metric"] = verdict.metric;
  if (!verdict.witness.empty()) fields["witness"] = verdict.witness;
  if (verdict.looks > 0)
    fields.update({{"slow_looks", verdict.slow_looks}, {"looks", verdict.looks}});
  if (!verdict.hosts.empty()) fields["hosts"] = verdict.hosts;
  return fields;
}

std::string line_of(const Verdict& verdict) {
  const bool acts = verdict.outcome != Outcome::pass && !verdict.action.empty();
  const std::string_view scope = name_of(verdict.scope);
  std::string about = fmt::format("{} {}: ", scope, verdict.name);
  if (verdict.cause.starts_with(fmt::format("{} {} ", scope, verdict.name)))
    about.clear();  // "rank 1 on n2: ..."
  else if (verdict.scope == Scope::link && verdict.cause.starts_with(verdict.name + " "))
    about = fmt::format("{} ", scope);  // "0->1 on n2: ..."
  return fmt::format("{} {}{}{}{}", name_of(verdict.outcome), about, verdict.cause,
                     acts ? "; " : "", acts ? verdict.action : "");
}

ExitCode exit_code_of(Outcome outcome) {
  if (outcome == Outcome::fail) return ExitCode::fail;
  return outcome == Outcome::inconclusive ? ExitCode::inconclusive : ExitCode::pass;
}

ExitCode worst(std::span<const Verdict> verdicts) {
  const auto found =
      std::max_element(verdicts.begin(), verdicts.end(),
                       [](const Verdict& a, const Verdict& b) { return a.outcome < b.outcome; });
  return found == verdicts.end() ? ExitCode::pass : exit_code_of(found->outcome);
}

}  // namespace shakedown

// What programs write: records, CSV, verdicts, any file.
#include "common/record.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <vector>

#include "common/error.hpp"
#include "common/identity.hpp"
#include "common/mpi_session.hpp"
#include "common/numbers.hpp"
#include "common/nvml.hpp"
#include "common/output_file.hpp"
#include "common/program.hpp"
#include "common/text_table.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/files.hpp"
#include "tests/support/transcript.hpp"

namespace shakedown {
namespace {

void write_text(const std::string& path) {
  write_file({"--trace", path}, [](std::ostream& out) { out << "text"; });
}

/// "verdict SCOPE NAME OUTCOME [CLASS]" and its cause and action below.
Verdict verdict_of(std::istream& words, const Texts& below) {
  std::string scope, name, outcome, class_;
  words >> scope >> name >> outcome >> class_;
  return {named(kScopes, scope).value(),     name,
          named(kOutcomes, outcome).value(), below.at(0),
          named(kClasses, class_),           below.size() > 1 ? below[1] : ""};
}

/// Of a case of record.txt: its first word, what follows it, and the lines below.
std::string answer_of(const std::string& given) {
  std::istringstream in(given), words;
  std::string line, what;
  Texts below;
  std::getline(in, line);
  words.str(line);
  words >> what;
  while (std::getline(in, line)) below.push_back(line.substr(1));
  if (what == "verdict") {
    const Verdict verdict = verdict_of(words, below);
    return line_of(verdict) + "\n" + record_of(verdict).dump();
  }
  if (what == "worst") {
    std::vector<Verdict> verdicts;
    for (std::string outcome; words >> outcome;)
      verdicts.push_back({Scope::job, "", named(kOutcomes, outcome).value(), ""});
    return fmt::format("exit code {}", static_cast<int>(worst(verdicts)));
  }
  if (what == "environment") {
    std::vector<const char*> variables;
    for (const std::string& each : below) variables.push_back(each.c_str());
    variables.push_back(nullptr);
    return recorded_environment(variables.data()).dump();
  }
  if (what == "mpi") return mpi_version_in(fmt::format("{}", fmt::join(below, "\n")));
  double number = 0;
  words >> number;
  return what == "duration" ? readable_duration(number) : readable_bytes(number);
}

}  // namespace

TEST_CASE("verdicts, environments, versions, durations and bytes as text", "[record][verdict]") {
  test::check_transcript("tests/common/record.txt", answer_of);
}

TEST_CASE("records are appended, a line each, with non-finite numbers as null", "[record]") {
  const test::TempFolder folder;
  const std::string path = folder / "runs/r.jsonl";  // whose folder is made
  for (int run = 0; run < 2; ++run) {
    Record record(path);
    record.write("step",
                 {{"images_per_s", 2.5}, {"power_w", {1.0, kUnknown}}, {"strategy", "ddp"}});
    record.write("end", {{"exit_code", run}});
  }
  std::vector<Json> lines;
  for (const std::string& line : test::lines_of(path)) lines.push_back(Json::parse(line));
  REQUIRE(lines.size() == 4);
  CHECK(lines[0].begin().key() == "kind");
  CHECK(lines[0]["kind"] == "step");
  CHECK(lines[0]["images_per_s"] == 2.5);
  CHECK(lines[0]["power_w"][1].is_null());
  CHECK(lines[3]["exit_code"] == 1);
  const auto id = [&](int line) { return std::next(lines[line].begin()).value(); };
  CHECK(std::next(lines[0].begin()).key() == "run_id");
  CHECK(id(0) == id(1));
  CHECK(id(2) == id(3));
  CHECK(id(0) != id(2));
}

TEST_CASE("lines that differ in some columns are the rows of a table, and read back", "[record]") {
  const test::TempFolder folder;
  const std::string path = folder / "r.jsonl";
  std::vector<Json> lines;
  for (const char* text : {R"({"from":0,"gbs":1.5,"host":"a"})", R"({"from":1,"host":"a"})",
                           R"({"from":2,"gbs":2.5,"host":"b"})"})
    lines.push_back(Json::parse(text));
  Record(path).write_table("visit", lines, {"from", "gbs"});
  std::vector<Json> read;
  for (const std::string& line : test::lines_of(path))
    for (Json row : lines_of(Json::parse(line))) {
      CHECK(row.at("kind") == "visit");
      row.erase("kind");
      CHECK(row.erase("run_id") == 1);
      read.push_back(nlohmann::json(row));  // in any order of its keys
    }
  CHECK(test::lines_of(path).size() == 2);
  REQUIRE(read.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) CHECK(read[i] == Json(nlohmann::json(lines[i])));
  for (const char* bad :
       {R"({"kind":"table"})", R"({"kind":"table","of":"x","columns":["a"],"rows":[[]]})"})
    CHECK_THROWS_AS(lines_of(Json::parse(bad)), UsageError);
}

TEST_CASE("jobs that record into one file share it line by line", "[record]") {
  const test::TempFolder folder;
  const std::string path = folder / "r.jsonl";
  constexpr int kLines = 100;
  const auto write = [&](Record& record) {
    const std::string long_text(20000, 'x');
    for (int i = 0; i < kLines; ++i) record.write("step", {{"text", long_text}});
  };
  Record a(path);
  Record b(path);
  std::thread other([&] { write(b); });
  write(a);
  other.join();
  std::ofstream(path, std::ios::app) << R"({"kind":"ste)";  // a third, whose disk was full
  a.write("end", {{"exit_code", 0}});
  const auto lines = test::lines_of(path);
  REQUIRE(lines.size() == 2 * kLines + 2);
  std::map<std::string, int> count;
  for (std::size_t i = 0; i + 2 < lines.size(); ++i) ++count[Json::parse(lines[i])["run_id"]];
  CHECK(count == std::map<std::string, int>{{a.run_id(), kLines}, {b.run_id(), kLines}});
  CHECK(Json::parse(lines.back())["kind"] == "end");
}

TEST_CASE("a file that is no record is refused", "[record]") {
  const test::TempFolder folder;
  const std::string path = folder / "r.jsonl";
  for (const char* text : {"\x7f\x45LF\x01", "words\n", "{\"a\": 1}\n", "[1]\n"}) {
    std::ofstream(path) << text;
    CHECK_ERROR(UsageError, Record(path),
                ContainsSubstring("--record " + path + ": is not a record"));
  }
  for (const char* text :
       {"", "{\"kind\": \"run\"}\n", "{\"a\":1,\"kind\":\"run\"}\n", "{\"kind\":\"ru", "{\"ki"}) {
    std::ofstream(path) << text;
    CHECK_NOTHROW(Record(path));
  }
}

TEST_CASE("a signal ends the record before it ends the process", "[record]") {
  const test::TempFolder folder;
  const std::string path = folder / "r.jsonl";
  const pid_t child = fork();
  if (child == 0) {
    Record record(path);
    recorded(record, [&]() -> ExitCode {
      {
        const StopSignals signals;
        std::raise(SIGUSR1);
        record.write("run", {{"noted", signals.received()}});
      }
      std::raise(SIGUSR2);
      while (true) record.write("step", {});
    });
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGUSR2);
  const auto lines = test::lines_of(path);
  REQUIRE(lines.size() >= 2);
  CHECK(Json::parse(lines.front())["noted"] == "SIGUSR1");
  CHECK(Json::parse(lines.back())["kind"] == "end");
  CHECK(Json::parse(lines.back())["exit_code"] == 5);
}

TEST_CASE("a line that the disk has no room for leaves the lines before it whole", "[record]") {
  const test::TempFolder folder;
  const std::string path = folder / "r.jsonl";
  Record record(path);
  record.write("run", {{"number", 1}});
  const auto size = std::filesystem::file_size(path);
  {
    const test::FileLimit full(size + 10);
    CHECK_THROWS_WITH(
        record.write("step", {{"number", 2}}),
        ContainsSubstring("--record " + path + ": cannot be written: File too large"));
  }
  CHECK(std::filesystem::file_size(path) == size);
  record.write("end", {{"exit_code", 0}});
  const auto lines = test::lines_of(path);
  REQUIRE(lines.size() == 2);
  CHECK(Json::parse(lines[1])["kind"] == "end");
}

TEST_CASE("a record that cannot be opened or written is named", "[record]") {
  CHECK_ERROR(UsageError, Record("/proc/no/x.jsonl"),
              ContainsSubstring("--record /proc/no/x.jsonl"));
  Record("").write("step", {});
  Record full("/dev/full");
  CHECK_THAT(test::error_of<InconclusiveError>([&] {
               full.write("step", {{"a", 1}});
             }),
             ContainsSubstring("--record /dev/full"));
}

TEST_CASE("a pass that cannot be printed is inconclusive", "[record]") {
  const auto code_with_output_to = [](const char* path, ExitCode code) {
    std::fflush(stdout);
    const int kept = dup(STDOUT_FILENO);
    const int file = open(path, O_WRONLY);
    dup2(file, STDOUT_FILENO);
    Record record("");
    const ExitCode result = recorded(record, [&] {
      std::printf("images/s 1\n");
      std::fflush(stdout);
      return code;
    });
    dup2(kept, STDOUT_FILENO);
    close(kept);
    close(file);
    std::clearerr(stdout);
    return result;
  };
  CHECK(code_with_output_to("/dev/null", ExitCode::pass) == ExitCode::pass);
  CHECK(code_with_output_to("/dev/full", ExitCode::pass) == ExitCode::inconclusive);
  CHECK(code_with_output_to("/dev/full", ExitCode::fail) == ExitCode::fail);
}

TEST_CASE("16-bit floats round to nearest even and keep every value", "[half]") {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = float16_to_float(half);
    if (!std::isnan(value)) REQUIRE(float_to_float16(value) == half);
    const float wide = bfloat16_to_float(half);
    if (!std::isnan(wide)) REQUIRE(float_to_bfloat16(wide) == half);
  }
  CHECK(std::isnan(float16_to_float(float_to_float16(NAN))));
  CHECK(std::isnan(bfloat16_to_float(float_to_bfloat16(NAN))));
  CHECK(float_to_float16(65519.0F) == 0x7BFF);  // below the midpoint to infinity
  CHECK(float_to_float16(65520.0F) == 0x7C00);
  CHECK(float_to_float16(1.0F + 0x1p-11F) == 0x3C00);      // tie to even
  CHECK(float_to_float16(1.0F + 3 * 0x1p-11F) == 0x3C02);  // tie to even
  CHECK(float_to_float16(0x1p-25F) == 0);                  // tie to even, subnormal
  CHECK(float_to_float16(0x1.8p-25F) == 1);
  CHECK(float_to_bfloat16(1.0F + 0x1p-8F) == 0x3F80);
  CHECK(float_to_bfloat16(1.0F + 3 * 0x1p-8F) == 0x3F82);
}

TEST_CASE("names that are not UTF-8 become text", "[record]") {
  CHECK(json_text({{"host", "gp\xfcnode7"}}) == "{\"host\":\"gp\xef\xbf\xbdnode7\"}");
  CHECK(Json::parse(json_text({{"host", "gp\xfcnode7"}}, 1)).at("host") == "gp\xef\xbf\xbdnode7");
}

TEST_CASE("a file is written whole, in folders that are made, or refused", "[output_file]") {
  const test::TempFolder folder;
  const std::string path = folder.path + "/runs/today/file", link = folder.path + "/link";
  check_writable({"--trace", path});
  CHECK_FALSE(std::filesystem::exists(path));
  write_text(path);
  CHECK(test::content_of(path) == "text");
  CHECK_FALSE(std::filesystem::exists(path + ".partial"));
  // what a link leads to is written, and the link stays
  std::filesystem::create_symlink("runs/today/file", link);
  write_file({"--trace", link}, [](std::ostream& out) { out << "anew"; });
  CHECK(std::filesystem::is_symlink(link));
  CHECK(test::content_of(path) == "anew");
  CHECK_THROWS_WITH(check_writable({"--trace", path + "/below/a/file"}),
                    ContainsSubstring("--trace " + path) && ContainsSubstring("Not a directory"));
  CHECK_ERROR(UsageError, check_writable({"--save", folder.path}),
              ContainsSubstring("--save " + folder.path));
  // a device is written in place, and a full one is reported
  const std::string device = folder.path + "/device";
  std::filesystem::create_symlink("/dev/full", device);
  check_writable({"--trace", device});
  check_space({"--trace", device}, std::uint64_t{1} << 62);
  check_space({"--save", path}, 1);
  CHECK_THROWS_WITH(
      check_space({"--save", path}, std::uint64_t{1} << 62),
      ContainsSubstring("--save " + path + " needs 4.194e+06 TiB, ") && EndsWith(" are free"));
  CHECK_ERROR(
      InconclusiveError, write_text(device),
      ContainsSubstring("--trace " + device) && ContainsSubstring("No space left on device"));
  CHECK(std::filesystem::is_character_file(device));
}

TEST_CASE("two options that name one file are refused", "[output_file]") {
  const test::TempFolder folder;
  std::filesystem::create_symlink("a", folder.path + "/link");
  const auto both = [&](const std::string& a, const std::string& b) {
    check_distinct({{"--record", a}, {"--trace", b}, {"--save", ""}});
  };
  CHECK_THROWS_AS(both(folder.path + "/a", folder.path + "/a"), UsageError);
  CHECK_THROWS_WITH(
      both(folder.path + "/a",
           folder / "../" + std::filesystem::path(folder.path).filename().string() + "/link"),
      ContainsSubstring("--trace") && ContainsSubstring("the file of --record"));
  CHECK_NOTHROW(both(folder.path + "/a", folder.path + "/b"));
  CHECK_NOTHROW(both("/dev/null", "/dev/null"));
  CHECK_NOTHROW(both("", ""));
}

}  // namespace shakedown

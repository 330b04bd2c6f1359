#include "common/record.hpp"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>

#include "common/error.hpp"
#include "tests/catch.hpp"

namespace shakedown {

TEST_CASE("a CSV file has a record's values under its columns", "[csv]") {
  const std::string path = std::filesystem::temp_directory_path() / "shakedown_csv_test.csv";
  const auto content = [&] {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  for (int time = 0; time < 2; ++time) {  // the second replaces the first
    CsvFile csv({"--csv", path}, {"name", "time_us", "in_place", "wait_us", "wrong"});
    csv.add({{"name", "GPU 1, \"H200\""}, {"time_us", 1.5}, {"other", 3}, {"in_place", false}});
    csv.add({{"name", "b"}, {"time_us", NAN}, {"wait_us", {1.5, 2.5}}, {"wrong", nullptr}});
  }
  CHECK(content() ==
        "name,time_us,in_place,wait_us,wrong\n"
        "\"GPU 1, \"\"H200\"\"\",1.5,false,,\n"
        "b,,,1.5 2.5,\n");
  std::remove(path.c_str());
  CHECK_NOTHROW(CsvFile({"--csv", ""}, {"a"}).add({{"a", 1}}));
  CHECK_THROWS_AS(CsvFile({"--csv", "/proc/no/x.csv"}, {"a"}), UsageError);
  CHECK_THROWS_AS(CsvFile({"--csv", "/dev/full"}, {"a"}), InconclusiveError);
}

}  // namespace shakedown

#include "collectives/verdict.hpp"

#include <cstdio>
#include <fstream>

#include "common/error.hpp"
#include "tests/catch.hpp"

namespace shakedown {
namespace {

Json row(double time_us, double busbw_gbs, double wrong = 0) {
  return {{"kind", "collective"},
          {"backend", "cpu"},
          {"transport", "mpi"},
          {"launch_mode", "back_to_back"},
          {"world_size", 2},
          {"operation", "all_reduce"},
          {"dtype", "float32"},
          {"reduction", "sum"},
          {"root", -1},
          {"registration", 0},
          {"bytes", 1024},
          {"in_place", false},
          {"time_us_p50", time_us},
          {"busbw_gbs", busbw_gbs},
          {"wrong_elements", wrong}};
}

struct ReferenceFile {
  explicit ReferenceFile(const std::string& text) { std::ofstream(path) << text; }
  ~ReferenceFile() { std::remove(path.c_str()); }
  std::string path = "verdict_test_reference.jsonl";
};

}  // namespace

TEST_CASE("bandwidth is judged at the largest size, latency at the smallest", "[verdict]") {
  const Bars bars({10, 50, "", 5});
  CHECK(bars.judge(row(40, 12), 40, false, true)->verdict == "PASS");
  CHECK(bars.judge(row(40, 9), 40, false, true)->verdict == "FAIL");
  CHECK_FALSE(bars.judge(row(400, 1), 400, false, false));
  CHECK(bars.judge(row(51, 1), 51, true, false)->verdict == "FAIL");
  CHECK(bars.judge(row(49, 1), 49, true, false)->verdict == "PASS");
  CHECK(bars.judge(row(49, 1), 51, true, false)->verdict == "FAIL");  // of the table, one by one
}

TEST_CASE("bars on sizes are named as they were given", "[verdict]") {
  CHECK(Bars({10, 50, "", 5}).bars_on_sizes() == "--min-busbw 10, --max-latency 50");
  CHECK(Bars({0, 50, "", 5}).bars_on_sizes() == "--max-latency 50");
  CHECK(Bars({}).bars_on_sizes().empty());
}

TEST_CASE("wrong data fail without any bar", "[verdict]") {
  const Bars bars({});
  CHECK_FALSE(bars.judge(row(40, 12), 40, true, true));
  CHECK(bars.judge(row(40, 12, 3), 40, false, false)->verdict == "FAIL");
}

TEST_CASE("a reference judges the rows it has, within the tolerance", "[verdict]") {
  const ReferenceFile file(row(100, 10).dump() + "\n{\"kind\": \"end\"}\n");
  const Bars bars({0, 0, file.path, 5});
  CHECK(bars.judge(row(104, 9.6), 104, false, false)->verdict == "PASS");
  CHECK(bars.judge(row(107, 9.3), 107, false, false)->verdict == "FAIL");
  for (const char* key : {"bytes", "root", "registration", "world_size"}) {
    Json other = row(1000, 1);
    other[key] = 7;
    CAPTURE(key);
    CHECK_FALSE(bars.judge(other, 1000, false, false));
  }
}

TEST_CASE("of an appended reference the last run counts, and no wrong one", "[verdict]") {
  const ReferenceFile file(row(10, 100).dump() + "\n" + row(100, 10).dump() + "\n" +
                           row(1, 1000, 4).dump() + "\n");
  CHECK(Bars({0, 0, file.path, 5}).judge(row(104, 9.6), 104, false, false)->verdict == "PASS");
}

TEST_CASE("a reference that cannot be read says so", "[verdict]") {
  {
    const ReferenceFile file("not JSON\n");
    CHECK_THROWS_WITH(Bars({0, 0, file.path, 5}), ContainsSubstring("line 1 is not JSON"));
  }
  for (const char* line : {"[1,2]", "{\"kind\":5}", "{}", "7"}) {
    const ReferenceFile file(row(40, 12).dump() + "\n" + line + "\n");
    CHECK_THROWS_AS(Bars({0, 0, file.path, 5}), UsageError);
    CHECK_THROWS_WITH(Bars({0, 0, file.path, 5}),
                      ContainsSubstring(file.path + ": line 2 is not a record"));
  }
  {
    const std::string good = row(40, 12).dump() + "\n";
    const ReferenceFile cut("{\"ki\n{\"kind\":\"run\"}\n" + good);
    CHECK(Bars({0, 0, cut.path, 5}).reference_of(row(40, 12)) != nullptr);
    const ReferenceFile wrong(good + "{\"ki\n" + good);
    CHECK_THROWS_WITH(Bars({0, 0, wrong.path, 5}), ContainsSubstring("line 2 is not JSON"));
  }
  const ReferenceFile file("{\"kind\": \"step\"}\n");
  CHECK_THROWS_WITH(Bars({0, 0, file.path, 5}), ContainsSubstring("no collective records"));
}

}  // namespace shakedown

#include "resnet/plan_cache.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/catch.hpp"

namespace shakedown {
namespace {

constexpr const char* kBuild = "build";

/// A file in a directory that is yet to be made; both are gone in the end.
class CacheFolder {
 public:
  CacheFolder()
      : root_(std::filesystem::temp_directory_path() /
              ("plan_cache_test." + std::to_string(getpid()))) {}
  ~CacheFolder() { std::filesystem::remove_all(root_); }
  std::string file() const { return root_ / "shakedown" / "plans.json"; }
  std::string read() const {
    std::ifstream in(file());
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::string& text) const { std::ofstream(file()) << text; }

 private:
  std::filesystem::path root_;
};

void keep(const CacheFolder& place, const std::string& machine, const std::string& convolution,
          const std::string& plan) {
  PlanCache cache(place.file(), machine, kBuild);
  cache.keep(convolution, plan);
  REQUIRE(cache.save());
}

}  // namespace

TEST_CASE("plans are found again by the same build on the same kind of machine", "[plans]") {
  const CacheFolder place;
  keep(place, "H200, cuDNN 9", "conv a", "engine 1");
  keep(place, "H200, cuDNN 9", "conv b", "");  // known to be not worth it
  const PlanCache again(place.file(), "H200, cuDNN 9", kBuild);
  CHECK(again.find("conv a") == "engine 1");
  CHECK(again.find("conv b") == "");
  CHECK_FALSE(again.find("conv c"));
  CHECK_FALSE(PlanCache(place.file(), "H200, cuDNN 10", kBuild).find("conv a"));
  CHECK_FALSE(PlanCache(place.file(), "H200, cuDNN 9", "another").find("conv a"));
}

TEST_CASE("machines that share a home keep their plans in one file", "[plans]") {
  const CacheFolder place;
  keep(place, "H200", "conv a", "engine 1");
  keep(place, "A100", "conv a", "engine 2");
  CHECK(PlanCache(place.file(), "H200", kBuild).find("conv a") == "engine 1");
  CHECK(PlanCache(place.file(), "A100", kBuild).find("conv a") == "engine 2");
}

TEST_CASE("what another process kept meanwhile is not lost", "[plans]") {
  const CacheFolder place;
  PlanCache slow(place.file(), "machine", kBuild);
  keep(place, "machine", "conv a", "engine 1");
  slow.keep("conv b", "engine 2");
  REQUIRE(slow.save());
  const PlanCache again(place.file(), "machine", kBuild);
  CHECK(again.find("conv a") == "engine 1");
  CHECK(again.find("conv b") == "engine 2");
}

TEST_CASE("a corrupt file is ignored and replaced", "[plans]") {
  const CacheFolder place;
  keep(place, "machine", "conv a", "engine 1");
  const std::string whole = place.read();
  std::string changed = whole;
  changed.replace(changed.find("engine 1"), 8, "engine 7");
  for (const std::string& text :
       {std::string(), whole.substr(0, whole.size() / 2), changed, std::string("[1, 2]"),
        std::string("{\"machine\": 3}"), std::string("{\"machine\": {\"plans\": 3}}")}) {
    CAPTURE(text);
    place.write(text);
    CHECK_FALSE(PlanCache(place.file(), "machine", kBuild).find("conv a"));
    keep(place, "machine", "conv a", "engine 1");
    CHECK(PlanCache(place.file(), "machine", kBuild).find("conv a") == "engine 1");
  }
}

TEST_CASE("a cache that cannot be written is no error, and none is kept without a file",
          "[plans]") {
  PlanCache nowhere("/proc/nowhere/plans.json", "machine", kBuild);
  nowhere.keep("conv a", "engine 1");
  CHECK(nowhere.find("conv a") == "engine 1");
  CHECK_FALSE(nowhere.save());
  PlanCache none("", "machine", kBuild);
  none.keep("conv a", "engine 1");
  CHECK(none.save());
}

TEST_CASE("a fused kernel is preferred unless it is clearly slower", "[plan_cache]") {
  const std::vector<double> unfused{1.00, 1.01, 0.99, 1.02, 0.98};
  const auto prefers = [&](std::vector<double> fused) { return prefers_fused(fused, unfused); };
  CHECK(prefers({0.90, 0.91, 0.89, 0.92, 0.88}));
  CHECK(prefers({1.03, 1.02, 1.04, 1.03, 1.05}));
  CHECK_FALSE(prefers({1.06, 1.05, 1.07, 1.06, 1.04}));
  // one lucky or unlucky run decides nothing
  CHECK_FALSE(prefers({1.06, 0.50, 1.07, 1.06, 1.08}));
  CHECK(prefers({1.00, 1.01, 9.99, 1.02, 0.98}));
}

}  // namespace shakedown

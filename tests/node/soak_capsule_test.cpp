// Capsules: what is written is read again, and each key that is wrong is named.
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/error.hpp"
#include "launch/node/soak/capsule.hpp"
#include "tests/catch.hpp"

namespace shakedown::node {
namespace {

Capsule example() {
  Capsule capsule;
  capsule.seed = 0xFEDCBA9876543210U;
  capsule.operands = Operands::integers;
  capsule.spec = {ProductType::fp8, 256, 384, 512};
  capsule.algorithm = "cublasLt 13.1 7";
  capsule.tile = 5;
  capsule.expected_hash = 1;
  capsule.found_hash = ~std::uint64_t{0};
  capsule.element = 70000;
  capsule.expected_bits = 0x3C00;
  capsule.found_bits = 0x3C01;
  capsule.circumstances = {{"temperature_c", 71.0}, {"serial", "1650"}};
  return capsule;
}

std::string refusal(const std::string& key, const Json& value) {
  Json json = to_json(example());
  if (value.is_null())
    json.erase(key);
  else
    json[key] = value;
  try {
    capsule_of(json, "c.json");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a capsule comes back as it was written", "[soak]") {
  const std::string folder =
      std::filesystem::temp_directory_path() / ("capsule-test-" + std::to_string(std::rand()));
  const std::string path = write_capsule(folder, "a", example());
  CHECK_THAT(path, EndsWith("/capsule-a.json"));
  CHECK(to_json(read_capsule(path)) == to_json(example()));
  std::filesystem::remove_all(folder);
  Capsule unknown = example();
  unknown.expected_hash = unknown.found_hash = unknown.element = unknown.expected_bits =
      unknown.found_bits = std::nullopt;
  CHECK_FALSE(capsule_of(to_json(unknown), "").expected_hash);
}

TEST_CASE("a malformed capsule is refused by the name of the key", "[soak]") {
  for (const char* key :
       {"format", "seed", "operands", "type", "m", "n", "k", "algorithm", "tile"}) {
    CAPTURE(key);
    CHECK_THAT(refusal(key, nullptr),
               ContainsSubstring(std::string("c.json: ") + key + ": must be"));
    CHECK_THAT(refusal(key, -3), ContainsSubstring(std::string("c.json: ") + key + ": must be"));
  }
  CHECK_THAT(refusal("format", "shakedown product capsule 1"),
             ContainsSubstring("format: must be \"shakedown product capsule 2\"; replay another"));
  CHECK_THAT(refusal("m", 200), ContainsSubstring("m: must be a multiple of 128"));
  CHECK_THAT(refusal("tile", 6), ContainsSubstring("tile: must be a whole number from 0 to 5"));
  CHECK_THAT(refusal("seed", "0x12"), ContainsSubstring("seed: must be 0x and 16"));
  CHECK_THAT(refusal("type", "fp5"), ContainsSubstring("type: must be fp64"));
  CHECK_THAT(refusal("found_bits", 7), ContainsSubstring("found_bits: must be"));
  CHECK_THAT(refusal("circumstances", 7), ContainsSubstring("circumstances: must be"));
  CHECK_THROWS_AS(capsule_of(Json::array(), "c.json"), UsageError);
  CHECK_THROWS_AS(read_capsule("/nonexistent.json"), UsageError);
}

}  // namespace shakedown::node

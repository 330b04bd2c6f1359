#include "common/judge/limits.hpp"

#include <cmath>

#include "tests/catch.hpp"

namespace shakedown::judge {
namespace {

using Catch::Matchers::ContainsSubstring;

const std::string kBefore = R"({"sources": {"doc": "a document"}, "architectures": [
  {"architecture": "sm_90", "flop_per_cycle_sm": {"fp16": 4096}, "source": ["doc"], "date": "2026-11-25"}],
  "boards": [)";

Boards boards_of(const std::string& rows) { return Boards(kBefore + rows + "]}", "b.json"); }

std::string row_of(const std::string& keys) {
  return R"({"architecture": "sm_90", "source": ["doc"], "date": "2026-11-25", )" + keys + "}";
}

}  // namespace

TEST_CASE("a board is found by subsystem, device, name, then architecture", "[judge]") {
  const Boards boards =
      boards_of(row_of(R"("names": ["One"], "pci_device_ids": ["10de:1"], "sms": 1)") + "," +
                row_of(R"("names": ["Two"], "pci_device_ids": ["10de:1:10de:2"], "sms": 2)"));
  CHECK(boards.find("10de:1:10de:2", "One")->name == "Two");
  CHECK(boards.find("10de:1:10de:3", "Two")->name == "One");
  CHECK(boards.find("10de:1", "Two")->name == "One");
  CHECK(boards.find("10de:12", "Two")->name == "Two");  // another device
  CHECK(boards.find("", "Two", "9.0")->known);
  const auto unknown = boards.find("10de:9", "Three", "9.0");
  REQUIRE(unknown);
  CHECK_FALSE(unknown->known);
  CHECK(unknown->name == "sm_90");
  CHECK(unknown->flop_per_cycle_sm.at("fp16") == 4096);
  CHECK_FALSE(boards.find("10de:9", "Three", "9.9"));
  CHECK_FALSE(boards.find("", "", ""));
}

TEST_CASE("an error in the table of boards names file, row and key", "[judge]") {
  const auto refused = [](const std::string& keys, const std::string& with) {
    CHECK_THROWS_WITH(boards_of(row_of(keys)),
                      ContainsSubstring("b.json: board 1") && ContainsSubstring(with));
  };
  refused(R"("names": ["A"], "smms": 1)", "unknown key smms");
  refused(R"("names": ["A"], "sms": "1")", "sms: a number");
  refused(R"("pci_device_ids": ["10de:1"])", "name is missing");
  CHECK_THROWS_WITH(boards_of(R"({"names": ["A"], "architecture": "sm_90", "date": "2026"})"),
                    ContainsSubstring("source is missing"));
  CHECK_THROWS_WITH(
      boards_of(R"({"names": ["A"], "architecture": "sm_90", "source": ["x"], "date": "2026"})"),
      ContainsSubstring("source: x is not in sources"));
  CHECK_THROWS_WITH(boards_of(row_of(R"("names": ["A"], "pci_device_ids": ["1"])") + "," +
                              row_of(R"("names": ["B"], "pci_device_ids": ["1"])")),
                    ContainsSubstring("1 is A's as well"));
}

TEST_CASE("the boards that are known: links, memory and rates of the data sheets", "[judge]") {
  const Boards& boards = Boards::embedded();
  const auto links = [&](const char* id) {
    return boards.find(std::string("10de:") + id, "")->nvlinks;
  };
  for (const char* id : {"3182", "2941", "31c2", "2329", "232c", "2330", "2335", "2901"})
    CHECK(links(id) == 18);  // B300, GB200, GB300, H20, H20-3e, H100, H200, B200
  CHECK(links("20b2") == 12);
  CHECK(links("20f3") == 8);   // A800
  CHECK_FALSE(links("2321"));  // H100 NVL: by bridge
  CHECK_FALSE(links("2342"));  // GH200: by system
  const auto h200 = *boards.find("10de:2335:10de:18be", "");
  CHECK_THAT(h200.memory_gbs(), Catch::Matchers::WithinRel(4814.0, 1e-3));
  CHECK_THAT(h200.pcie_gbs, Catch::Matchers::WithinRel(63.0, 1e-2));
  CHECK(boards.find("", "NVIDIA GB200")->pcie_gbs == 450);  // C2C
  const auto rate = [&](const char* model, const char* type) {
    return boards.find("", model)->flop_per_cycle_sm.at(type);
  };
  CHECK(rate("NVIDIA H20", "fp16") == 1024);  // cut on purpose
  CHECK(rate("NVIDIA GeForce RTX 4090", "bf16") == 512);
  CHECK(rate("NVIDIA L40S", "bf16") == 1024);
  CHECK(rate("NVIDIA H100 80GB HBM3", "fp64") == 256);  // by tensor cores
  CHECK_FALSE(boards.find("", "NVIDIA B300 SXM6 AC")->flop_per_cycle_sm.contains("int8"));
  CHECK(boards.find("", "another", "9.0")->flop_per_cycle_sm.at("fp16") == 4096);
  CHECK(std::isnan(boards.find("", "another", "9.0")->memory_gbs()));
}

}  // namespace shakedown::judge

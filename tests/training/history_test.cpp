// training_history.json and .csv: what they hold, and how a resumed run continues them.
#include "training/programs/history.hpp"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/catch.hpp"

namespace shakedown::training {
namespace {

struct HistoryFolder {
  ~HistoryFolder() { std::filesystem::remove_all(path); }
  std::filesystem::path path = "history_test_folder";
};

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

EpochResult epoch(int number, double loss) {
  EpochResult result;
  result.epoch = number;
  result.trained = TrainedEpoch{.loss = loss, .top1 = 0.25, .peak_memory_bytes = {5, 7}};
  result.seconds = 2;
  return result;
}

}  // namespace

TEST_CASE("the history is complete after each epoch, and a resumed run continues it", "[history]") {
  const HistoryFolder folder;
  const std::filesystem::path path = folder.path / "new";
  const auto losses = [&] {
    return Json::parse(text_of(path / "training_history.json")).at("train_loss").dump();
  };
  {
    History history(path);
    history.add(epoch(1, 4));
    CHECK(losses() == "[4.0]");
    history.add(epoch(2, 3));
    history.add(epoch(3, NAN));
    CHECK(losses() == "[4.0,3.0,null]");
  }
  {
    History resumed(path);  // from a checkpoint after epoch 1
    resumed.continue_at(2);
    CHECK(losses() == "[4.0]");
    CHECK_THAT(text_of(path / "training_history.csv"), !ContainsSubstring("\n2,"));
    resumed.add(epoch(2, 2.5));
    CHECK(losses() == "[4.0,2.5]");
  }
  const Json lists = Json::parse(text_of(path / "training_history.json"));
  CHECK(lists.at("train_acc") == Json{25.0, 25.0});
  CHECK(lists.at("peak_memory_bytes") == Json{7.0, 7.0});
  CHECK(lists.at("val_loss") == Json{nullptr, nullptr});
  CHECK_THAT(text_of(path / "training_history.csv"),
             ContainsSubstring("\n1,4.0,25.0,,,,0.0,0.0,0.0,2.0,7.0\n2,2.5,"));
  History(path).continue_at(3);  // from the last checkpoint, and stopped in its first epoch
  CHECK(losses() == "[4.0,2.5]");
  History anew(path);
  anew.continue_at(1);
  CHECK(losses() == "[]");
  anew.add(epoch(1, 1));
  CHECK(losses() == "[1.0]");

  std::ofstream(path / "training_history.json") << R"({"loss": [1]})";
  CHECK_THROWS_WITH(History(path), ContainsSubstring("--history " + path.string()) &&
                                       ContainsSubstring("name another folder"));
  CHECK_NOTHROW(History("").add(epoch(1, 1)));
}

}  // namespace shakedown::training

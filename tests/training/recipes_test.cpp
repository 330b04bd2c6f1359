// A recipe's options are defaults.
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "tests/training/parsed_options.hpp"

namespace shakedown::training {

TEST_CASE("the command line replaces a recipe's options, and what they make idle", "[options]") {
  const std::string recipe = "recipe-test-" + std::to_string(getpid());
  std::ofstream(recipe) << "# For people: --lr 7\n--model resnet18\n--epochs 90\n\n--lr 0.5\n"
                           "--schedule step\n--lr-step-epochs 3\n--batch-size 32\n"
                           "--train-dir d\n";
  const char* const name = recipe.c_str();
  const Parsed p({"--lr", "0.25", "--recipe", name});
  CHECK(p.values.model.model == "resnet18");
  CHECK(p.values.epochs == 90);
  CHECK(p.values.optimizer.learning_rate == 0.25);
  CHECK(p.values.schedule.lr_step_epochs == 3);
  CHECK(p.values.batch_size == 32);
  const Parsed contradicted({"--recipe", name, "--global-batch", "64", "--schedule", "cosine"});
  REQUIRE_FALSE(contradicted.ending);
  CHECK(contradicted.values.global_batch == 64);
  CHECK(contradicted.values.batch_size == TrainOptions().batch_size);
  CHECK(contradicted.values.schedule.schedule == "cosine");
  const Parsed throughput({"--recipe", name, "--iterations", "5"});
  REQUIRE_FALSE(throughput.ending);
  CHECK(throughput.values.epochs == TrainOptions().epochs);
  std::ofstream(recipe) << "--lr fast\n";
  CHECK(complaint({"--recipe", name}) ==
        "--recipe " + recipe + ": --learning-rate fast: must be a number");
  for (const auto& [line, said] : {std::pair{"--bogus 1", "unknown option --bogus; see --help"},
                                   std::pair{"epochs 1", "unexpected argument epochs"}}) {
    std::ofstream(recipe) << line << "\n";
    CHECK_THAT(complaint({"--recipe", name}),
               ContainsSubstring("--recipe " + recipe + ": " + said));
  }
  std::ofstream(recipe).close();
  CHECK(complaint({"--recipe", name}) == "--recipe " + recipe + ": is empty");
  CHECK(complaint({"--recipe", "/tmp"}) == "--recipe /tmp: is a folder");
  std::remove(name);
  CHECK_THAT(complaint({"--recipe", name}),
             ContainsSubstring(recipe + ": must be a file, or one of "));
}

TEST_CASE("an error about a recipe's value names the recipe", "[options]") {
  const std::string recipe = "recipe-test-" + std::to_string(getpid());
  std::ofstream(recipe) << "--epochs 90\n--lr-warmup-epochs 5\n--lr 0.5\n--train-dir d\n";
  const char* const name = recipe.c_str();
  const auto sets = [&](const std::string& values) {
    return "; --recipe " + recipe + " sets " + values +
           ": an option on the command line replaces a value of it";
  };
  CHECK(complaint({"--recipe", name, "--epochs", "3"}) ==
        "--lr-warmup 5: must be at most --epochs 3" + sets("--lr-warmup 5"));
  CHECK(complaint({"--recipe", name, "--lr-warmup-epochs", "91"}) ==
        "--lr-warmup 91: must be at most --epochs 90" + sets("--epochs 90"));
  CHECK(complaint({"--recipe", name, "--epochs", "3", "--lr-warmup-epochs", "3", "--schedule",
                   "cosine", "--lr-min", "1"}) ==
        "--lr-min 1: must be at most --learning-rate 0.5" + sets("--learning-rate 0.5"));
  CHECK(complaint({"--recipe", name, "--epochs", "3", "--lr-warmup-epochs", "4"}) ==
        "--lr-warmup 4: must be at most --epochs 3");
  const Parsed later({"--recipe", name});
  CHECK(later.set.explained("--epochs 90: more than there are") ==
        "--epochs 90: more than there are" + sets("--epochs 90"));
  CHECK(later.set.explained("--epochs-of-another 90") == "--epochs-of-another 90");
  std::remove(name);
}

}  // namespace shakedown::training

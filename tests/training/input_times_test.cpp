// What limits the input, in words.
#include "training/data/loader.hpp"

#include "tests/catch.hpp"

using namespace shakedown;
using namespace shakedown::training;

TEST_CASE("the advice names the stage that limits, and a cure", "[loader]") {
  InputTimes times;
  times.images = 1000;
  times.stages = {0.01, 0.09, 1.2, 0.3};
  times.copy_s = 0.02;
  times.stall_s = 0.3;
  InputSetup setup{4, 16, "cpu", 0};
  CHECK(input_advice(times, setup, 20, 1).empty());  // 1.5 % of the time
  CHECK_THAT(input_advice(times, setup, 1, 1),
             ContainsSubstring("busy only 40 % of it") && ContainsSubstring("first batches"));
  const std::string decoding = input_advice(times, setup, 0.5, 1);
  CHECK_THAT(decoding, ContainsSubstring("waited for data 60.0 % of the time") &&
                           ContainsSubstring("decoding limits it (75 %") &&
                           ContainsSubstring("2500 images/s") &&
                           ContainsSubstring("more --workers (this rank may use 16 cores)") &&
                           ContainsSubstring("--decoder nvjpeg"));
  setup.workers = 16;
  CHECK_THAT(input_advice(times, setup, 0.05, 2),
             ContainsSubstring("more cores than this rank's 16") &&
                 ContainsSubstring("20000 images/s") &&
                 !ContainsSubstring("nvjpeg"));  // slower than 16 workers
  times.stages.open_s = 2;
  const auto cure_of = [&](bool packed, bool cached) {
    setup.packed = packed;
    setup.cached = cached;
    const std::string advice = input_advice(times, setup, 0.25, 1);
    CHECK_THAT(advice, ContainsSubstring("opening files limits"));
    return advice.substr(advice.find("at most): ") + 10);
  };
  CHECK(cure_of(false, false) ==
        "--pack FILE, which --train-dir FILE --cache reads in windows of 8 MiB");
  CHECK(cure_of(true, false) == "--cache reads the packed file in windows of 8 MiB");
  CHECK(cure_of(true, true) == "a faster file system, or memory for the whole packed file");
  times.device_decode_s = 0.5;
  setup.decoder = "nvjpeg";
  CHECK_THAT(input_advice(times, setup, 0.5, 1),
             ContainsSubstring("decoding by nvjpeg limits it to 1923 images/s") &&
                 ContainsSubstring("--decoder cpu leaves it"));
  times.copy_s = 0.6;
  CHECK_THAT(input_advice(times, setup, 0.5, 1), ContainsSubstring("copies to the device limit"));
  CHECK((times - times).stages.decode_s == 0);
  CHECK((times + times).stages.decode_s == 2.4);
}

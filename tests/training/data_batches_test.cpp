// From the loader to the device: the feeder, its two buffers, stalls.
#include <unistd.h>

#include <fstream>

#include "common/error.hpp"
#include "tests/training/batches_rig.hpp"

namespace shakedown::training {
namespace {

long resident_bytes() {
  long size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace

TEST_CASE("batches come to the device as the loader made them", "[loader]") {
  if (!test::has(BackendKind::cpu)) SKIP("no cpu backend");
  const Images images(30);
  const LoaderSettings settings = cropping_settings();
  BatchesRig rig(images.source, settings);
  CHECK(rig.device.allocated_bytes() == kLoadedBatchesHeld * batch_bytes(shape_of(settings)));
  CHECK_FALSE(rig.batches->next());
  const auto expected = by_the_loader(images.source, settings, 1);
  REQUIRE(expected.size() == 8);
  CHECK(rig.epoch(1) == expected);
  CHECK_FALSE(rig.batches->next());
  CHECK(rig.epoch(1, 6) == std::vector<Kept>(expected.begin() + 6, expected.end()));

  const InputTimes before = rig.batches->times();
  rig.batches->start_epoch(0);
  const auto first = rig.batches->next();  // and the rest of this epoch is abandoned
  REQUIRE(first);
  CHECK(rig.epoch(1) == expected);
  const InputTimes times = rig.batches->times() - before;
  CHECK(times.images >= 30);
  CHECK(times.decode_s > 0);
  CHECK(times.open_s > 0);
  CHECK(times.copy_s >= 0.001 * static_cast<double>(expected.size() - 2));
  CHECK(times.device_images == 0);
  rig.batches->start_epoch(2);  // and the source goes with the epoch just begun
}

TEST_CASE("a buffer is filled only after the compute stream has read it", "[loader]") {
  if (!test::has(BackendKind::cpu)) SKIP("no cpu backend");
  const Images images(30);
  const LoaderSettings settings = cropping_settings();
  const auto expected = by_the_loader(images.source, settings, 0);
  BatchesRig rig(images.source, settings);
  rig.batches->start_epoch(0);
  const auto first = rig.batches->next();
  rig.device.lags = true;
  const auto second = rig.batches->next();  // the first may be filled again when it has been read
  REQUIRE((first && second));
  CHECK(first->images != second->images);
  wait_until([&] { return rig.device.asked > 3; });
  CHECK(rig.keep(*first) == expected[0]);
  CHECK(rig.keep(*second) == expected[1]);
  rig.device.lags = false;
  const auto third = rig.batches->next();
  REQUIRE(third);
  CHECK(third->images == first->images);
  CHECK(rig.keep(*third) == expected[2]);
}

TEST_CASE("a stall is the compute stream's wait for a batch, not its host's", "[loader]") {
  if (!test::has(BackendKind::cpu)) SKIP("no cpu backend");
  const Images images(30);
  BatchesRig rig(images.source, cropping_settings());
  const auto epoch_stall_ms = [&](double step_ms) {
    const double before = rig.batches->times().stall_s;
    rig.batches->start_epoch(0);
    while (rig.batches->next()) rig.device.compute->now_ms += step_ms;
    return 1e3 * (rig.batches->times().stall_s - before);
  };
  // Each of the 8 batches takes 2 ms on the copy stream: pixels, labels.
  CHECK(epoch_stall_ms(0.5) == Approx(2 + 7 * 1.5));
  CHECK(epoch_stall_ms(5) == Approx(2 - 0.5));  // for the first alone: the host waits for each
  rig.device.compute->now_ms += 1000;           // it has other work, and the host runs ahead
  CHECK(epoch_stall_ms(5) == 0);
  rig.batches->start_epoch(0);
  CHECK(rig.batches->next());
  const double before = rig.batches->times().stall_s;
  rig.device.compute->now_ms = 0;
  CHECK(rig.batches->next());
  rig.device.lags = true;  // it has not come so far
  CHECK(rig.batches->times().stall_s == before);
  rig.device.lags = false;
  CHECK(rig.batches->times().stall_s > before);
  rig.device.lags = true;  // a window begins there
  rig.batches->drop_pending_stall();
  rig.device.lags = false;
  CHECK(rig.batches->times().stall_s == before);
}

TEST_CASE("a device that never finishes ends the wait for its buffers", "[loader]") {
  if (!test::has(BackendKind::cpu)) SKIP("no cpu backend");
  const Images images(30);
  test::session().set_timeout(0.1);
  BatchesRig rig(images.source, cropping_settings());
  test::session().set_timeout(60);
  rig.batches->start_epoch(0);
  CHECK(rig.batches->next());
  rig.device.lags = true;
  CHECK(rig.batches->next());
  CHECK_THROWS_AS(rig.batches->next(), TimeoutError);
  // the feeder still waits: the source ends all the same
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("a thousand batches leave no memory behind", "[loader]") {
  if (!test::has(BackendKind::cpu)) SKIP("no cpu backend");
  const Images images(64);
  const LoaderSettings settings = cropping_settings();
  FakeDecoder decoder;
  decoder.some = true;
  BatchesRig rig(images.source, settings, &decoder);
  const auto take = [&](int batches) {
    for (int epoch = 0, taken = 0; taken < batches; ++epoch) {
      rig.batches->start_epoch(epoch);
      while (rig.batches->next()) ++taken;
    }
  };
  take(200);
  const long before = resident_bytes();
  take(1000);
  CHECK(resident_bytes() - before < 1 << 20);  // 16 KB of pixels in each of 4,000 images
}
#endif

}  // namespace shakedown::training

// The loader.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>

#include "common/error.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/fake_device.hpp"
#include "tests/support/image_files.hpp"
#include "training/data/loader.hpp"

using namespace shakedown;
using namespace shakedown::training;

namespace {

using test::Bytes;
using test::KeptBatch;
using test::kSide;
using test::rest_of_epoch;
using test::TempFolder;

struct HostDevice final : test::FakeDevice {
  int pinned = 0;

 protected:
  void* allocate(std::size_t bytes, Place place) override {
    pinned += place == Place::host;
    return FakeDevice::allocate(bytes, place);
  }
};

/// Images as they are: their first byte is the number of the sample.
LoaderSettings plain_settings() {
  LoaderSettings settings = test::loader_settings();
  settings.transform = {kSide, Augmentation::none, true, false};
  return settings;
}

/// Images in order, and what loads them.
struct Rig {
  explicit Rig(int count, int threads = 4)
      : images(test::numbered_images(folder, count)), workers(threads) {}

  std::vector<KeptBatch> epoch(int number, long first_batch = 0, int threads = 4) const {
    return test::epoch_of(images, settings, threads, number, first_batch);
  }
  Loader& loader() {
    if (!made) made = std::make_unique<Loader>(images, settings, device, workers);
    return *made;
  }

  TempFolder folder;
  const FolderSource images;
  LoaderSettings settings = plain_settings();
  HostDevice device;
  Workers workers;
  std::unique_ptr<Loader> made;
};

std::vector<int> numbers_in(const std::vector<KeptBatch>& batches) {
  std::vector<int> numbers;
  for (const KeptBatch& batch : batches)
    for (std::size_t row = 0; row < batch.labels.size(); ++row)
      if (batch.labels[row] >= 0) numbers.push_back(batch.images[row * kSide * kSide * 3]);
  return numbers;
}

std::vector<int> first_numbers(int count) {
  std::vector<int> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

}  // namespace

TEST_CASE("batches do not depend on threads or prefetch", "[loader]") {
  Rig rig(61);
  rig.settings.transform.augmentation = Augmentation::resized_crop;
  rig.settings.prefetch = 1;
  const std::vector<KeptBatch> expected = rig.epoch(3, 0, 1);
  CHECK(expected.size() == 16);
  rig.settings.prefetch = 5;
  for (int threads : {1, 3, 8}) CHECK(rig.epoch(3, 0, threads) == expected);
  CHECK(rig.epoch(3, 5) == std::vector<KeptBatch>(expected.begin() + 5, expected.end()));
  CHECK(rig.epoch(3, 16).empty());
}

TEST_CASE("the ranks share an epoch without loss; the last batches are padded", "[loader]") {
  Rig rig(25);
  LoaderSettings& settings = rig.settings;
  settings.world_size = GENERATE(1, 2, 3);
  std::vector<int> seen;
  for (settings.rank = 0; settings.rank < settings.world_size; ++settings.rank) {
    const std::vector<KeptBatch> batches = rig.epoch(0);
    CHECK(batches.size() == (settings.world_size == 1 ? 7 : settings.world_size == 2 ? 4 : 3));
    const std::vector<int> numbers = numbers_in(batches);
    seen.insert(seen.end(), numbers.begin(), numbers.end());
    for (const KeptBatch& batch : batches)
      for (std::size_t row = 0; row < 4; ++row) {
        const auto image = batch.images.begin() + row * kSide * kSide * 3;
        if (batch.labels[row] >= 0)
          CHECK(batch.labels[row] == (*image < 12 ? 0 : 1));
        else
          CHECK(std::all_of(image, image + kSide * kSide * 3, [](int v) { return v == 0; }));
      }
  }
  std::sort(seen.begin(), seen.end());
  CHECK(seen == first_numbers(25));
}

TEST_CASE("a shard has the same batches as a rank of its own", "[loader]") {
  Rig rig(61);
  LoaderSettings& settings = rig.settings;
  settings.transform.augmentation = Augmentation::resized_crop;
  settings.drop_last = true;
  settings.world_size = 4;
  std::vector<std::vector<KeptBatch>> shards;
  for (settings.rank = 0; settings.rank < 4; ++settings.rank) shards.push_back(rig.epoch(2));
  REQUIRE(shards.front().size() == 3);

  settings.shards = GENERATE(2, 4);
  settings.world_size = 4 / settings.shards;
  const auto per_rank = static_cast<std::size_t>(settings.shards);
  for (settings.rank = 0; settings.rank < settings.world_size; ++settings.rank) {
    const std::vector<KeptBatch> batches = rig.epoch(2);
    REQUIRE(batches.size() == 3 * per_rank);
    for (std::size_t i = 0; i < batches.size(); ++i)
      CHECK(batches[i] == shards[settings.rank * per_rank + i % per_rank][i / per_rank]);
    CHECK(rig.epoch(2, settings.shards).front() == batches[per_rank]);
  }
}

TEST_CASE("settings that cannot work are named", "[loader]") {
  Rig rig(10);
  rig.settings.world_size = 3;
  rig.settings.drop_last = true;
  CHECK_ERROR(UsageError, rig.loader(),
              ContainsSubstring("--batch-size 4") && ContainsSubstring("10 images") &&
                  ContainsSubstring(rig.folder.path));
  CHECK_THROWS_WITH(Workers(0), ContainsSubstring("--workers 0"));
}

TEST_CASE("epochs and seeds differ, and each repeats", "[loader]") {
  Rig rig(20);
  CHECK(rig.loader().next() == nullptr);
  std::vector<std::vector<KeptBatch>> epochs;
  for (int epoch : {0, 1, 0}) {
    rig.loader().start_epoch(epoch);
    epochs.push_back(rest_of_epoch(rig.loader()));
    CHECK(rig.loader().next() == nullptr);
  }
  CHECK(numbers_in(epochs[0]) != numbers_in(epochs[1]));
  CHECK(epochs[0] == epochs[2]);
  rig.settings.seed = 1;
  CHECK(numbers_in(rig.epoch(0)) != numbers_in(epochs[0]));
  rig.settings.shuffle = false;
  CHECK(numbers_in(rig.epoch(0)) == first_numbers(20));
  rig.settings.transform.augmentation = Augmentation::resized_crop;
  CHECK_FALSE(rig.epoch(0) == rig.epoch(1));
}

TEST_CASE("an epoch may be abandoned while batches are held", "[loader]") {
  Rig rig(60);
  rig.settings.prefetch = 1;
  Loader& loader = rig.loader();
  CHECK(rig.device.pinned == 2 * 3);  // images and labels of prefetch + 2 batches
  loader.start_epoch(0);
  const Batch* held = loader.next();
  const Bytes before(held->images.begin(), held->images.end());
  loader.start_epoch(1);
  CHECK(rest_of_epoch(loader) == rig.epoch(1));
  CHECK(Bytes(held->images.begin(), held->images.end()) == before);
  loader.release(held);
  loader.start_epoch(2);
  loader.release(loader.next());
  const auto images = loader.times().images;
  loader.abandon();
  CHECK(loader.next() == nullptr);
  loader.start_epoch(3);
  CHECK(rest_of_epoch(loader).size() == 15);
  CHECK(loader.times().images >= images + 60);
  loader.start_epoch(4);  // and the loader goes with the epoch just begun
}

TEST_CASE("no more memory is used than an epoch has batches", "[loader]") {
  Rig rig(60);
  rig.settings.prefetch = 1000;
  CHECK(rig.loader().batches_per_epoch() == batches_per_epoch(rig.images, rig.settings));
  CHECK(rig.device.pinned == 2 * (rig.loader().batches_per_epoch() + 2));
}

TEST_CASE("a loader of many threads ends with little work", "[loader]") {
  auto rig = std::make_unique<Rig>(60, 600);
  rig->loader().start_epoch(0);
  rig->loader().release(rig->loader().next());
  const std::clock_t before = std::clock();  // of this process, whatever else the machine computes
  rig.reset();
  CHECK(std::clock() - before < 2 * CLOCKS_PER_SEC);  // 5 s when each thread wakes all others
}

TEST_CASE("a corrupt file surfaces in next(), after the batches before it", "[loader]") {
  Rig rig(30, 8);
  rig.settings.shuffle = false;
  for (const std::size_t bad : {9, 11}) rig.folder.write(rig.images.path(bad), "not an image");
  Loader& loader = rig.loader();
  for (int epoch : {0, 1}) {
    loader.start_epoch(epoch);
    for (int batch = 0; batch < 2; ++batch) loader.release(loader.next());
    CHECK_ERROR(UsageError, loader.next(), ContainsSubstring(rig.images.name(9)));
  }
  for (const int mended : {9, 11}) rig.folder.write(rig.images.path(mended), test::png_of(mended));
  loader.start_epoch(2);
  CHECK(numbers_in(rest_of_epoch(loader)) == first_numbers(30));
}

TEST_CASE("loaders share the workers", "[loader]") {
  Rig rig(60, 3);
  Loader& training = rig.loader();
  {
    Loader validation(rig.images, rig.settings, rig.device, rig.workers);
    training.start_epoch(1);
    validation.start_epoch(0);
    CHECK(rest_of_epoch(validation) == rig.epoch(0));
    validation.start_epoch(2);
  }
  CHECK(rest_of_epoch(training) == rig.epoch(1));
}

TEST_CASE("with the same global batch updates have the same samples on any ranks", "[loader]") {
  constexpr int kImages = 63;
  constexpr int kGlobalBatch = 12;
  Rig rig(kImages);
  LoaderSettings& settings = rig.settings;
  settings.drop_last = true;
  using Updates = std::vector<std::set<int>>;  // samples over all ranks and micro-batches
  Updates expected;
  for (int ranks : {1, 2, 3, 4, 6})
    for (int accumulate : {1, 2}) {
      CAPTURE(ranks, accumulate);
      settings.world_size = ranks;
      settings.batch_size = kGlobalBatch / ranks / accumulate;
      if (settings.batch_size * ranks * accumulate != kGlobalBatch) continue;
      Updates updates;
      for (settings.rank = 0; settings.rank < ranks; ++settings.rank) {
        const std::vector<KeptBatch> batches = rig.epoch(2);
        updates.resize(batches.size() / accumulate);
        for (std::size_t i = 0; i / accumulate < updates.size(); ++i)
          for (const int number : numbers_in({batches[i]}))
            CHECK(updates[i / accumulate].insert(number).second);
      }
      if (expected.empty()) expected = updates;
      CHECK(updates == expected);
    }
  CHECK(expected.size() == kImages / kGlobalBatch);
  std::set<int> seen;
  for (const auto& update : expected) seen.insert(update.begin(), update.end());
  CHECK(seen.size() == expected.size() * kGlobalBatch);
}

// The loader.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>

#include "common/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/image_files.hpp"
#include "training/data/loader.hpp"

using namespace shakedown;
using namespace shakedown::training;

namespace {

using test::kSide;
using test::TempFolder;

/// `count` images in classes a (the first half) and b, sample i showing i.
FolderSource images_in_order(const TempFolder& folder, int count) {
  for (int i = 0; i < count; ++i)
    folder.write((i < count / 2 ? "a/" : "b/") + std::to_string(1000 + i) + ".png",
                 test::png_of(i));
  return FolderSource(scan_image_folder(folder.path));
}

class HostDevice : public Device {
 public:
  BackendKind kind() const override { return BackendKind::cpu; }
  DeviceIdentity identity() const override { return {}; }
  MemoryInfo memory() const override { return {}; }
  const Kernels& kernels() const override { throw InternalError("no kernels"); }
  std::unique_ptr<Stream> make_stream(StreamPriority) override { return nullptr; }
  std::unique_ptr<Event> make_event() override { return nullptr; }
  void copy(void* to, const void* from, std::size_t bytes, Stream&) override {
    std::memcpy(to, from, bytes);
  }
  void zero(void* to, std::size_t bytes, Stream&) override { std::memset(to, 0, bytes); }

  int pinned = 0;

 protected:
  void* allocate(std::size_t bytes, Place place) override {
    pinned += place == Place::host;
    return std::memset(::operator new(bytes), 0xEE, bytes);  // nothing starts as zero by chance
  }
  void release(void* memory, Place) noexcept override { ::operator delete(memory); }
};

/// A batch, kept beyond its release.
struct KeptBatch {
  explicit KeptBatch(const Batch& batch)
      : images(batch.images.begin(), batch.images.end()),
        labels(batch.labels.begin(), batch.labels.end()),
        count(batch.count) {}
  bool operator==(const KeptBatch&) const = default;

  std::vector<std::uint8_t> images;
  std::vector<std::int32_t> labels;
  int count;
};

/// Images as they are: their first byte is the number of the sample.
LoaderSettings plain_settings() {
  LoaderSettings settings;
  settings.batch_size = 4;
  settings.transform = {kSide, Augmentation::none, true, false};
  settings.drop_last = false;
  return settings;
}

std::vector<KeptBatch> rest_of_epoch(Loader& loader) {
  std::vector<KeptBatch> batches;
  while (const Batch* batch = loader.next()) {
    batches.emplace_back(*batch);
    loader.release(batch);
  }
  return batches;
}

std::vector<KeptBatch> batches_of_epoch(const ImageSource& source, const LoaderSettings& settings,
                                        int epoch, long first_batch = 0, int threads = 4) {
  HostDevice device;
  Workers workers(threads);
  Loader loader(source, settings, device, workers);
  loader.start_epoch(epoch, first_batch);
  return rest_of_epoch(loader);
}

std::vector<int> numbers_in(const std::vector<KeptBatch>& batches) {
  std::vector<int> numbers;
  for (const KeptBatch& batch : batches)
    for (std::size_t row = 0; row < static_cast<std::size_t>(batch.count); ++row)
      numbers.push_back(batch.images[row * kSide * kSide * 3]);
  return numbers;
}

std::vector<int> first_numbers(int count) {
  std::vector<int> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

}  // namespace

TEST_CASE("batches do not depend on threads or prefetch", "[loader]") {
  const TempFolder folder;
  const FolderSource images = images_in_order(folder, 61);
  LoaderSettings settings = plain_settings();
  settings.transform.augmentation = Augmentation::resized_crop;
  settings.prefetch = 1;
  const std::vector<KeptBatch> expected = batches_of_epoch(images, settings, 3, 0, 1);
  CHECK(expected.size() == 16);
  settings.prefetch = 5;
  for (int workers : {1, 3, 8})
    CHECK(batches_of_epoch(images, settings, 3, 0, workers) == expected);
  const std::vector<KeptBatch> rest(expected.begin() + 5, expected.end());
  CHECK(batches_of_epoch(images, settings, 3, 5) == rest);
  CHECK(batches_of_epoch(images, settings, 3, 16).empty());
}

TEST_CASE("the ranks share an epoch without loss or doubling; the last batches are padded",
          "[loader]") {
  const TempFolder folder;
  const FolderSource images = images_in_order(folder, 25);
  LoaderSettings settings = plain_settings();
  settings.world_size = GENERATE(1, 2, 3);
  std::vector<int> seen;
  for (settings.rank = 0; settings.rank < settings.world_size; ++settings.rank) {
    const std::vector<KeptBatch> batches = batches_of_epoch(images, settings, 0);
    CHECK(batches.size() == (settings.world_size == 1 ? 7 : settings.world_size == 2 ? 4 : 3));
    const std::vector<int> numbers = numbers_in(batches);
    seen.insert(seen.end(), numbers.begin(), numbers.end());
    for (const KeptBatch& batch : batches) {
      const auto count = static_cast<std::size_t>(batch.count);
      for (std::size_t row = 0; row < count; ++row)
        CHECK(batch.labels[row] == (batch.images[row * kSide * kSide * 3] < 12 ? 0 : 1));
      for (std::size_t row = count; row < 4; ++row) CHECK(batch.labels[row] == -1);
      CHECK(std::all_of(batch.images.begin() + std::ptrdiff_t(count * kSide * kSide * 3),
                        batch.images.end(), [](int value) { return value == 0; }));
    }
  }
  std::sort(seen.begin(), seen.end());
  CHECK(seen == first_numbers(25));
}

TEST_CASE("every rank makes as many batches, be they empty", "[loader]") {
  const TempFolder folder;
  const FolderSource images = images_in_order(folder, 9);
  LoaderSettings settings = plain_settings();
  settings.world_size = 2;
  settings.rank = 1;  // 4 of the 9; rank 0 needs a second batch for its fifth
  const std::vector<KeptBatch> batches = batches_of_epoch(images, settings, 0);
  REQUIRE(batches.size() == 2);
  CHECK(batches[0].count == 4);
  CHECK(batches[1].count == 0);
}

TEST_CASE("drop_last makes full batches only", "[loader]") {
  const TempFolder folder;
  const FolderSource images = images_in_order(folder, 25);
  LoaderSettings settings = plain_settings();
  settings.drop_last = true;
  settings.world_size = 2;
  std::vector<int> seen;
  for (settings.rank = 0; settings.rank < 2; ++settings.rank) {
    const std::vector<KeptBatch> batches = batches_of_epoch(images, settings, 0);
    CHECK(batches.size() == 3);
    for (const KeptBatch& batch : batches) CHECK(batch.count == 4);
    const std::vector<int> numbers = numbers_in(batches);
    seen.insert(seen.end(), numbers.begin(), numbers.end());
  }
  std::sort(seen.begin(), seen.end());
  CHECK(seen.size() == 24);
  CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
}

TEST_CASE("a shard has the same batches as a rank of its own", "[loader]") {
  const TempFolder folder;
  const FolderSource images = images_in_order(folder, 61);
  LoaderSettings settings = plain_settings();
  settings.transform.augmentation = Augmentation::resized_crop;
  settings.drop_last = true;
  settings.world_size = 4;
  std::vector<std::vector<KeptBatch>> shards;
  for (settings.rank = 0; settings.rank < 4; ++settings.rank)
    shards.push_back(batches_of_epoch(images, settings, 2));
  REQUIRE(shards.front().size() == 3);

  settings.shards = GENERATE(2, 4);
  settings.world_size = 4 / settings.shards;
  const auto per_rank = static_cast<std::size_t>(settings.shards);
  for (settings.rank = 0; settings.rank < settings.world_size; ++settings.rank) {
    const std::vector<KeptBatch> batches = batches_of_epoch(images, settings, 2);
    REQUIRE(batches.size() == 3 * per_rank);
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const std::size_t shard = static_cast<std::size_t>(settings.rank) * per_rank + i % per_rank;
      CHECK(batches[i] == shards[shard][i / per_rank]);
    }
    CHECK(batches_of_epoch(images, settings, 2, settings.shards).front() == batches[per_rank]);
  }
}

TEST_CASE("settings that cannot work are named", "[loader]") {
  const TempFolder folder;
  const FolderSource images = images_in_order(folder, 10);
  HostDevice device;
  Workers workers(1);
  LoaderSettings settings = plain_settings();
  settings.world_size = 3;
  settings.drop_last = true;
  CHECK_THROWS_AS(Loader(images, settings, device, workers), UsageError);
  CHECK_THROWS_WITH(Loader(images, settings, device, workers),
                    ContainsSubstring("--batch-size 4") && ContainsSubstring("10 images") &&
                        ContainsSubstring(folder.path));
  CHECK_THROWS_WITH(Workers(0), ContainsSubstring("--workers 0"));
}

TEST_CASE("epochs and seeds differ, and each repeats", "[loader]") {
  const TempFolder folder;
  const FolderSource images = images_in_order(folder, 20);
  LoaderSettings settings = plain_settings();
  HostDevice device;
  Workers workers(4);
  Loader loader(images, settings, device, workers);
  CHECK(loader.next() == nullptr);
  std::vector<std::vector<KeptBatch>> epochs;
  for (int epoch : {0, 1, 0}) {
    loader.start_epoch(epoch);
    epochs.push_back(rest_of_epoch(loader));
    CHECK(loader.next() == nullptr);
  }
  CHECK(numbers_in(epochs[0]) != numbers_in(epochs[1]));
  CHECK(epochs[0] == epochs[2]);
  settings.seed = 1;
  CHECK(numbers_in(batches_of_epoch(images, settings, 0)) != numbers_in(epochs[0]));

  settings.shuffle = false;
  CHECK(numbers_in(batches_of_epoch(images, settings, 0)) == first_numbers(20));
  settings.transform.augmentation = Augmentation::resized_crop;
  CHECK_FALSE(batches_of_epoch(images, settings, 0) == batches_of_epoch(images, settings, 1));
}

TEST_CASE("an epoch may be abandoned while batches are held", "[loader]") {
  const TempFolder folder;
  const FolderSource images = images_in_order(folder, 60);
  LoaderSettings settings = plain_settings();
  settings.prefetch = 1;
  HostDevice device;
  Workers workers(4);
  Loader loader(images, settings, device, workers);
  CHECK(device.pinned == 2 * 3);  // images and labels of prefetch + 2 batches
  loader.start_epoch(0);
  const Batch* held = loader.next();
  const KeptBatch before(*held);
  loader.start_epoch(1);
  CHECK(rest_of_epoch(loader) == batches_of_epoch(images, settings, 1));
  CHECK(KeptBatch(*held) == before);
  loader.release(held);
  loader.start_epoch(2);  // and the loader goes with the epoch just begun
}

TEST_CASE("no more memory is taken than an epoch has batches", "[loader]") {
  const TempFolder folder;
  const FolderSource images = images_in_order(folder, 60);
  LoaderSettings settings = plain_settings();
  settings.prefetch = 1000;
  HostDevice device;
  Workers workers(4);
  const Loader loader(images, settings, device, workers);
  CHECK(loader.batches_per_epoch() == batches_per_epoch(images, settings));
  CHECK(device.pinned == 2 * (loader.batches_per_epoch() + 2));
}

TEST_CASE("a loader of many threads ends with little work", "[loader]") {
  const TempFolder folder;
  const FolderSource images = images_in_order(folder, 60);
  LoaderSettings settings = plain_settings();
  HostDevice device;
  auto workers = std::make_unique<Workers>(600);
  auto loader = std::make_unique<Loader>(images, settings, device, *workers);
  loader->start_epoch(0);
  loader->release(loader->next());
  const std::clock_t before = std::clock();  // of this process, whatever else the machine computes
  loader.reset();
  workers.reset();
  CHECK(std::clock() - before < 2 * CLOCKS_PER_SEC);  // 5 s when each thread wakes all others
}

TEST_CASE("held batches are left alone; a third is refused", "[loader]") {
  const TempFolder folder;
  const FolderSource images = images_in_order(folder, 60);
  LoaderSettings settings = plain_settings();
  settings.prefetch = 1;
  HostDevice device;
  Workers workers(4);
  Loader loader(images, settings, device, workers);
  loader.start_epoch(0);
  const Batch* first = loader.next();
  const Batch* second = loader.next();
  REQUIRE(first != second);
  const KeptBatch before(*first);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the workers run ahead if they can
  CHECK(KeptBatch(*first) == before);
  CHECK_THROWS_AS(loader.next(), InternalError);
  loader.release(first);
  CHECK_THROWS_AS(loader.release(first), InternalError);
  CHECK(loader.next() != nullptr);
}

TEST_CASE("a corrupt file surfaces in next(), after the batches before it", "[loader]") {
  const TempFolder folder;
  const FolderSource images = images_in_order(folder, 30);
  std::ofstream(images.name(9)) << "not an image";
  std::ofstream(images.name(11)) << "nor this";
  LoaderSettings settings = plain_settings();
  settings.shuffle = false;
  HostDevice device;
  Workers workers(8);
  Loader loader(images, settings, device, workers);
  for (int epoch : {0, 1}) {
    loader.start_epoch(epoch);
    for (int batch = 0; batch < 2; ++batch) loader.release(loader.next());
    CHECK_THROWS_AS(loader.next(), UsageError);
    CHECK_THROWS_WITH(loader.next(), ContainsSubstring(images.name(9)));
  }
  for (int mended : {9, 11})
    folder.write(images.name(static_cast<std::size_t>(mended)), test::png_of(mended));
  loader.start_epoch(2);
  CHECK(numbers_in(rest_of_epoch(loader)) == first_numbers(30));
}

TEST_CASE("an abandoned epoch has no more batches", "[loader]") {
  const TempFolder folder;
  const FolderSource images = images_in_order(folder, 60);
  HostDevice device;
  Workers workers(2);
  Loader loader(images, plain_settings(), device, workers);
  loader.start_epoch(0);
  loader.release(loader.next());
  loader.abandon();
  CHECK(loader.next() == nullptr);
  loader.start_epoch(1);
  CHECK(rest_of_epoch(loader).size() == 15);
  CHECK(loader.times().images >= 60 + 4);
}

TEST_CASE("loaders share the workers", "[loader]") {
  const TempFolder folder;
  const FolderSource images = images_in_order(folder, 60);
  const LoaderSettings settings = plain_settings();
  HostDevice device;
  Workers workers(3);
  Loader training(images, settings, device, workers);
  {
    Loader validation(images, settings, device, workers);
    training.start_epoch(1);
    validation.start_epoch(0);
    CHECK(rest_of_epoch(validation) == batches_of_epoch(images, settings, 0));
    validation.start_epoch(2);
  }
  CHECK(rest_of_epoch(training) == batches_of_epoch(images, settings, 1));
}

/// Samples of update `step`, over all ranks and micro-batches.
std::vector<int> samples_of_update(const std::vector<std::vector<KeptBatch>>& of_ranks, int step,
                                   int accumulate) {
  std::vector<int> samples;
  for (const auto& batches : of_ranks)
    for (int m = 0; m < accumulate; ++m) {
      const auto numbers = numbers_in({batches.at(std::size_t(step * accumulate + m))});
      samples.insert(samples.end(), numbers.begin(), numbers.end());
    }
  std::sort(samples.begin(), samples.end());
  return samples;
}

TEST_CASE("with the same global batch an update has the same samples at any number of ranks",
          "[loader]") {
  constexpr int kImages = 63;
  constexpr int kGlobalBatch = 12;
  const TempFolder folder;
  const FolderSource images = images_in_order(folder, kImages);
  std::vector<std::vector<int>> expected;
  for (int ranks : {1, 2, 3, 4, 6})
    for (int accumulate : {1, 2}) {
      CAPTURE(ranks, accumulate);
      LoaderSettings settings = plain_settings();
      settings.drop_last = true;
      settings.world_size = ranks;
      settings.batch_size = kGlobalBatch / ranks / accumulate;
      if (settings.batch_size * ranks * accumulate != kGlobalBatch) continue;
      std::vector<std::vector<KeptBatch>> of_ranks;
      for (settings.rank = 0; settings.rank < ranks; ++settings.rank)
        of_ranks.push_back(batches_of_epoch(images, settings, 2));
      std::vector<std::vector<int>> updates;
      const auto batches = static_cast<int>(of_ranks[0].size());
      for (int step = 0; step < batches / accumulate; ++step)
        updates.push_back(samples_of_update(of_ranks, step, accumulate));
      if (expected.empty()) expected = updates;
      CHECK(updates == expected);
    }
  CHECK(expected.size() == kImages / kGlobalBatch);
  std::vector<int> seen;
  for (const auto& update : expected) seen.insert(seen.end(), update.begin(), update.end());
  std::sort(seen.begin(), seen.end());
  CHECK(seen.size() == expected.size() * kGlobalBatch);
  CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
}

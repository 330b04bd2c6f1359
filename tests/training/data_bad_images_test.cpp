// What happens to images that cannot be read or decoded.

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <thread>

#include "common/error.hpp"
#include "tests/catch.hpp"
#include "tests/support/image_files.hpp"

namespace shakedown::training {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::Bytes;
using test::epoch_of;
using test::error_of;
using test::half_white_jpeg;
using test::image_of;
using test::kSide;
using test::loader_settings;
using test::numbered_images;
using test::TempFolder;

}  // namespace

TEST_CASE("bad images are named, counted once and bounded", "[bad_images]") {
  const FolderSource images({"d", {"a"}, {{"a/0", 0}, {"a/1", 0}, {"a/2", 0}}, {}});
  std::vector<std::string> reports;
  BadImages bad(2, [&](const std::string& text) { reports.push_back(text); });
  for (int round = 0; round < 2; ++round)
    for (const std::size_t index : {2U, 0U}) bad.note(images, index, "cannot be read");
  CHECK(bad.count() == 2);
  CHECK(bad.indices() == std::vector<std::size_t>{0, 2});
  REQUIRE(reports.size() == 2);
  CHECK(reports[0] == "image d/a/2: cannot be read; another image replaces it");
  CHECK(error_of([&] { bad.note(images, 1, "broken"); }) ==
        "image d/a/1: broken; --max-bad-images 2: 2 were bad before: d/a/0, d/a/2");
  BadImages resumed(2, {});
  resumed.restore({0, 2});
  CHECK(resumed.indices() == std::vector<std::size_t>{0, 2});
  resumed.note(images, 2, "broken");  // met again
  CHECK(error_of([&] { resumed.note(images, 1, "broken"); }) != "no error");
  CHECK(error_of([&] {
          BadImages(1, {}).restore({0, 2});
        }) == "--max-bad-images 1: 2 were bad before the interruption");
  BadImages none(0, {});
  CHECK(error_of([&] { none.note(images, 1, "broken"); }) == "image d/a/1: broken");
}

TEST_CASE("the first twenty bad images are reported", "[bad_images]") {
  ImageFolder many{"d", {"a"}, {}, {}};
  for (int i = 0; i < 50; ++i) many.samples.push_back({std::to_string(i), 0});
  const FolderSource images(many);
  std::vector<std::string> reports;
  BadImages bad(100, [&](const std::string& text) { reports.push_back(text); });
  for (std::size_t i = 0; i < 50; ++i) bad.note(images, i, "broken");
  CHECK(bad.count() == 50);
  REQUIRE(reports.size() == 20);
  CHECK_THAT(reports.back(), ContainsSubstring("further bad images are only counted"));
  CHECK(names_of(images, {0, 1, 2}) == "d/0, d/1, d/2");
  CHECK(names_of(images, {0, 1, 2, 3, 4, 5, 6}) == "d/0, d/1, d/2, d/3, d/4 and 2 more");
}

TEST_CASE("every kind of bad image is named and replaced by the next that is good",
          "[bad_images][loader]") {
  const TempFolder folder;
  const FolderSource images = numbered_images(folder, 12);
  const Bytes png = image_of(images, 0), jpeg = half_white_jpeg();
  Bytes huge = jpeg;
  const std::array<std::uint8_t, 2> frame{0xFF, 0xC0};
  const auto size = std::search(huge.begin(), huge.end(), frame.begin(), frame.end()) + 5;
  std::fill_n(size, 4, std::uint8_t{0xEA});  // 60138 x 60138
  const auto cut = [](Bytes bytes) {
    bytes.resize(bytes.size() - 5);
    return bytes;
  };
  const auto spoil = [&](std::size_t index, const Bytes& content) {
    folder.write(images.path(index), content);
  };
  spoil(1, {});
  spoil(2, cut(png));
  spoil(3, cut(jpeg));
  spoil(4, huge);
  spoil(5, {'t', 'e', 'x', 't'});
  fs::remove(images.name(6));
  fs::create_directory(images.name(6));
  fs::remove(images.name(7));
  REQUIRE(mkfifo(images.name(7).c_str(), 0600) == 0);  // nobody writes: must not be waited for

  std::vector<std::string> reasons;
  BadImages bad(7, [&](const std::string& text) { reasons.push_back(text); });
  const TransformSettings as_they_are{kSide, Augmentation::none, true, false};
  SampleReader reader(images, as_they_are, bad);
  Bytes out(kSide * kSide * 3), good(out.size());
  const std::int32_t label = reader.read(8, 0, good).label;
  CHECK(reader.read(1, 0, out).label == label);
  CHECK(out == good);
  REQUIRE(reasons.size() == 7);
  const char* const expected[] = {"neither JPEG nor PNG", "truncated or corrupt",
                                  "truncated or corrupt", "60138 x 60138 pixels",
                                  "neither JPEG nor PNG", "it is no regular file",
                                  "it is no regular file"};
  for (std::size_t i = 0; i < 7; ++i) {
    CHECK_THAT(reasons[i], ContainsSubstring(images.name(i + 1) + ": "));
    CHECK_THAT(reasons[i], ContainsSubstring(expected[i]));
  }
  CHECK(images.replacement(11, 2) == 1);  // after the last comes the first

  // the epoch keeps its slots, whatever threads meet the bad images first
  LoaderSettings settings = loader_settings();
  settings.bad_images = &bad;
  CHECK(epoch_of(images, settings, 8) == epoch_of(images, settings, 1));
  settings.bad_images = nullptr;
  CHECK_THROWS_AS(epoch_of(images, settings, 1), UsageError);
}

TEST_CASE("a read that fails is repeated, and is no bad image", "[bad_images][loader]") {
  int calls = 0;
  const auto fails = [&](int times) {
    calls = 0;
    read_patiently("f", {3, 1ms}, [&] {
      if (++calls <= times) throw ReadError("cannot be read: Stale file handle");
    });
  };
  CHECK_NOTHROW(fails(2));
  CHECK(calls == 3);
  CHECK_THROWS_AS(fails(3), InconclusiveError);
  CHECK_THROWS_WITH(fails(3), "f: cannot be read: Stale file handle, 3 times");
  CHECK(calls == 3);
  CHECK(error_of([] { read_patiently("f", {}, [] { throw UsageError("corrupt"); }); }) ==
        "corrupt");  // at once

  const TempFolder folder;
  numbered_images(folder, 12);
  const FolderSource images(scan_image_folder(folder.path), {2, 1ms});
  fs::remove(images.name(6));
  BadImages bad(12, {});
  LoaderSettings settings = loader_settings();
  settings.bad_images = &bad;
  CHECK_THROWS_AS(epoch_of(images, settings, 3), InconclusiveError);
  CHECK_THROWS_WITH(
      epoch_of(images, settings, 3),
      ContainsSubstring("image " + images.name(6) + ": cannot be read: No such file"));
  CHECK(bad.count() == 0);
}

TEST_CASE("a file that was missing for a moment is read", "[bad_images]") {
  const TempFolder folder;
  const FolderSource images = numbered_images(folder, 2);
  const Bytes content = image_of(images, 0);
  fs::rename(images.name(0), images.name(0) + ".away");
  const std::jthread back([&] { fs::rename(images.name(0) + ".away", images.name(0)); });
  CHECK(image_of(images, 0) == content);
}

TEST_CASE("a source without a good image ends", "[bad_images]") {
  const TempFolder folder;
  for (const char* name : {"a/1.png", "a/2.png"}) folder.touch(name);
  const FolderSource images(scan_image_folder(folder.path));
  BadImages bad(5, [](const std::string&) {});
  SampleReader reader(images, {}, bad);
  CHECK(error_of([&] { reader.read(1, 0, {}); }) == folder.path + ": all 2 images are bad");
}

}  // namespace shakedown::training

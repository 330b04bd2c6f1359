// Where images lie: folders, packed files, memory; and those that cannot be read or decoded.
#include "training/data/source.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <thread>

#include "common/error.hpp"
#include "common/hash.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/image_files.hpp"
#include "training/data/pack.hpp"

namespace shakedown::training {
namespace {

using namespace std::chrono_literals;
using test::Bytes;
using test::epoch_of;
using test::error_of;
using test::half_white_jpeg;
using test::image_of;
using test::kSide;
using test::loader_settings;
using test::numbered_images;
using test::png_of;
using test::TempFolder;

namespace fs = std::filesystem;

Bytes content_of(const std::string& path) {
  const std::string content = test::content_of(path);
  return {content.begin(), content.end()};
}

Packed pack(const ImageSource& source, const std::string& path, int threads = 3) {
  return write_pack(source, {"--pack", path}, threads, [](std::size_t) {});
}

}  // namespace

TEST_CASE("an image folder is listed as torchvision does") {
  const TempFolder folder;
  for (const char* name :  // hidden ones are no images and no classes
       {"b/2.JPG", "b/10.png", "a/z.jpeg", "a/more/y.Png", "a/notes.txt", "a/._1.png",
        "a/.trash/2.png", ".git/3.png", "readme.jpg", "a/more/x.gif", "Z/\u00e9.png", "Z/z.png",
        "Z/a/1.png", "Z/a-b/1.png", "Z/a/b/1.png", "Z/1.tif", "Z/2.webp"})
    folder.touch(name);
  const ImageFolder found = scan_image_folder(folder.path);
  CHECK(found.root == folder.path);
  CHECK(found.classes == Texts{"Z", "a", "b"});
  std::vector<std::string> listed;
  for (const Sample& sample : found.samples)
    listed.push_back(sample.path + " " + std::to_string(sample.label));
  // sorted(os.walk()): by the folder's whole path, in which a - is less than a /
  CHECK(listed == Texts{"Z/z.png 0", "Z/\u00e9.png 0", "Z/a/1.png 0", "Z/a-b/1.png 0",
                        "Z/a/b/1.png 0", "a/z.jpeg 1", "a/more/y.Png 1", "b/10.png 2",
                        "b/2.JPG 2"});
  CHECK(text_of(FolderSource(found)) ==
        "9 images of 3 classes in " + folder.path + " (left out: 1 .gif, 1 .tif, 1 .txt, 1 .webp)");
}

TEST_CASE("links are followed, and refused where they lead back") {
  const TempFolder folder;
  folder.touch("images/a/1.png");
  folder.touch("elsewhere/2.png");
  const fs::path root = fs::path(folder.path) / "images";
  fs::create_directory_symlink("../../elsewhere", root / "a/more");
  CHECK(scan_image_folder(root).samples.size() == 2);
  fs::create_directory_symlink(root / "a", fs::path(folder.path) / "elsewhere/back");
  CHECK_THROWS_WITH(scan_image_folder(root),
                    ContainsSubstring("a/more/back leads back to a folder it lies in"));
  fs::remove(root / "a/more");
  fs::create_directory_symlink(".", root / "a/loop");
  CHECK_THROWS_AS(scan_image_folder(root), UsageError);
  fs::remove(root / "a/loop");
  fs::create_symlink("self.png", root / "a/self.png");
  CHECK_THROWS_WITH(scan_image_folder(root), ContainsSubstring("a/self.png: cannot be read"));
  fs::remove(root / "a/self.png");
  fs::create_directory_symlink("../moved", root / "b");
  CHECK_THROWS_WITH(scan_image_folder(root), ContainsSubstring("images/b leads nowhere"));
}

TEST_CASE("an image folder that cannot serve is named") {
  const TempFolder folder;
  CHECK_ERROR(UsageError, scan_image_folder(folder.path),
              ContainsSubstring(folder.path) && ContainsSubstring("no sub-folders"));
  CHECK_ERROR(UsageError, scan_image_folder(folder.path + "/nowhere"),
              ContainsSubstring("/nowhere: cannot be read: No such file"));
  folder.touch("full/1.png");
  folder.touch("empty/1.txt");
  CHECK_ERROR(UsageError, scan_image_folder(folder.path),
              ContainsSubstring(folder.path + "/empty"));
}

TEST_CASE("training and validation must have the same classes") {
  const FolderSource training({"train", {"cat", "dog"}, {}, {}});
  const auto check = [&](std::vector<std::string> classes) {
    check_same_classes(training, FolderSource({"val", std::move(classes), {}, {}}));
  };
  CHECK_NOTHROW(check({"cat", "dog"}));
  CHECK_ERROR(UsageError, check({"cat"}),
              ContainsSubstring("not in val: dog") && !ContainsSubstring("not in train"));
  CHECK_THROWS_WITH(check({"cat", "cow"}),
                    ContainsSubstring("not in val: dog") && ContainsSubstring("not in train: cow"));
}

TEST_CASE("--data-dir has training and validation data under their names", "[data_dir]") {
  const TempFolder folder;
  const auto found = [&](bool trains, bool validates, const std::string& val_dir = "") {
    DataOptions options;
    options.data_dir = folder.path;
    options.val_dir = val_dir;
    find_data(options, trains, validates);
    CHECK(options.remark.empty() == (!trains || !validates || !options.val_dir.empty()));
    return options.train_dir + "," + options.val_dir;
  };
  const std::string root = folder.path;
  fs::create_directory(root + "/val");
  folder.touch("Train/cat/1.png");  // no name of its classes
  CHECK_THAT(error_of([&] { found(true, true); }),
             ContainsSubstring("--data-dir " + root + ": there is no train/ or train.pack in it"));
  CHECK(found(false, true) == "," + root + "/val");
  fs::create_directory(root + "/train");
  CHECK(found(true, true) == root + "/train," + root + "/val");
  CHECK(found(true, true, "other") == root + "/train,other");
  CHECK(found(true, false) == root + "/train,");
  folder.touch("train.pack");
  CHECK(found(true, true) == root + "/train.pack," + root + "/val");
  folder.touch("val.pack");
  CHECK(found(false, true) == "," + root + "/val.pack");
  fs::remove_all(root + "/val");
  fs::remove(root + "/val.pack");
  CHECK(found(true, true) == root + "/train.pack,");
  CHECK_THAT(error_of([&] { found(false, true); }),
             ContainsSubstring("--data-dir " + root + ": there is no val/"));
}

TEST_CASE("a packed file has the folder's images in its order", "[pack]") {
  const TempFolder folder;
  const FolderSource images = numbered_images(folder, 23);
  const std::string path = folder.path + "/train.pack";
  const Packed packed = pack(images, path);
  CHECK(packed.images == 23);
  CHECK(packed.classes == 2);
  CHECK_FALSE(fs::exists(path + ".partial"));

  const PackSource source(path);
  REQUIRE(source.size() == 23);
  CHECK(source.root() == path);
  CHECK(source.classes() == images.classes());
  CHECK(source.listing_checksum() == images.listing_checksum());
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < 23; ++i) {
    CHECK(source.path(i) == images.path(i));
    CHECK(source.name(i) == path + "/" + images.path(i));
    CHECK(source.label(i) == images.label(i));
    CHECK(image_of(source, i) == image_of(images, i));
    bytes += image_of(images, i).size();
  }
  CHECK(packed.bytes == bytes);
  CHECK_THAT(text_of(packed),
             ContainsSubstring("23 images of 2 classes, ") && ContainsSubstring("KiB in "));
}

TEST_CASE("the checksum of a source shows what ranks must have in common", "[pack]") {
  const TempFolder folder, other;
  const FolderSource images = numbered_images(folder, 6);
  const auto packed = [&](const char* name) {
    pack(images, folder.path + name);
    return PackSource(folder.path + name).checksum();
  };
  CHECK(numbered_images(other, 6).checksum() == images.checksum());  // wherever it lies
  const std::uint64_t before = packed("/1.pack");
  CHECK(packed("/2.pack") == before);
  folder.write(images.path(3), png_of(99));
  CHECK(packed("/3.pack") != before);
  CHECK(PackSource(folder.path + "/3.pack").listing_checksum() == images.listing_checksum());
  fs::remove(folder.path + "/" + images.path(3));
  CHECK(FolderSource(scan_image_folder(folder.path)).checksum() != images.checksum());
}

TEST_CASE("a damaged packed file is refused, or its damaged image named", "[pack]") {
  const TempFolder folder;
  const std::string path = folder.path + "/train.pack";
  const FolderSource images = numbered_images(folder, 4);
  const std::uint64_t payload = pack(images, path).bytes;
  const Bytes good = content_of(path);
  const auto error_with = [&](const Bytes& content) {
    folder.write("train.pack", content);
    return error_of([&] { PackSource{path}; });
  };
  const std::size_t index = kPackMagic.size() + payload;
  for (std::size_t at = 0; at < good.size(); ++at) {
    Bytes bad = good;
    bad[at] ^= 0x10;
    const bool is_image = at >= kPackMagic.size() && at < index;
    CAPTURE(at);
    if (is_image) continue;
    CHECK_THAT(error_with(bad), ContainsSubstring("packed file " + path + ": "));
  }
  for (std::size_t size = 0; size < good.size(); size += 7)
    CHECK(error_with(Bytes(good.begin(), good.begin() + (size))) != "no error");
  Bytes longer = good;
  longer.push_back(0);
  CHECK_THAT(error_with(longer), ContainsSubstring("truncated"));
  CHECK_THAT(error_of([] { PackSource("/no/such.pack"); }),
             ContainsSubstring("packed file /no/such.pack: cannot be read: No such file"));

  Bytes bad = good;
  bad[kPackMagic.size() + image_of(images, 0).size()] ^= 1;  // the second image's first byte
  CHECK(error_with(bad) == "no error");
  const PackSource source(path);
  CHECK(image_of(source, 0) == image_of(images, 0));
  CHECK(error_of([&] { image_of(source, 1); }) == "its checksum is wrong");
}

TEST_CASE("no number of a packed file's index is believed", "[pack]") {
  const TempFolder folder;
  const std::string path = folder.path + "/train.pack";
  const std::uint64_t payload = pack(numbered_images(folder, 4), path).bytes;
  const Bytes good = content_of(path);
  const std::size_t index = kPackMagic.size() + payload;
  /// The error where `change` has changed entries and footer, and the checksum fits.
  const auto error_with = [&](const std::function<void(PackEntry*, PackFooter&)>& change) {
    Bytes bad = good;
    PackFooter footer;
    std::memcpy(&footer, bad.data() + bad.size() - sizeof footer, sizeof footer);
    std::vector<PackEntry> entries(4);
    std::memcpy(entries.data(), bad.data() + index, 4 * sizeof(PackEntry));
    change(entries.data(), footer);
    std::memcpy(bad.data() + index, entries.data(), 4 * sizeof(PackEntry));
    footer.index_checksum =
        xxh64(std::span(bad).subspan(index, bad.size() - sizeof footer - index));
    std::memcpy(bad.data() + bad.size() - sizeof footer, &footer, sizeof footer);
    folder.write("train.pack", bad);
    return error_of([&] { PackSource{path}; });
  };
  CHECK(error_with([](PackEntry*, PackFooter&) {}) == "no error");
  for (const std::uint64_t huge : {std::uint64_t{1} << 60, UINT64_MAX, UINT64_MAX / 16 + 2}) {
    CHECK_THAT(error_with([&](auto, auto& footer) { footer.images = huge; }),
               ContainsSubstring("larger than the file"));
    CHECK_THAT(error_with([&](auto, auto& footer) { footer.index_bytes = huge; }),
               ContainsSubstring("larger than the file"));
    CHECK_THAT(error_with([&](auto, auto& footer) { footer.classes = huge; }),
               ContainsSubstring("too few names"));
  }
  CHECK_THAT(error_with([](auto, auto& footer) { footer.images = 0; }),
             ContainsSubstring("no images"));
  CHECK_THAT(error_with([](auto, auto& footer) { footer.classes = 3; }),
             ContainsSubstring("too few names"));
  CHECK_THAT(error_with([](auto, auto& footer) { footer.classes = 1; }),
             ContainsSubstring("more names than images"));
  CHECK_THAT(error_with([](auto entries, auto&) { entries[2].label = 2; }),
             ContainsSubstring("image 2 has no class"));
  CHECK_THAT(error_with([](auto entries, auto&) { entries[3].bytes = UINT32_MAX; }),
             ContainsSubstring("not as large as its index says"));
  CHECK_THAT(error_with([](auto entries, auto&) { --entries[0].bytes; }),
             ContainsSubstring("not as large as its index says"));
  CHECK_THAT(error_with([](auto, auto& footer) { footer.version = 2; }),
             ContainsSubstring("version 2 of the format, and version 1 is supported"));
}

TEST_CASE("a packed file is there whole or not at all", "[pack]") {
  const TempFolder folder;
  const FolderSource images = numbered_images(folder, 40);
  const std::string path = folder.path + "/train.pack";
  folder.write("train.pack", {1, 2, 3});
  const auto nothing_changed = [&] {
    return content_of(path) == Bytes{1, 2, 3} && !fs::exists(path + ".partial");
  };
  SECTION("an image is missing") {
    const FolderSource impatient(scan_image_folder(folder.path), {2, 1ms});
    fs::remove(images.name(7));
    CHECK_ERROR(InconclusiveError, pack(impatient, path),
                ContainsSubstring("image " + images.name(7) + ": cannot be read: No such file"));
    CHECK(nothing_changed());
  }
  SECTION("the disk is full") {
    std::string message;
    try {
      const test::FileLimit full(1500);
      pack(images, path);
    } catch (const InconclusiveError& error) {
      message = error.what();
    }
    CHECK_THAT(message,
               ContainsSubstring("--pack " + path + ": cannot be written: File too large"));
    CHECK(nothing_changed());
    CHECK_THROWS_AS(pack(images, "/dev/full"), InconclusiveError);
  }
}

// What happens to images that cannot be read or decoded.

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

TEST_CASE("every kind of bad image is named and replaced", "[bad_images][loader]") {
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
  CHECK_ERROR(InconclusiveError, epoch_of(images, settings, 3),
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

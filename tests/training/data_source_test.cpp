// Where images lie: folders, packed files, memory; and what happens to bad ones.
#include <png.h>
#include <stdlib.h>  // NOLINT: mkdtemp is POSIX, not in cstdlib
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "common/error.hpp"
#include "common/xxh64.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/file_limit.hpp"
#include "tests/support/jpeg.hpp"
#include "training/data/cached_source.hpp"
#include "training/data/exif.hpp"
#include "training/data/loader.hpp"
#include "training/data/pack_format.hpp"
#include "training/data/pack_source.hpp"
#include "training/data/source_options.hpp"
#include "training/data/write_pack.hpp"

namespace shakedown::training {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Bytes = std::vector<std::uint8_t>;

struct TempFolder {
  TempFolder() { REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~TempFolder() { fs::remove_all(path); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  /// Makes an empty file and the folders above it.
  std::string touch(const std::string& name) const { return write(name, {}); }
  std::string write(const std::string& name, const Bytes& content) const {
    const fs::path file = fs::path(path) / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary)
        .write(reinterpret_cast<const char*>(content.data()),
               static_cast<std::streamsize>(content.size()));
    return file.string();
  }

  std::string path = "/tmp/shakedown_data_XXXXXX";
};

Bytes content_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return Bytes{std::istreambuf_iterator<char>(in), {}};
}

constexpr int kSide = 12;

/// Gray, with texture; starts with its number.
Bytes png_of(int number) {
  Bytes gray(kSide * kSide);
  for (std::size_t i = 0; i < gray.size(); ++i) gray[i] = static_cast<std::uint8_t>(40 + 17 * i);
  gray[0] = static_cast<std::uint8_t>(number);
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = png.height = kSide;
  png.format = PNG_FORMAT_GRAY;
  png_alloc_size_t bytes = 0;
  REQUIRE(png_image_write_to_memory(&png, nullptr, &bytes, 0, gray.data(), 0, nullptr));
  Bytes file(bytes);
  REQUIRE(png_image_write_to_memory(&png, file.data(), &bytes, 0, gray.data(), 0, nullptr));
  file.resize(bytes);
  return file;
}

/// 16 x 8, its left half white, else black.
Bytes half_white_jpeg() {
  test::Picture picture{16, 8, Bytes(std::size_t{16} * 8 * 3)};
  for (std::size_t i = 0; i < picture.values.size(); ++i)
    picture.values[i] = i / 3 % 16 < 8 ? 255 : 0;
  return test::write_jpeg(picture);
}

/// `count` images in classes a (the first half) and b, image i showing i; some lie deeper, and all
/// are PNG by any name.
FolderSource numbered_images(const TempFolder& folder, int count) {
  for (int i = 0; i < count; ++i) {
    const std::string name =
        (i % 5 == 4 ? "z/" : "") + std::to_string(1000 + i) + (i % 2 ? ".png" : ".JPG");
    folder.write((i < count / 2 ? "a/" : "b/") + name, png_of(i));
  }
  return FolderSource(scan_image_folder(folder.path));
}

Packed pack(const ImageSource& source, const std::string& path, int threads = 3) {
  return write_pack(source, {"--pack", path}, threads, [](std::size_t) {});
}

Bytes image_of(const ImageSource& source, std::size_t index) {
  Bytes bytes;
  StageTimes times;
  source.read(index, bytes, times);
  return bytes;
}

/// What `call` throws as UsageError, or "no error".
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

LoaderSettings loader_settings() {
  LoaderSettings settings;
  settings.batch_size = 4;
  settings.transform = {kSide, Augmentation::resized_crop};
  settings.drop_last = false;
  return settings;
}

/// Images and labels of an epoch, one batch after another.
Bytes epoch_of(const ImageSource& source, const LoaderSettings& settings, int threads,
               int epoch = 1) {
  const auto device = test::open_device(test::backends().front());
  Workers workers(threads);
  Loader loader(source, settings, *device, workers);
  loader.start_epoch(epoch);
  Bytes all;
  while (const Batch* batch = loader.next()) {
    all.insert(all.end(), batch->images.begin(), batch->images.end());
    all.insert(all.end(), batch->labels.begin(), batch->labels.end());
    loader.release(batch);
  }
  return all;
}

}  // namespace

TEST_CASE("an image folder is listed as torchvision does") {
  const TempFolder folder;
  for (const char* name : {"b/2.JPG", "b/10.png", "a/z.jpeg", "a/more/y.Png", "a/notes.txt",
                           "readme.jpg", "a/more/x.gif", "Z/\u00e9.png", "Z/z.png", "Z/a/1.png",
                           "Z/a-b/1.png", "Z/a/b/1.png", "Z/1.tif", "Z/2.webp"})
    folder.touch(name);
  const ImageFolder found = scan_image_folder(folder.path);
  CHECK(found.root == folder.path);
  CHECK(found.classes == std::vector<std::string>{"Z", "a", "b"});
  std::vector<std::string> listed;
  for (const Sample& sample : found.samples)
    listed.push_back(sample.path + " " + std::to_string(sample.label));
  // sorted(os.walk()): by the folder's whole path, in which a - is less than a /
  CHECK(listed == std::vector<std::string>{"Z/z.png 0", "Z/\u00e9.png 0", "Z/a/1.png 0",
                                           "Z/a-b/1.png 0", "Z/a/b/1.png 0", "a/z.jpeg 1",
                                           "a/more/y.Png 1", "b/10.png 2", "b/2.JPG 2"});
  CHECK(text_of(FolderSource(found)) ==
        "9 images of 3 classes in " + folder.path + " (left out: 1 .gif, 1 .tif, 1 .txt, 1 .webp)");
}

TEST_CASE("hidden files and folders are no images and no classes") {
  const TempFolder folder;
  for (const char* name : {"a/1.png", "a/._1.png", "a/.trash/2.png", ".git/3.png"})
    folder.touch(name);
  const ImageFolder found = scan_image_folder(folder.path);
  CHECK(found.classes == std::vector<std::string>{"a"});
  CHECK(found.samples.size() == 1);
  CHECK(found.left_out.empty());
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
}

TEST_CASE("an image folder that cannot serve is named") {
  const TempFolder folder;
  CHECK_THROWS_AS(scan_image_folder(folder.path), UsageError);
  CHECK_THROWS_WITH(scan_image_folder(folder.path),
                    ContainsSubstring(folder.path) && ContainsSubstring("no sub-folders"));
  CHECK_THROWS_AS(scan_image_folder(folder.path + "/nowhere"), UsageError);
  CHECK_THROWS_WITH(scan_image_folder(folder.path + "/nowhere"),
                    ContainsSubstring("/nowhere cannot be read: No such file"));
  folder.touch("full/1.png");
  folder.touch("empty/1.txt");
  CHECK_THROWS_AS(scan_image_folder(folder.path), UsageError);
  CHECK_THROWS_WITH(scan_image_folder(folder.path), ContainsSubstring(folder.path + "/empty"));
}

TEST_CASE("training and validation must have the same classes") {
  const FolderSource training({"train", {"cat", "dog"}, {}, {}});
  const auto check = [&](std::vector<std::string> classes) {
    check_same_classes(training, FolderSource({"val", std::move(classes), {}, {}}));
  };
  CHECK_NOTHROW(check({"cat", "dog"}));
  CHECK_THROWS_AS(check({"cat"}), UsageError);
  CHECK_THROWS_WITH(check({"cat"}),
                    ContainsSubstring("not in val: dog") && !ContainsSubstring("not in train"));
  CHECK_THROWS_WITH(check({"cat", "cow"}),
                    ContainsSubstring("not in val: dog") && ContainsSubstring("not in train: cow"));
}

TEST_CASE("a packed file has the folder's images in its order", "[pack]") {
  const TempFolder folder;
  const FolderSource images = numbered_images(folder, 23);
  const std::string path = folder.path + "/train.pack";
  const Packed packed = pack(images, path);
  CHECK(packed.images == 23);
  CHECK(packed.classes == 2);
  CHECK_FALSE(fs::exists(path + ".partial"));

  const PackSource source(path, GENERATE(false, true));
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
  CHECK_THAT(text_of(packed), ContainsSubstring("23 images of 2 classes, 0.00 GB in"));
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

TEST_CASE("folder, packed file and cache give the same batches", "[pack][loader]") {
  const TempFolder folder;
  const FolderSource images = numbered_images(folder, 61);
  const std::string path = folder.path + "/train.pack";
  pack(images, path);
  const LoaderSettings settings = loader_settings();
  const Bytes expected = epoch_of(images, settings, 1);
  CHECK(expected != epoch_of(images, settings, 1, 2));
  const CachedSource cached(
      std::make_unique<FolderSource>(scan_image_folder(folder.path)), [] { return true; },
      [](const CachedSource&) { FAIL("there is room"); });
  for (const bool by_windows : {false, true})
    CHECK(epoch_of(PackSource(path, by_windows), settings, 8) == expected);
  CHECK(epoch_of(cached, settings, 8) == expected);
  for (const char* part : {"a", "b"}) fs::remove_all(fs::path(folder.path) / part);
  CHECK(epoch_of(cached, settings, 8) == expected);  // from memory
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
    CHECK(error_with(Bytes(good.begin(), good.begin() + std::ptrdiff_t(size))) != "no error");
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
    CHECK_THROWS_AS(pack(impatient, path), InconclusiveError);
    CHECK_THROWS_WITH(pack(impatient, path), ContainsSubstring("image " + images.name(7) +
                                                               ": cannot be read: No such file"));
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

TEST_CASE("a cache stops where memory is short", "[cache]") {
  const TempFolder folder;
  const FolderSource images = numbered_images(folder, 10);
  int full = 0;
  const CachedSource cached(
      std::make_unique<FolderSource>(scan_image_folder(folder.path)), [] { return false; },
      [&](const CachedSource& source) { full += source.bytes_kept() == 0 ? 1 : 100; });
  for (int round = 0; round < 2; ++round)
    for (std::size_t i = 0; i < 10; ++i) CHECK(image_of(cached, i) == image_of(images, i));
  CHECK(full == 1);
  CHECK(cached.bytes_kept() == 0);
}

TEST_CASE("what a cache keeps is counted once, whatever threads read it", "[cache][loader]") {
  const TempFolder folder;
  const FolderSource images = numbered_images(folder, 20);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < 20; ++i) bytes += image_of(images, i).size();
  const CachedSource cached(
      std::make_unique<FolderSource>(scan_image_folder(folder.path)), [] { return true; },
      [](const CachedSource&) {});
  {
    std::vector<std::jthread> readers;
    for (int t = 0; t < 6; ++t)
      readers.emplace_back([&] {
        for (std::size_t i = 0; i < 20; ++i) image_of(cached, i);
      });
  }
  CHECK(cached.bytes_kept() == bytes);
}

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

namespace {

/// An EXIF segment with one entry, in one of its byte orders.
Bytes exif_segment(int orientation, bool big_endian) {
  const auto number = [&](Bytes& to, std::uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i)
      to.push_back(static_cast<std::uint8_t>(value >> 8 * (big_endian ? bytes - 1 - i : i)));
  };
  Bytes segment{0xFF, 0xE1, 0, 0, 'E', 'x', 'i', 'f', 0, 0};
  segment.insert(segment.end(), 2, big_endian ? 'M' : 'I');
  number(segment, 42, 2);
  number(segment, 8, 4);  // the directory follows
  number(segment, 2, 2);  // entries
  for (const std::uint32_t tag : {0x010FU, 0x0112U}) {
    number(segment, tag, 2);
    number(segment, 3, 2);
    number(segment, 1, 4);
    number(segment, static_cast<std::uint32_t>(orientation), 2);
    number(segment, 0, 2);
  }
  number(segment, 0, 4);  // no further directory
  segment[3] = static_cast<std::uint8_t>(segment.size() - 2);
  return segment;
}

Bytes with_exif(Bytes jpeg, const Bytes& segment) {
  jpeg.insert(jpeg.begin() + 2, segment.begin(), segment.end());
  return jpeg;
}

}  // namespace

TEST_CASE("images are turned as PIL's exif_transpose does", "[exif]") {
  // 3 x 2: 1 2 3 / 4 5 6; expected: Pillow 12
  const std::vector<std::vector<int>> expected{
      {1, 2, 3, 4, 5, 6}, {3, 2, 1, 6, 5, 4}, {6, 5, 4, 3, 2, 1}, {4, 5, 6, 1, 2, 3},
      {1, 4, 2, 5, 3, 6}, {4, 1, 5, 2, 6, 3}, {6, 3, 5, 2, 4, 1}, {3, 6, 2, 5, 1, 4}};
  Image image;
  image.reshape({3, 2}, 3, 0);
  for (int v = 0; v < 6; ++v) {
    const std::array<std::uint8_t, 3> pixel{static_cast<std::uint8_t>(v + 1), 100,
                                            static_cast<std::uint8_t>(v + 1)};
    std::copy(pixel.begin(), pixel.end(), image.row(v / 3) + 4 * (v % 3));
  }
  for (int orientation = 1; orientation <= 8; ++orientation) {
    Image turned;
    turn_upright(image, orientation, turned);
    const auto [width, height] = turned.size();
    CHECK(turned.size() == upright(image.size(), orientation));
    CHECK(width == (orientation < 5 ? 3 : 2));
    CHECK(height == (orientation < 5 ? 2 : 3));
    CHECK(as_stored(whole(turned.size()), image.size(), orientation) == whole(image.size()));
    std::vector<int> values;
    for (int i = 0; i < 6; ++i) {
      const std::uint8_t* pixel = turned.row(i / width) + 4 * (i % width);
      CHECK(pixel[1] == 100);
      values.push_back(pixel[0]);
    }
    CHECK(values == expected[static_cast<std::size_t>(orientation - 1)]);
    for (const bool big_endian : {false, true})
      CHECK(exif_orientation(with_exif(half_white_jpeg(), exif_segment(orientation, big_endian))) ==
            orientation);
  }
}

TEST_CASE("EXIF that makes no sense turns nothing", "[exif]") {
  CHECK(exif_orientation({}) == 1);
  CHECK(exif_orientation(half_white_jpeg()) == 1);
  CHECK(exif_orientation(png_of(0)) == 1);
  for (const int strange : {0, 9, 65535})
    CHECK(exif_orientation(with_exif(half_white_jpeg(), exif_segment(strange, true))) == 1);
  const Bytes file = with_exif(half_white_jpeg(), exif_segment(6, false));
  for (std::size_t size = 0; size < 2 + exif_segment(6, false).size(); ++size)
    CHECK(exif_orientation(std::span(file).first(size)) == 1);  // the segment is cut
  for (const std::size_t at : {12U, 14U, 16U, 17U}) {  // not II, not 42, the directory elsewhere
    Bytes bad = file;
    bad[at] ^= 0xFF;
    CHECK(exif_orientation(bad) == 1);
  }
}

TEST_CASE("--exif turns what is read", "[exif]") {
  const TempFolder folder;
  folder.write("a/1.jpg", with_exif(half_white_jpeg(), exif_segment(6, false)));
  const FolderSource images(scan_image_folder(folder.path));
  BadImages bad(0, {});
  TransformSettings settings{16, Augmentation::none, true, false};
  Bytes plain(16 * 16 * 3), turned(plain.size());
  CHECK(SampleReader(images, settings, bad).read(0, 0, plain).label == 0);
  settings.exif = true;
  CHECK(SampleReader(images, settings, bad).read(0, 0, turned).label == 0);
  const std::size_t left_below = std::size_t{15} * 16 * 3;
  CHECK(plain[left_below] > 200);
  CHECK(turned[left_below] < 50);
  CHECK(turned[15 * 3] > 200);  // the left half came to the top
}

TEST_CASE("--data-dir has training and validation data, or is the former", "[data_dir]") {
  const TempFolder folder;
  const auto found = [&](bool trains, bool validates, const std::string& val_dir = "") {
    SourceOptions options;
    options.data_dir = folder.path;
    options.val_dir = val_dir;
    find_data(options, trains, validates);
    return options.train_dir + "," + options.val_dir;
  };
  const std::string root = folder.path;
  fs::create_directory(root + "/val");
  CHECK(found(true, true) == root + ",");  // val is one of its classes
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

}  // namespace shakedown::training

#include "common/output_file.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/error.hpp"
#include "tests/catch.hpp"

namespace shakedown {
namespace {

struct Folder {
  Folder() { std::filesystem::create_directory(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path = "output_file_test_folder";
};

void write_text(const std::string& path) {
  write_file({"--trace", path}, [](std::ostream& out) { out << "text"; });
}

}  // namespace

TEST_CASE("a file is written whole, and no other file is left next to it", "[output_file]") {
  const Folder folder;
  const std::string path = folder.path + "/file";
  check_writable({"--trace", path});
  CHECK_FALSE(std::filesystem::exists(path));
  write_text(path);
  std::ifstream in(path);
  CHECK(std::string{std::istreambuf_iterator<char>(in), {}} == "text");
  CHECK_FALSE(std::filesystem::exists(path + ".partial"));
}

TEST_CASE("what a link leads to is written, and the link stays", "[output_file]") {
  const Folder folder;
  const std::string path = folder.path + "/file";
  write_text(path);
  const auto link = folder.path + "/link";
  std::filesystem::create_symlink("file", link);
  write_file({"--trace", link}, [](std::ostream& out) { out << "anew"; });
  CHECK(std::filesystem::is_symlink(link));
  std::ifstream in(path);
  CHECK(std::string{std::istreambuf_iterator<char>(in), {}} == "anew");
}

TEST_CASE("a folder is refused before the work", "[output_file]") {
  const Folder folder;
  const Output output{"--save", folder.path};
  CHECK_THROWS_AS(check_writable(output), UsageError);
  CHECK_THROWS_WITH(check_writable(output), ContainsSubstring("--save " + folder.path));
}

TEST_CASE("the folders of a file are made, or the error says why not", "[output_file]") {
  const Folder folder;
  const std::string path = folder.path + "/runs/today/file";
  check_writable({"--trace", path});
  write_text(path);
  CHECK(std::filesystem::is_regular_file(path));
  CHECK_THROWS_WITH(check_writable({"--trace", path + "/below/a/file"}),
                    ContainsSubstring("--trace " + path) && ContainsSubstring("Not a directory"));
}

TEST_CASE("two options that name one file are refused", "[output_file]") {
  const Folder folder;
  std::filesystem::create_symlink("a", folder.path + "/link");
  const auto both = [&](const std::string& a, const std::string& b) {
    check_distinct({{"--record", a}, {"--trace", b}, {"--save", ""}});
  };
  CHECK_THROWS_AS(both(folder.path + "/a", folder.path + "/a"), UsageError);
  CHECK_THROWS_WITH(both(folder.path + "/a", folder.path + "/../" + folder.path + "/link"),
                    ContainsSubstring("--trace") && ContainsSubstring("the file of --record"));
  CHECK_NOTHROW(both(folder.path + "/a", folder.path + "/b"));
  CHECK_NOTHROW(both("/dev/null", "/dev/null"));
  CHECK_NOTHROW(both("", ""));
}

TEST_CASE("a device is written in place, and a full one is reported", "[output_file]") {
  const Folder folder;
  const std::string path = folder.path + "/device";
  std::filesystem::create_symlink("/dev/full", path);
  check_writable({"--trace", path});
  CHECK_THROWS_AS(write_text(path), InconclusiveError);
  CHECK_THROWS_WITH(write_text(path), ContainsSubstring("--trace " + path) &&
                                          ContainsSubstring("No space left on device"));
  CHECK(std::filesystem::is_character_file(path));
}

}  // namespace shakedown

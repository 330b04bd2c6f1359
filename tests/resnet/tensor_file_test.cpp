#include "resnet/tensor_file.hpp"
#include "common/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "common/numbers.hpp"
#include "resnet/network.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/files.hpp"
#include "tests/support/network.hpp"
#include "tests/support/transcript.hpp"

namespace shakedown {
namespace {

using test::TempFolder;

std::string with_header(const std::string& header, const std::string& data) {
  std::string text;
  for (std::size_t i = 0, n = header.size(); i < 8; ++i, n >>= 8)
    text += static_cast<char>(n & 0xFF);
  return text + header + data;
}

template <class T>
std::string bytes_of(std::initializer_list<T> values) {
  return {reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(T)};
}

/// "\xNN" is a byte.
std::string bytes_in(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool escaped = text.compare(i, 2, "\\x") == 0;
    bytes += escaped ? static_cast<char>(std::stoi(text.substr(i + 2, 2), nullptr, 16)) : text[i];
    if (escaped) i += 3;
  }
  return bytes;
}

/// Of "header BYTES JSON", then BYTES zeros, or "text TEXT": the tensors, or why not.
std::string answer_of(const std::string& given) {
  std::istringstream in(given);
  std::string kind, text;
  std::size_t bytes = 0;
  in >> kind;
  if (kind == "header") in >> bytes;
  std::getline(in >> std::ws, text);
  text = bytes_in(text);
  const TempFolder folder;
  const std::string file = folder.write(
      "w.safetensors", kind == "header" ? with_header(text, std::string(bytes, '\0')) : text);
  std::string answer;
  try {
    for (const Tensor& tensor : read_safetensors(file))
      answer += fmt::format("{} [{}] ", tensor.name, fmt::join(tensor.shape, ","));
    return answer;
  } catch (const UsageError& error) {
    answer = error.what();
  }
  // what a terminal would act on is not printed as it is
  CHECK(std::all_of(answer.begin(), answer.end(), [](char c) { return c >= ' ' && c < 127; }));
  for (std::size_t at = answer.find(file); at != answer.npos; at = answer.find(file))
    answer.replace(at, file.size(), "FILE");
  return answer;
}

}  // namespace

TEST_CASE("every type of number is read", "[safetensors]") {
  const TempFolder folder;
  const std::string header = R"({"__metadata__":{"format":"pt"},)"
                             R"("d":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
                             R"("f":{"dtype":"F32","shape":[2,1],"data_offsets":[8,16]},)"
                             R"("h":{"dtype":"F16","shape":[2],"data_offsets":[16,20]},)"
                             R"("b":{"dtype":"BF16","shape":[1],"data_offsets":[20,22]},)"
                             R"("i":{"dtype":"I64","shape":[],"data_offsets":[22,30]}})";
  const std::string data = bytes_of({2.5}) + bytes_of({1.5F, -3.0F}) +
                           bytes_of({float_to_float16(0.5F), float_to_float16(-2.0F)}) +
                           bytes_of({float_to_bfloat16(8.0F)}) + bytes_of({std::int64_t{77}});
  const auto tensors = read_safetensors(folder.write("all.safetensors", with_header(header, data)));
  REQUIRE(tensors.size() == 5);
  CHECK(tensors[0].values == std::vector<float>{2.5F});
  CHECK(tensors[1].values == std::vector<float>{1.5F, -3.0F});
  CHECK(tensors[1].shape == std::vector<std::int64_t>{2, 1});
  CHECK(tensors[2].values == std::vector<float>{0.5F, -2.0F});
  CHECK(tensors[3].values == std::vector<float>{8.0F});
  CHECK(tensors[4].integers == std::vector<std::int64_t>{77});
  CHECK(tensors[4].shape.empty());
}

TEST_CASE("integers stay integers, and other dtypes are named", "[safetensors]") {
  const TempFolder folder;
  const std::int64_t large = (std::int64_t{1} << 53) + 1;
  const std::string file = folder / "integers.safetensors";
  write_safetensors({"--save", file}, {{"n", {2}, {}, {large, -7}}, {"w", {1}, {2.5F}}});
  auto tensors = read_safetensors(file);
  CHECK(tensors.at(0).integers == std::vector<std::int64_t>{large, -7});
  CHECK(tensors.at(0).is_integer());
  CHECK(tensors.at(1).values == std::vector<float>{2.5F});

  const std::string header = R"({"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]},)"
                             R"("b":{"dtype":"C64","shape":[],"data_offsets":[2,10]},)"
                             R"("c":{"dtype":"F4","shape":[2,3],"data_offsets":[10,13]},)"
                             R"("d":{"dtype":"\u001bnew","shape":[1],"data_offsets":[13,29]},)"
                             R"("e":{"dtype":"I16","shape":[1],"data_offsets":[29,31]}})";
  tensors = read_safetensors(
      folder.write("other.safetensors", with_header(header, std::string(29, 'x') + "\xFF\xFF")));
  REQUIRE(tensors.size() == 5);
  for (std::size_t i = 0; i < 4; ++i)
    CHECK((tensors[i].values.empty() && !tensors[i].is_integer()));
  CHECK(tensors[0].unread == "F8_E4M3");
  CHECK(tensors[2].unread == "F4");
  CHECK(tensors[2].shape == std::vector<std::int64_t>{2, 3});
  CHECK(tensors[4].integers == std::vector<std::int64_t>{-1});
}

TEST_CASE("a header's length is not taken for another format's first bytes", "[safetensors]") {
  const TempFolder folder;
  std::string header = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  for (const std::size_t length : {0x0280U, 0x0480U, 0x4B50U, 0x7BU}) {  // \x80\2, \x80\4, PK, {
    header.resize(length, ' ');
    const std::string text = with_header(header, bytes_of({1.5F}));
    CHECK(read_safetensors(folder.write("w.safetensors", text)).at(0).values.at(0) == 1.5F);
  }
}

TEST_CASE("a folder or pipe is no tensor file, and not waited for", "[safetensors]") {
  const TempFolder folder;
  CHECK_THROWS_WITH(read_safetensors(folder.path), ContainsSubstring("Is a directory"));
  const std::string pipe = folder / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(read_safetensors(pipe), ContainsSubstring("pipe: cannot be read: it is no"));
}

TEST_CASE("a bad file is refused by name and fault", "[safetensors]") {
  test::check_transcript("tests/resnet/tensor_files.txt", answer_of);
  CHECK_THROWS_WITH(read_safetensors("/no/such.safetensors"),
                    ContainsSubstring("/no/such.safetensors"));
  CHECK_THROWS_AS(write_safetensors({"--save", "/sys/no/such/folder/x"}, {}), InconclusiveError);
}

TEST_CASE("metadata survive a safetensors file", "[safetensors]") {
  const TempFolder folder;
  const std::string file = folder / "metadata.safetensors";
  const Tensor tensor{"w", {2}, {1.0F, 2.0F}};
  write_safetensors({"--save", file}, {tensor});
  CHECK(read_safetensors_metadata(file) == Metadata{{"format", "pt"}});
  const std::string classes = R"(["cat","d\"o\"g"])";
  write_safetensors({"--save", file}, {tensor}, {{"classes", classes}, {"model", "resnet18"}});
  CHECK(read_safetensors_metadata(file) ==
        Metadata{{"classes", classes}, {"format", "pt"}, {"model", "resnet18"}});
  CHECK(read_safetensors(file).at(0).values == tensor.values);
  write_safetensors({"--save", file}, {tensor}, {{"classes", "caf\xE9"}});
  CHECK(read_safetensors_metadata(file).at("classes") == "caf\xEF\xBF\xBD");
  CHECK(read_safetensors_metadata(folder.write("none", with_header("{}", ""))).empty());
}

TEST_CASE("a network's state survives a file, and loads by torchvision's names", "[safetensors]") {
  const BackendKind kind = GENERATE(from_range(test::backends()));
  const auto device = test::open_device(kind);
  const auto stream = device->make_stream();
  const Buffer loss_scale(*device, sizeof(float));
  NetworkSettings settings;
  settings.architecture = find_architecture("resnet18");
  settings.batch_size = 2;
  settings.image_size = 32;
  settings.classes = 5;
  settings.tuning.autotune = false;
  const auto* on_device = static_cast<const float*>(loss_scale.data());
  Network first(settings, *device, *stream, on_device);
  test::initialise(first, 3);

  const TempFolder folder;
  const std::string file = folder / "state.safetensors";
  write_safetensors({"--save", file}, test::state(first));
  const auto tensors = read_safetensors(file);
  CHECK(tensors.size() == 62 + 3 * 20);

  Network second(settings, *device, *stream, on_device);
  test::initialise(second, 4);
  const LoadRemarks none = test::load(second, tensors, file);
  CHECK(none.seeded.empty());
  CHECK(none.ignored.empty());
  const auto a = test::state(first);
  const auto b = test::state(second);
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i].name == b[i].name);
    CHECK(a[i].values == b[i].values);
  }
  // He: standard deviation sqrt(2 / (64 * 9))
  double squares = 0;
  const std::vector<float>& w = a[3].values;
  REQUIRE(a[3].name == "layer1.0.conv1.weight");
  for (float v : w) squares += static_cast<double>(v) * v;
  CHECK(std::sqrt(squares / static_cast<double>(w.size())) ==
        Approx(std::sqrt(2.0 / 576)).epsilon(0.02));

  settings.classes = 7;
  Network other(settings, *device, *stream, on_device);
  test::initialise(other, 5);
  CHECK_THAT(test::load(other, tensors, file).seeded,
             ContainsSubstring("for 5 classes") && ContainsSubstring("seeded"));
  CHECK(test::state(other)[3].values == w);

  auto changed = tensors;
  changed.push_back({"fc.extra\n", {1}, {1.0F}});
  std::erase_if(changed, [](const Tensor& t) { return t.name == "bn1.num_batches_tracked"; });
  CHECK_THAT(test::load(second, changed, file).ignored,
             ContainsSubstring("1 tensor that resnet18 does not have") &&
                 ContainsSubstring(R"("fc.extra\n")"));
  const auto refused = [&](Tensor with, const char* why) {
    changed = tensors;
    for (Tensor& tensor : changed)
      if (tensor.name == with.name) tensor = with;
    CHECK_THROWS_WITH(test::load(second, changed, file),
                      ContainsSubstring(with.name) && ContainsSubstring(why));
  };
  const std::vector<std::int64_t> integers(64, 1);
  refused({"bn1.weight", {64}, {}, integers}, "integers");
  refused({"bn1.running_var", {64}, {}, integers}, "integers");
  refused({"bn1.weight", {64}, {}, {}, "F8_E4M3"}, "\"F8_E4M3\", which is not supported");
  refused({"layer1.0.bn2.num_batches_tracked", {2}, {}, {1, 2}}, "not one number");
  refused({"layer1.0.bn2.num_batches_tracked", {}, {}, {}, "C64"}, "not one number");

  // a count is any number, as load_state_dict takes it
  const auto count = [&](const std::vector<float>& values,
                         const std::vector<std::int64_t>& counted) {
    changed = tensors;
    for (Tensor& tensor : changed)
      if (tensor.name.ends_with("num_batches_tracked"))
        tensor = {tensor.name, {1}, values, counted};
    test::load(second, changed, file);
    return second.batches_tracked();
  };
  CHECK(count({}, {16777225}) == 16777225);  // which no float32 holds
  CHECK(test::state(second).back().name == "layer4.1.bn2.num_batches_tracked");
  CHECK(test::state(second).back().integers.at(0) == 16777225);
  CHECK(count({7.9F}, {}) == 7);
  for (const float none : {-1.0F, std::numeric_limits<float>::infinity(), std::nanf("")})
    CHECK(count({none}, {}) == 0);

  // what others wrap a network in
  changed = tensors;
  for (Tensor& tensor : changed)
    tensor.name =
        (tensor.name < "layer2" ? "module._orig_mod." : "_orig_mod.module.") + tensor.name;
  changed.push_back({"module.scale", {1}, {}, {}, "F8_E4M3"});
  CHECK_THAT(test::load(second, changed, file).ignored,
             ContainsSubstring("1 tensor that") && ContainsSubstring("\"module.scale\""));
  CHECK(test::state(second)[3].values == w);
  changed.push_back(tensors[3]);
  CHECK_THROWS_WITH(test::load(second, changed, file),
                    ContainsSubstring("\"layer1.0.conv1.weight\" is there twice"));

  // a backbone
  changed = tensors;
  std::erase_if(changed, [](const Tensor& t) { return t.name == "fc.bias"; });
  CHECK_THROWS_WITH(test::load(second, changed, file), ContainsSubstring("no tensor fc.bias"));
  std::erase_if(changed, [](const Tensor& t) { return t.name == "fc.weight"; });
  test::initialise(second, 4);
  const auto fresh = test::state(second);
  CHECK_THAT(test::load(second, changed, file).seeded, ContainsSubstring("no classifier"));
  for (const Tensor& tensor : test::state(second)) {
    const auto named = [&](const Tensor& t) { return t.name == tensor.name; };
    const auto& from = tensor.name.starts_with("fc.") ? fresh : tensors;
    CHECK(std::find_if(from.begin(), from.end(), named)->values == tensor.values);
  }

  settings.architecture = find_architecture("resnet34");
  Network deeper(settings, *device, *stream, on_device);
  CHECK_THROWS_WITH(test::load(deeper, tensors, file),
                    ContainsSubstring(file) && ContainsSubstring("no tensor layer1.2.conv1"));
  settings.architecture = find_architecture("resnet50");
  Network wider(settings, *device, *stream, on_device);
  CHECK_THROWS_WITH(test::load(wider, tensors, file), ContainsSubstring("layer1.0.conv1.weight"));
}

}  // namespace shakedown

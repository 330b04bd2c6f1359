// libFuzzer: packed files whose index has the right checksum, so that what it says is looked at.
#include <cstring>
#include <vector>

#include "common/hash.hpp"
#include "common/usage_error.hpp"
#include "tests/fuzz/memory_file.hpp"
#include "training/data/pack.hpp"

namespace shakedown::training {
namespace {

void set_checksum(std::vector<std::uint8_t>& file) {
  PackFooter footer;
  if (file.size() < sizeof footer) return;
  const std::size_t end = file.size() - sizeof footer;
  std::memcpy(&footer, file.data() + end, sizeof footer);
  if (footer.index_bytes > end) return;
  footer.index_checksum = xxh64({file.data() + end - footer.index_bytes, footer.index_bytes});
  std::memcpy(file.data() + end, &footer, sizeof footer);
}

void read_all(const std::string& path) {
  const PackSource source(path);
  source.listing_checksum();
  std::vector<std::uint8_t> bytes;
  InputTimes times;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source.classes().at(static_cast<std::size_t>(source.label(i))).size() > bytes.max_size())
      __builtin_trap();
    try {
      source.read(i, bytes, times);
    } catch (const UsageError&) {  // its own checksum
    }
  }
}

}  // namespace
}  // namespace shakedown::training

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shakedown;
  std::vector<std::uint8_t> content(data, data + size);
  training::set_checksum(content);
  const fuzz::MemoryFile file(content);
  try {
    training::read_all(file.path());
  } catch (const UsageError&) {
  }
  return 0;
}

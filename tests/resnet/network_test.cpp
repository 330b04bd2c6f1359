// The tables of names, shapes and bytes that users and PyTorch know.
#include "resnet/network.hpp"
#include "common/error.hpp"

#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "training/exchange/buckets.hpp"

namespace shakedown {

using namespace training;

namespace {

ParameterTable table_of(const char* model, int classes = 1000, int stem_channels = 3) {
  return {layers_of(find_architecture(model)), classes, stem_channels};
}

std::vector<std::size_t> bucket_bytes(const char* model, double cap_mib,
                                      SmallBucket small = SmallBucket::first) {
  const ParameterTable table = table_of(model);
  std::vector<std::size_t> bytes;
  for (const Range& bucket : ddp_buckets(table, 1, cap_mib, small))
    bytes.push_back(table.payload_in(bucket) * sizeof(float));
  return bytes;
}

}  // namespace

TEST_CASE("parameters are torchvision's in number, name, shape and order", "[network]") {
  // counts published with torchvision's weights
  const auto [name, tensors, count] =
      GENERATE(table<const char*, std::size_t, std::size_t>({{"resnet18", 62, 11689512},
                                                             {"resnet34", 110, 21797672},
                                                             {"resnet50", 161, 25557032},
                                                             {"resnet101", 314, 44549160},
                                                             {"resnet152", 467, 60192808}}));
  const ParameterTable table = table_of(name);
  CHECK(table.parameters().size() == tensors);
  CHECK(table.payload_count() == count);
  CHECK(table.parameters().front().name == "conv1.weight");
  CHECK(table.parameters().front().shape == std::vector<std::int64_t>{64, 3, 7, 7});
  CHECK(table.parameters().back().name == "fc.bias");

  // the flat buffer runs in the reverse order, without overlap
  std::size_t end = 0;
  for (std::size_t i = table.parameters().size(); i-- > 0;) {
    const Parameter& p = table.parameters()[i];
    CHECK(p.offset >= end);
    CHECK(p.offset % kFlatAlignment == 0);
    end = p.offset + p.stored;
  }
  CHECK(end <= table.stored_count());

  // the blocks' ranges tile the buffer from its end, the stem's, to its start, the head's
  std::size_t next = table.stored_count();
  for (int block = 0; block < table.blocks(); ++block) {
    CHECK(table.block_range(block).end == next);
    next = table.block_range(block).begin;
  }
  CHECK(next == 0);
}

TEST_CASE("a padded stem changes the storage and nothing that is published", "[network]") {
  const ParameterTable plain = table_of("resnet50");
  const ParameterTable padded = table_of("resnet50", 1000, 4);
  CHECK(padded.payload_count() == plain.payload_count());
  CHECK(padded.parameters()[0].count == 64 * 3 * 49);
  CHECK(padded.parameters()[0].stored == 64 * 4 * 49);
}

TEST_CASE("an unknown model is named with the known ones", "[network]") {
  CHECK_THROWS_WITH(
      find_architecture("resnet20"),
      ContainsSubstring("resnet20") && Catch::Matchers::EndsWith("resnet101, resnet152"));
  CHECK(table_of("tiny", 10).payload_count() == 314954);  // as tests/programs has it
}

TEST_CASE("buckets are PyTorch's", "[buckets]") {
  using Bytes = std::vector<std::size_t>;
  // logged by PyTorch itself (pytorch/pytorch#48880)
  CHECK(bucket_bytes("resnet18", 25) == Bytes{2052000, 28852224, 15853824});
  CHECK(bucket_bytes("resnet18", 35) == Bytes{2052000, 38297600, 6408448});
  CHECK(bucket_bytes("resnet50", 25) == Bytes{8196000, 31502336, 26255360, 26550272, 9724160});
  CHECK(bucket_bytes("resnet101", 25).size() == 8);
  CHECK(bucket_bytes("resnet152", 25).size() == 10);
  CHECK(bucket_bytes("resnet18", 0).size() == 61);  // fc's two stay together, under the first cap
}

TEST_CASE("the small bucket at the other end", "[buckets]") {
  using Bytes = std::vector<std::size_t>;
  const auto small_last = [](const char* model) {
    return bucket_bytes(model, 25, SmallBucket::last);
  };
  // added up from torchvision's shapes, from the stem on
  CHECK(small_last("resnet18") == Bytes{11497376, 33744896, 1515776});
  CHECK(small_last("resnet50") == Bytes{12410784, 31502336, 29669376, 27022336, 1623296});
}

TEST_CASE("buckets tile the flat buffer and complete in order", "[buckets]") {
  const ParameterTable table = table_of("resnet50");
  BucketProgress progress(
      ddp_buckets(table, 1, 25, GENERATE(SmallBucket::first, SmallBucket::last)));
  std::size_t next = 0;
  for (const Range& bucket : progress.buckets()) {
    CHECK(bucket.begin == next);
    next = bucket.end;
  }
  CHECK(next == table.stored_count());

  for (int round = 0; round < 2; ++round) {
    std::vector<Range> seen;
    std::size_t finished = 0;
    for (int block = table.blocks() - 1; block >= 0; --block) {
      finished = table.block_range(block).end;
      for (const Range& bucket : progress.finished(table.block_range(block))) {
        CHECK(bucket.end <= finished);
        seen.push_back(bucket);
      }
    }
    CHECK(seen == progress.buckets());
    progress.restart();
  }
  CHECK_THROWS_AS(progress.finished(table.block_range(0)), InternalError);
}

TEST_CASE("FLOP counts are those of the papers", "[network]") {
  // He et al. 2016, table 1, and torchvision: multiply-adds at 224 x 224, in 10^9
  const auto [name, giga] = GENERATE(table<const char*, double>(
      {{"resnet18", 1.814}, {"resnet50", 4.089}, {"resnet101", 7.801}, {"resnet152", 11.514}}));
  const FlopCount flop = flop_per_image(layers_of(find_architecture(name)), 224, 1000);
  CHECK(flop.forward / 2e9 == Approx(giga).epsilon(0.001));
  CHECK(flop.training < 3 * flop.forward);
  CHECK(flop.training > 2.9 * flop.forward);
}

}  // namespace shakedown

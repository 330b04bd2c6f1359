// The tables of names, shapes and bytes that users and PyTorch know; plans of memory and of cuDNN.
#include "resnet/network.hpp"

#include "common/error.hpp"
#include "resnet/architecture.hpp"
#include "resnet/memory_plan.hpp"
#include "resnet/plan_cache.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/files.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown {
namespace {

using namespace training;

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

constexpr const char* kBuild = "build";

/// A file in a directory that is yet to be made; both are gone in the end.
struct CacheFolder : test::TempFolder {
  std::string file() const { return *this / "shakedown/plans.json"; }
};

void keep(const CacheFolder& place, const std::string& machine, const std::string& convolution,
          const std::string& plan) {
  PlanCache cache(place.file(), machine, kBuild);
  cache.keep(convolution, plan);
  REQUIRE(cache.save());
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

TEST_CASE("slots that live together never share a byte", "[plan]") {
  Random random(GENERATE(range(1, 20)));
  MemoryPlan plan;
  struct Life {
    const Slot* slot;
    int first, last;
  };
  std::vector<Life> lives;
  for (int i = 0; i < 120; ++i) {
    const int first = static_cast<int>(random.below(60));
    const int last = first + static_cast<int>(random.below(20));
    lives.push_back({plan.reserve("slot", random.below(100000), first, last), first, last});
  }
  plan.place();
  std::vector<std::byte> memory(plan.bytes() + MemoryPlan::kAlignment);
  plan.bind(memory.data());
  for (const Life& a : lives) {
    const auto* begin = static_cast<const std::byte*>(a.slot->data());
    REQUIRE((begin - memory.data()) % static_cast<std::ptrdiff_t>(MemoryPlan::kAlignment) == 0);
    REQUIRE(begin + a.slot->bytes() <= memory.data() + plan.bytes());
    for (const Life& b : lives) {
      if (a.slot == b.slot || a.last < b.first || b.last < a.first) continue;
      const auto* other = static_cast<const std::byte*>(b.slot->data());
      const bool disjoint = begin + a.slot->bytes() <= other || other + b.slot->bytes() <= begin;
      REQUIRE(disjoint);
    }
  }
  CHECK(plan.bytes() >= plan.lower_bound());
  CHECK(static_cast<double>(plan.bytes()) < 1.5 * static_cast<double>(plan.lower_bound()));
}

TEST_CASE("plans are found again by the same build on the same kind of machine", "[plans]") {
  const CacheFolder place;
  const auto found = [&](const char* plan, const char* machine, const char* build = kBuild) {
    return PlanCache(place.file(), machine, build).find(plan).value_or("nothing");
  };
  PlanCache slow(place.file(), "H200, cuDNN 9", kBuild);
  keep(place, "H200, cuDNN 9", "conv a", "engine 1");
  keep(place, "A100", "conv a", "engine 2");
  slow.keep("conv b", "");  // known to be not worth it
  REQUIRE(slow.save());     // and what others kept meanwhile is not lost
  CHECK(found("conv a", "H200, cuDNN 9") == "engine 1");
  CHECK(found("conv b", "H200, cuDNN 9") == "");
  CHECK(found("conv c", "H200, cuDNN 9") == "nothing");
  CHECK(found("conv a", "A100") == "engine 2");
  CHECK(found("conv a", "H200, cuDNN 10") == "nothing");
  CHECK(found("conv a", "H200, cuDNN 9", "another") == "nothing");
}

TEST_CASE("a corrupt file of plans is ignored and replaced", "[plans]") {
  const CacheFolder place;
  keep(place, "machine", "conv a", "engine 1");
  const std::string whole = test::content_of(place.file());
  for (const std::string& text :
       {std::string(), whole.substr(0, whole.size() / 2), std::string("[1, 2]"),
        std::string("{\"machine\": 3}"), std::string("{\"machine\": {\"plans\": 3}}")}) {
    CAPTURE(text);
    place.write("shakedown/plans.json", text);
    CHECK_FALSE(PlanCache(place.file(), "machine", kBuild).find("conv a"));
    keep(place, "machine", "conv a", "engine 1");
    CHECK(PlanCache(place.file(), "machine", kBuild).find("conv a") == "engine 1");
  }
}

TEST_CASE("a cache that cannot be written, or has no file, is no error", "[plans]") {
  PlanCache nowhere("/proc/nowhere/plans.json", "machine", kBuild);
  nowhere.keep("conv a", "engine 1");
  CHECK(nowhere.find("conv a") == "engine 1");
  CHECK_FALSE(nowhere.save());
  PlanCache none("", "machine", kBuild);
  none.keep("conv a", "engine 1");
  CHECK(none.save());
}

TEST_CASE("a fused kernel is preferred unless it is clearly slower", "[plan_cache]") {
  const std::vector<double> unfused{1.00, 1.01, 0.99, 1.02, 0.98};
  const auto prefers = [&](std::vector<double> fused) { return prefers_fused(fused, unfused); };
  CHECK(prefers({0.90, 0.91, 0.89, 0.92, 0.88}));
  CHECK(prefers({1.03, 1.02, 1.04, 1.03, 1.05}));
  CHECK_FALSE(prefers({1.06, 1.05, 1.07, 1.06, 1.04}));
  // one lucky or unlucky run decides nothing
  CHECK_FALSE(prefers({1.06, 0.50, 1.07, 1.06, 1.08}));
  CHECK(prefers({1.00, 1.01, 9.99, 1.02, 0.98}));
}

// The index arithmetic of compact gradients (resnet/even_pixels.hpp).

TEST_CASE("division by a known number is exact below 2^31", "[even-pixels]") {
  std::vector<std::uint32_t> divisors;
  for (std::uint32_t d = 1; d <= 300; ++d) divisors.push_back(d);
  for (std::uint32_t d : {1023U, 1024U, 1025U, 8191U, 8192U, (1U << 30) - 1, 1U << 30, 1U << 31})
    divisors.push_back(d);
  bool exact = true;
  for (const std::uint32_t d : divisors) {
    const Divisor divisor(d);
    for (std::uint64_t base : {std::uint64_t{0}, std::uint64_t{1} << 20, std::uint64_t{1} << 31})
      for (std::uint64_t multiple = base / d; multiple < base / d + 50; ++multiple)
        for (std::int64_t offset = -2; offset <= 2; ++offset) {
          const std::int64_t n = static_cast<std::int64_t>(multiple * d) + offset;
          if (n < 0 || n >= std::int64_t{1} << 31) continue;
          const auto numerator = static_cast<std::uint32_t>(n);
          exact = exact && divisor.quotient(numerator) == numerator / d;
        }
  }
  CHECK(exact);
  CHECK(Divisor(56).quotient((1U << 31) - 1) == ((1U << 31) - 1) / 56);
}

TEST_CASE("even pixels are numbered as they lie in memory, the others are none", "[even-pixels]") {
  const int height = GENERATE(1, 2, 5, 7, 8);
  const int width = GENERATE(1, 2, 5, 7, 8);
  CAPTURE(height, width);
  const EvenPixels pixels({3, 64, height, width});
  std::uint32_t pixel = 0;
  std::uint32_t even = 0;
  for (int n = 0; n < 3; ++n)
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < width; ++x)
        REQUIRE(pixels.of(pixel++) == (x % 2 == 0 && y % 2 == 0 ? even++ : EvenPixels::kNone));
  const ActivationShape compact = strided({3, 64, height, width}, 2);
  CHECK(even == static_cast<std::uint32_t>(compact.n * compact.h * compact.w));
}

}  // namespace shakedown

// The exchange over peer memory, with the ranks of one process: each has its buffers and its stream
// on the one device. Averages are compared with sums in double, the update with the kernel that
// updates one rank's weights alone.
#include <cmath>
#include <cstring>
#include <limits>

#include "common/communicator.hpp"
#include "common/gpu/peer_kernels.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "training/exchange/strategy.hpp"
#include "training/step/update_kernels.hpp"

namespace shakedown::training {
namespace {

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kMinute_ns = 60'000'000'000U;

/// The words and streams of ranks that are peers within this process.
struct Ranks {
  Ranks(Device& device, int count, std::uint64_t timeout_ns) : device(device), count(count) {
    gpu::PeerTable table{};
    table.ranks = count;
    table.timeout_ns = timeout_ns;
    for (int r = 0; r < count; ++r) {
      streams.push_back(device.make_stream());
      words.emplace_back(device, sizeof(gpu::PeerWords));
      device.zero(words.back().data(), words.back().bytes(), *streams.back());
      streams.back()->synchronize();
      table.words[r] = static_cast<gpu::PeerWords*>(words.back().data());
      states.emplace_back(device, sizeof(gpu::PeerStatus), Place::host);
      std::memset(states.back().data(), 0, states.back().bytes());
    }
    for (int r = 0; r < count; ++r) {
      table.rank = r;
      table.status = static_cast<gpu::PeerStatus*>(states[r].data());
      tables.push_back(table);
    }
  }
  Stream& stream(int rank) { return *streams[rank]; }
  const gpu::PeerTable& table(int rank) { return tables[rank]; }
  void meet(int rank, std::int32_t* flag = nullptr) {
    gpu::launch_meet(table(rank), flag, stream(rank));
  }
  void synchronize() {
    for (auto& stream : streams) stream->synchronize();
  }

  Device& device;
  int count;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<Buffer> words;
  std::vector<Buffer> states;
  std::vector<gpu::PeerTable> tables;
};

/// One rank's part of a training.
struct Model {
  Model(Device& device, Stream& stream, std::size_t count, DataType type, int rank)
      : stream(stream),
        kernels(device.kernels()),
        type(type),
        gradients(device, count * size_of(type)),
        compute(device, count * size_of(type)),
        master(test::to_device(device, stream, test::random_values(count, 1))),
        momentum(test::to_device(device, stream, test::random_values(count, 2))),
        scalars(device, sizeof(StepScalars)) {
    StepScalars values;
    values.learning_rate = 0.1F;
    values.loss_scale = 4;
    upload<StepScalars>(device, stream, scalars.data(), std::span(&values, 1));
    set_gradients(device, test::random_values(count, static_cast<std::uint64_t>(10 + rank)));
    kernels.convert(master.view(DataType::float32), compute.view(type), stream);
    stream.synchronize();
  }
  void set_gradients(Device& device, const std::vector<float>& values) {
    const Buffer floats = test::to_device(device, stream, values);
    kernels.convert(floats.view(DataType::float32), gradients.view(type), stream);
    stream.synchronize();
  }
  /// In float32, as they are stored.
  std::vector<float> floats(Device& device, const Buffer& buffer) {
    const Buffer wide(device, buffer.bytes() / size_of(type) * sizeof(float));
    kernels.convert(buffer.view(type), wide.view(DataType::float32), stream);
    return download<float>(device, stream, wide.data(), wide.bytes() / sizeof(float));
  }
  UpdateRange range(Range shard) {
    UpdateRange range;
    range.master = static_cast<float*>(master.data()) + shard.begin;
    range.compute = compute.view(type).slice(shard.begin, shard.count()).data;
    range.compute_type = range.gradient_type = type;
    range.gradient = gradients.view(type).slice(shard.begin, shard.count()).data;
    range.state_a = static_cast<float*>(momentum.data()) + shard.begin;
    range.count = shard.count();
    return range;
  }
  StepScalars* on_device() { return static_cast<StepScalars*>(scalars.data()); }

  Stream& stream;
  const Kernels& kernels;
  DataType type;
  Buffer gradients, compute, master, momentum, scalars;
};

constexpr UpdateRule kSgd{UpdateRule::sgd, {0.9F, 1e-2F, false}};

struct Job {
  Job(Device& device, int count, DataType type)
      : device(device),
        ranks(device, count, kMinute_ns),
        kernels(make_update_kernels(device)),
        elements(kFlatAlignment * 6007) {  // some tiles, and no whole number of them
    for (int r = 0; r < count; ++r)
      models.push_back(std::make_unique<Model>(device, ranks.stream(r), elements, type, r));
  }
  Range shard(int rank) const { return shard_of({0, elements}, rank, ranks.count); }

  /// What `--strategy peer` enqueues on a rank.
  void enqueue(int rank) {
    Model& own = *models[rank];
    const Range part = shard(rank);
    gpu::PeerPlaces from{};
    UpdateRange range = own.range(part);
    for (int i = 0; i < ranks.count; ++i) {
      Model& other = *models[(rank + i) % ranks.count];
      from.at[i] = other.gradients.view(other.type).slice(part.begin, part.count()).data;
      if (i > 0)
        range.copies[range.copy_count++] =
            other.compute.view(other.type).slice(part.begin, part.count()).data;
    }
    ranks.meet(rank);
    gpu::launch_average(ranks.table(rank), from,
                        own.gradients.view(own.type).slice(part.begin, part.count()),
                        &own.on_device()->finite, own.stream);
    ranks.meet(rank, &own.on_device()->finite);
    kernels->update(range, kSgd, own.on_device(), own.stream);
    ranks.meet(rank);
  }
  void step() {
    for (int r = 0; r < ranks.count; ++r) enqueue(r);
    ranks.synchronize();
  }

  Device& device;
  Ranks ranks;
  std::unique_ptr<UpdateKernels> kernels;
  std::size_t elements;
  std::vector<std::unique_ptr<Model>> models;
};

/// CUDA loads a kernel when it is first launched, which may wait for those that run.
void load_kernels(Device& device, DataType type) {
  Job job(device, 1, type);
  job.step();
  Model& own = *job.models[0];
  UpdateRange range = own.range(job.shard(0));
  range.copies[range.copy_count++] = own.compute.data();
  job.kernels->update(range, kSgd, own.on_device(), own.stream);
  job.ranks.synchronize();
}

double eps_of(DataType type) {
  return type == DataType::float32 ? 0x1p-23 : type == DataType::float16 ? 0x1p-11 : 0x1p-8;
}

}  // namespace

GPU_TEST_CASE("peers average their gradients, update their shards and have all weights",
              "[peers]") {
  const auto type = GENERATE(DataType::float32, DataType::float16, DataType::bfloat16);
  const int count = GENERATE(1, 2, 4);
  CAPTURE(name_of(type), count);
  const auto device = test::open_device(BackendKind::gpu);
  load_kernels(*device, type);
  Job job(*device, count, type);
  Job serial(*device, 1, type);
  Model& alone = *serial.models[0];
  for (int step = 0; step < 3; ++step) {  // each parity of the meetings' words, and again
    std::vector<double> mean(job.elements, 0);
    for (int r = 0; r < count; ++r) {
      Model& model = *job.models[r];
      model.set_gradients(
          *device, test::random_values(job.elements, static_cast<std::uint64_t>(100 * step + r)));
      const auto values = model.floats(*device, model.gradients);
      for (std::size_t i = 0; i < values.size(); ++i)
        mean[i] += values[i] / static_cast<double>(count);
    }
    job.step();

    std::vector<float> averaged(job.elements);
    for (int r = 0; r < count; ++r) {
      Model& model = *job.models[r];
      const auto values = model.floats(*device, model.gradients);
      const Range shard = job.shard(r);
      std::copy(values.begin() + shard.begin, values.begin() + shard.end,
                averaged.begin() + shard.begin);
    }
    std::size_t wrong = 0;  // sums of values below 1, then one rounding
    for (std::size_t i = 0; i < mean.size(); ++i)
      wrong += std::abs(averaged[i] - mean[i]) > eps_of(type) * std::abs(mean[i]) + 0x1p-22;
    CHECK(wrong == 0);

    alone.set_gradients(*device, averaged);
    serial.kernels->update(alone.range({0, job.elements}), kSgd, alone.on_device(), alone.stream);
    const auto weights = alone.floats(*device, alone.compute);
    const auto master = download<float>(*device, alone.stream, alone.master.data(), job.elements);
    for (int r = 0; r < count; ++r) {
      Model& model = *job.models[r];
      CHECK(model.floats(*device, model.compute) == weights);
      const auto own = download<float>(*device, model.stream, model.master.data(), job.elements);
      const Range shard = job.shard(r);
      CHECK(std::equal(own.begin() + shard.begin, own.begin() + shard.end,
                       master.begin() + shard.begin));
    }
  }
}

GPU_TEST_CASE("vectors are pushed by their owners", "[peers][sanitize]") {
  const auto device = test::open_device(BackendKind::gpu);
  Ranks ranks(*device, 2, kMinute_ns);
  std::vector<Buffer> vectors;
  std::vector<Buffer> masters;
  std::vector<Buffer> sources;
  gpu::PeerPlaces to{};
  for (int r = 0; r < 2; ++r) {
    vectors.push_back(
        test::to_device(*device, ranks.stream(r), std::vector<float>(3 * kFlatAlignment, -1.0F)));
    masters.push_back(
        test::to_device(*device, ranks.stream(r), test::random_values(5 * kFlatAlignment, 7 + r)));
    const std::vector<std::int64_t> of =
        r == 0 ? std::vector<std::int64_t>{4, -1, -1} : std::vector<std::int64_t>{-1, 0, 3};
    sources.push_back(test::to_device(*device, ranks.stream(r), of));
    to.at[r] = vectors.back().data();
  }
  for (int r = 0; r < 2; ++r) {
    const auto i = static_cast<std::size_t>(r);
    gpu::launch_push_chunks(ranks.table(r), to, 3, static_cast<const float*>(masters[i].data()),
                            static_cast<const std::int64_t*>(sources[i].data()), ranks.stream(r));
  }
  ranks.synchronize();
  std::vector<float> wanted;
  for (const auto& [rank, chunk] : {std::pair{0, 4}, {1, 0}, {1, 3}}) {
    const auto from = test::random_values(5 * kFlatAlignment, 7 + static_cast<unsigned>(rank));
    wanted.insert(wanted.end(), from.begin() + chunk * static_cast<int>(kFlatAlignment),
                  from.begin() + (chunk + 1) * static_cast<int>(kFlatAlignment));
  }
  for (int r = 0; r < 2; ++r)
    CHECK(download<float>(*device, ranks.stream(r), vectors[r].data(), wanted.size()) == wanted);
}

GPU_TEST_CASE("a rank that does not come stops its peers, and the device is free", "[peers]") {
  const bool by_host = GENERATE(false, true);  // else by the time-out
  const auto device = test::open_device(BackendKind::gpu);
  Ranks ranks(*device, 3, by_host ? kNever : 1'000'000'000U);
  const Buffer flags = test::to_device<std::int32_t>(*device, ranks.stream(0), {1, 1});
  for (int r : {0, 1}) {
    ranks.meet(r, static_cast<std::int32_t*>(flags.data()) + r);
    ranks.meet(r);  // and nothing waits again
  }
  const auto status = [&](int r) -> volatile gpu::PeerStatus& { return *ranks.table(r).status; };
  if (by_host)
    for (int r : {0, 1}) status(r).aborted = 1;
  ranks.synchronize();
  for (int r : {0, 1}) {
    if (by_host)
      CHECK(status(r).missing > 0);  // its kernels may have come later than the host
    else
      CHECK(status(r).missing == 1 + 2);
  }
  CHECK(download<std::int32_t>(*device, ranks.stream(0), flags.data(), 2) ==
        std::vector<std::int32_t>{0, 0});

  // what follows does nothing, for rank 2 is gone
  const Buffer own = test::to_device(*device, ranks.stream(0), std::vector<float>(64, 3.0F));
  gpu::PeerPlaces from{};
  for (int i = 0; i < 3; ++i) from.at[i] = own.data();
  gpu::launch_average(ranks.table(0), from, own.view(DataType::float32), nullptr, ranks.stream(0));
  CHECK(download<float>(*device, ranks.stream(0), own.data(), 64) == std::vector<float>(64, 3.0F));
}

GPU_TEST_CASE("one rank alone is its own peer, in graphs too", "[peers][sanitize]") {
  const auto device = test::open_device(BackendKind::gpu);
  const auto host = make_mpi_communicator(test::session(), *device);
  const auto stream = device->make_stream();
  const auto peers = gpu::make_peers(*host, *device, 10);
  const Buffer mine = test::to_device(*device, *stream, std::vector<float>(128, 2.0F));
  const auto mapped = peers->map(mine.view(DataType::float32));
  REQUIRE(mapped->views().size() == 1);
  CHECK(mapped->views()[0].data == mine.data());
  const Buffer flag = test::to_device<std::int32_t>(*device, *stream, {7});
  const auto meet = [&] {
    peers->meet(*stream);
    peers->average(mapped->views(), mine.view(DataType::float32),
                   static_cast<std::int32_t*>(flag.data()), *stream);
    peers->agree(static_cast<std::int32_t*>(flag.data()), *stream);
  };
  meet();
  const auto graph = device->capture(*stream, meet);
  for (int i = 0; i < 3; ++i) graph->launch(*stream);
  CHECK(download<std::int32_t>(*device, *stream, flag.data(), 1)[0] == 1);
  CHECK(download<float>(*device, *stream, mine.data(), 128) == std::vector<float>(128, 2.0F));
  CHECK_NOTHROW(peers->check());
}

}  // namespace shakedown::training

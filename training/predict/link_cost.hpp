// The cost of an exchange: a latency per message and a time per byte.
#pragma once

#include <span>
#include <vector>

namespace shakedown::training {

/// Hockney's model of a message, alpha + bytes / bandwidth (Hockney 1994). Bandwidth is that of
/// one direction of a rank's link, and may be infinite.
struct LinkCost {
  double alpha_s = 0;
  double bytes_per_s = 0;
};

/// How often an exchange pays the latency, and how many times its bytes cross the busiest link,
/// one after the other: t = messages * alpha + volume * bytes / bandwidth.
struct Exchange {
  double messages = 0;
  double volume = 0;
};

/// 2(N-1) messages of bytes/N (Thakur, Rabenseifner & Gropp 2005; Patarasuk & Yuan 2009: no
/// all-reduce sends less). Another algorithm's alpha comes out of a fit in these units, so that
/// carrying it over to another world size assumes a ring.
Exchange ring_all_reduce(int world_size);
/// Half of it: a reduce-scatter or an all-gather of `bytes` over all ranks together. Also where
/// each rank sends every other one its shard of `bytes`.
Exchange ring_pass(int world_size);
/// One rank sends `bytes` to each of `workers`, or receives as much from each: its own link is what
/// all of it passes.
Exchange star_pass(int workers);
/// One rank's `bytes` are passed on from rank to rank, in pieces that follow one another.
Exchange chain_pass(int world_size);

/// An exchange over a link, as a function of its size. Nothing is sent for no bytes, as MPI and
/// NCCL do.
struct ExchangeTime {
  double latency_ms = 0;
  double ms_per_byte = 0;
  double ms(double bytes) const { return bytes > 0 ? latency_ms + ms_per_byte * bytes : 0; }
};
/// `bytes_factor` is what is sent for every byte counted: 0.5 where float32 travels as float16.
ExchangeTime time_of(const Exchange& exchange, const LinkCost& link, double bytes_factor = 1);

struct TransferPoint {
  double bytes = 0;
  double seconds = 0;
};

struct LinkFit {
  LinkCost link;
  double worst_error = 0;  // at a measured size, a share of its time
};
/// The link on which `exchange` takes the measured times: medians of the slopes between all pairs
/// of points, and of what remains of each point, so that one bad point moves nothing (Theil 1950,
/// Sen 1968); neither negative, and a time that does not grow with the size is an infinite
/// bandwidth. Measure at the sizes to be predicted: two parameters do not follow a library's
/// changes of protocol. Throws UsageError where there is but one size, or one rank, which exchanges
/// nothing; InternalError for a time of no bytes.
LinkFit fit_link(const Exchange& exchange, std::span<const TransferPoint> points);

}  // namespace shakedown::training

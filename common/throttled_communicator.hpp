// Operations slowed down to a given rate, on the stream: on a fast node one sees what a slow
// network would make of an exchange.
#pragma once

#include <memory>

#include "common/communicator.hpp"

namespace shakedown {

/// Forwards every operation to `fast`. Each rank behaves as if connected by one full-duplex link of
/// `gbs` (1e9 bytes/s each way), which it shares with all communicators split from this one:
///
/// - An operation starts after what this rank sends in it over the rate, and what it receives over
///   the rate, as Traffic counts them; so nobody has finished before the rank that moves most could
///   have. Operations of a group, on one stream, count together. What the operation itself takes on
///   the fast transport comes on top.
/// - Operations that streams have under way at the same time share the rate.
/// - The host waits no more than without: a GPU spins with one thread before the operation.
///
/// `device` must outlive it.
std::unique_ptr<Communicator> make_throttled_communicator(std::unique_ptr<Communicator> fast,
                                                          Device& device, double gbs);

}  // namespace shakedown

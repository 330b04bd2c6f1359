// The network, its memory plan and its buckets, for people.
#pragma once

#include <string>
#include <vector>

#include "common/error.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

/// Prints it, per image and for one rank. Needs nothing allocated.
ExitCode describe(const Engine& engine, const MpiSession& session);

/// "8 ranks on 2 nodes (n1, n2)", of each rank's host.
std::string text_of_ranks(const std::vector<std::string>& hosts);

/// "on 8 ranks on 2 nodes (n1, n2), gpu (mpi), NVIDIA H200".
std::string text_of_machine(const Backend& backend, const std::vector<std::string>& hosts);

/// What runs, on what, with which batch; and why steps are not graphs where they could be.
std::string headline(const Engine& engine, const Backend& backend,
                     const std::vector<std::string>& hosts, const std::string& data);

/// The fusions found fastest, and the remarks of starting from a file; after Engine::allocate().
std::string text_of_start(const Engine& engine);

}  // namespace shakedown::training

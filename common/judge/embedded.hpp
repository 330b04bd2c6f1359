// The files of results/reference that the programs carry: the Makefile writes embedded.cpp in
// BUILD.
#pragma once

#include <map>
#include <string>

namespace shakedown::judge {

/// Name ("limits.json") and text of each.
std::map<std::string, std::string> embedded_files();

}  // namespace shakedown::judge

#include <fmt/format.h>

#include <dnnl.hpp>

#include "common/backend.hpp"

namespace shakedown::cpu {

std::vector<LibraryVersion> library_versions() {
  const dnnl_version_t* running = dnnl_version();
  return {{"onednn",
           fmt::format("{}.{}.{}", DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH),
           fmt::format("{}.{}.{}", running->major, running->minor, running->patch)}};
}

}  // namespace shakedown::cpu

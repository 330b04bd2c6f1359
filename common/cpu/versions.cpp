#include <fmt/format.h>

#include <dnnl.hpp>

#include "common/backend.hpp"

namespace shakedown::cpu {

std::vector<Library> libraries() {
  return {{"onednn", fmt::format("libdnnl.so.{}", DNNL_VERSION_MAJOR), "dnnl_version",
           fmt::format("{}.{}.{}", DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH),
           [](void* function) {
             const auto* v = reinterpret_cast<decltype(dnnl_version)*>(function)();
             return fmt::format("{}.{}.{}", v->major, v->minor, v->patch);
           }}};
}

}  // namespace shakedown::cpu

#include "common/nvml_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

namespace shakedown::nvml {

std::string Library::words_of(int status) const {
  const char* text = error_text.address == nullptr ? nullptr : error_text.address(status);
  return text == nullptr ? fmt::format("error {}", status) : text;
}

std::string library_name() {
  const char* const name = std::getenv("SHAKEDOWN_NVML_LIBRARY");
  return name == nullptr ? "libnvidia-ml.so.1" : name;
}

FindFunction open_library(const std::string& name, std::string& problem) {
  void* const opened = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (opened == nullptr) {
    const char* const reason = dlerror();
    problem = reason == nullptr ? name + ": cannot be opened" : reason;
    return nullptr;
  }
  return [opened](const char* function) { return dlsym(opened, function); };
}

}  // namespace shakedown::nvml

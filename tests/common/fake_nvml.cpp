// A shared library in NVML's place: it knows one GPU and answers few of the calls.
#include <cstring>

extern "C" {
int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  std::strncpy(text, "999.1", length);
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  static int gpu;
  *device = &gpu;
  return std::strcmp(uuid, "GPU-1") == 0 ? 0 : 6;  // NVML_ERROR_NOT_FOUND
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) { return *milliwatts = 250000, 0; }
}

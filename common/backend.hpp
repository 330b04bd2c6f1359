// Chooses and opens the backend: the device of this rank and the communicator of all ranks.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/communicator.hpp"
#include "common/device.hpp"
#include "common/placement.hpp"

namespace shakedown {

class MpiSession;
class OptionSet;

struct BackendOptions {
  std::string backend = "auto";
  double timeout_s = 300;
  double throttle_gbs = 0;                  // of the world's operations; 0: as fast as they go
  int ctas = 0;                             // CTAs per NCCL kernel; 0: NCCL's default
  const char* ctas_option = "--comm-ctas";  // the program's first name of it
  int cpu_threads = 0;                      // of a rank on the cpu backend; 0: see choose_threads
  std::string mpi_algorithm = "own";        // of communicators over MPI: a name of MpiAlgorithm
};
/// All but throttle, blocks and algorithm, which programs declare where it is said how they
/// exchange.
void declare_options(OptionSet& options, BackendOptions& values);

struct Backend {
  BackendKind kind = BackendKind::cpu;
  std::string remark;  // what was chosen and what the user may want to know of it, for people
  int cores = 1;       // this rank's fair share of those of its host
  std::shared_ptr<Device> device;                  // of this rank, in whichever part it works
  double throttle_gbs = 0;                         // of the world, see ThrottledCommunicator
  int ctas = 0;                                    // of the world, as BackendOptions has them
  const MpiSession* session = nullptr;             // of the ranks that the communicators connect
  MpiAlgorithm mpi_algorithm = MpiAlgorithm::own;  // of communicators over MPI
  std::unique_ptr<Communicator> world;             // NCCL on gpu, MPI on cpu
  double world_bytes = 0;                          // of device memory that it took at its start
  std::unique_ptr<Communicator> host;              // MPI, for small values in host memory
};

/// Collective. Throws UsageError when the ranks and the GPUs do not fit together.
Backend open_backend(const BackendOptions& options, MpiSession& session);
/// Of --timeout: for a program that opens no backend.
void set_timeout(MpiSession& session, const BackendOptions& options);

/// `whole` for a part of its ranks, by a session split from the whole's: the same device, and
/// communicators of the part. Collective in the part.
Backend open_backend(const Backend& whole, const MpiSession& part);

/// A library of a backend, of which programs link what they use.
struct Library {
  const char* name;      // "cudnn"
  std::string file;      // "libcudnn.so.9"
  const char* function;  // that returns its version
  std::string built;     // the version of its headers
  std::string (*running)(void* function);
};

struct LibraryVersion {
  std::string name, built, running;
};
/// Of the libraries that this process has loaded; with `load` of all, which takes a tenth of a
/// second, and `running` is empty of one that is not there.
std::vector<LibraryVersion> library_versions(BackendKind kind, bool load = false);
/// {"nccl": "2.28.9"}: of these libraries the versions that run, of those that are loaded.
std::map<std::string, std::string> versions_of(BackendKind kind,
                                               std::initializer_list<std::string> libraries);

// The two backends; the one that was not built throws UsageError "built without ...".
namespace cpu {
bool built();
std::unique_ptr<Device> make_device(int threads);
std::vector<Library> libraries();
}  // namespace cpu

namespace gpu {
bool built();
/// The UUIDs of the GPUs visible to this process; `problem` is the reason if there are none.
std::vector<std::string> visible_devices(std::string& problem);
/// `timeout_s`: how long the host waits for the device.
std::unique_ptr<Device> make_device(int index, double timeout_s = BackendOptions{}.timeout_s);
std::unique_ptr<Communicator> make_communicator(const MpiSession& session, Device& device,
                                                int ctas = 0);
std::vector<Library> libraries();
}  // namespace gpu

}  // namespace shakedown

#include "common/mpi_session.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <semaphore.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <numeric>
#include <sstream>
#include <system_error>
#include <thread>

#include "common/error.hpp"
#include "common/hash.hpp"
#include "common/host.hpp"
#include "common/mpi_handle.hpp"
#include "common/watch.hpp"

namespace shakedown {

void check_mpi(int status, const char* expression, const char* file, int line) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw_library_error("MPI", expression, file, line, text);
}

bool MpiDeadline::wait(std::vector<MPI_Request>& requests) {
  constexpr long kBusyPolls = 1000;
  for (;; ++polls_) {
    int done = 0;
    CHECK_MPI(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done,
                          MPI_STATUSES_IGNORE));
    if (done) break;
    if (polls_ < kBusyPolls) continue;
    sched_yield();  // ranks may share a core
    if (polls_ % 100 == 0 && Clock::now() > end_) return false;
  }
  requests.clear();
  return true;
}

TimeoutError MpiDeadline::error(const std::string& what) const {
  return TimeoutError(fmt::format("{} did not finish within {:g} s (--timeout)", what, timeout_s_));
}

MpiOperation::~MpiOperation() {
  if (!requests_.empty()) new auto(std::move(memory_));  // leaked: MPI still has the addresses
}

void MpiOperation::wait(double timeout_s, const std::string& what) {
  MpiDeadline deadline(timeout_s);
  if (!deadline.wait(requests_)) throw deadline.error(what);
}

void wait_for_all(MPI_Comm comm, double timeout_s) {
  MpiOperation operation;
  CHECK_MPI(MPI_Ibarrier(comm, operation.request()));
  operation.wait(timeout_s, "a barrier of all ranks");
}

void start_send(ConstView view, int to, int tag, MPI_Comm comm,
                std::vector<MPI_Request>& requests) {
  if (view.count == 0) return;
  CHECK_MPI(MPI_Isend(view.data, static_cast<int>(view.bytes()), MPI_BYTE, to, tag, comm,
                      &requests.emplace_back(MPI_REQUEST_NULL)));
}

void start_recv(View view, int from, int tag, MPI_Comm comm, std::vector<MPI_Request>& requests) {
  if (view.count == 0) return;
  CHECK_MPI(MPI_Irecv(view.data, static_cast<int>(view.bytes()), MPI_BYTE, from, tag, comm,
                      &requests.emplace_back(MPI_REQUEST_NULL)));
}

namespace {

constexpr int kWhoIsThere = 31;  // the tag of silent_ranks
constexpr int kAtWork = 32;      // the tag of progress
constexpr int kReason = 33;      // the tag of abort

/// Sends messages without content, and waits for none.
void notify(const std::vector<int>& ranks, int tag, MPI_Comm comm) {
  for (int rank : ranks) {
    MPI_Request send = MPI_REQUEST_NULL;
    CHECK_MPI(MPI_Isend(nullptr, 0, MPI_CHAR, rank, tag, comm, &send));
    CHECK_MPI(MPI_Request_free(&send));
  }
}

/// Takes such messages; whether there were any.
bool notified(int tag, MPI_Comm comm) {
  for (int count = 0;; ++count) {
    int there = 0;
    MPI_Status status;
    CHECK_MPI(MPI_Iprobe(MPI_ANY_SOURCE, tag, comm, &there, &status));
    if (!there) return count > 0;
    CHECK_MPI(MPI_Recv(nullptr, 0, MPI_CHAR, status.MPI_SOURCE, tag, comm, MPI_STATUS_IGNORE));
  }
}

/// Open MPI 4 without mpirun copies the host's name, up to its first dot, into a buffer that is too
/// short, and ends the process with 1, the code of wrong data.
void check_host_name() {
  constexpr std::size_t kLongest = 56;
  const std::string name = host_name();
  const bool cut = std::getenv("OMPI_MCA_orte_keep_fqdn_hostnames") == nullptr;
  const std::size_t length = cut ? std::min(name.find('.'), name.size()) : name.size();
  if (length > kLongest && launched_rank().empty() &&
      MpiSession::library_version().starts_with("Open MPI v4"))
    throw InconclusiveError(fmt::format("the host name {} has {} characters; {} supports {}", name,
                                        length, MpiSession::library_version(), kLongest));
}

std::unique_ptr<MpiHandle> start_mpi(int* argc, char*** argv, double timeout_s) {
  check_host_name();
  auto handle = std::make_unique<MpiHandle>();
  handle->ends_mpi = true;
  handle->timeout_s = timeout_s;
  handle->start =
      watch("MPI_Init", timeout_s, "another rank has not started, or its host cannot be reached");
  int provided = 0;
  CHECK_MPI(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided));
  if (provided < MPI_THREAD_FUNNELED)
    throw UsageError(
        MpiSession::library_version() +
        ": was built without thread support (MPI_THREAD_FUNNELED), which the image loader "
        "and the GPU sampler need; load another MPI");
  CHECK_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &handle->comm));
  return handle;
}

}  // namespace

std::unique_ptr<Watchdog> watch(const char* call, double timeout_s, const char* cause) {
  try {
    return std::make_unique<Watchdog>(timeout_s, [=, host = host_name()] {
      const std::string rank = launched_rank();
      std::fprintf(stderr, "error: rank %s on %s: %s did not finish within %g s (--timeout): %s\n",
                   rank.empty() ? "0" : rank.c_str(), host.c_str(), call, timeout_s, cause);
      std::fflush(stderr);
      std::this_thread::sleep_for(std::chrono::milliseconds(500));  // until others have printed it
    });
  } catch (const std::system_error&) {
    return nullptr;
  }
}

std::string launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name)) return rank;
  return "";
}

std::string launched_with_others() {
  // Open MPI's own variable decides; PMI and Slurm only where the launcher was not mpirun.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const char* value = std::getenv(name);
    if (value == nullptr) continue;
    return std::atoi(value) > 1 ? fmt::format("{}={}", name, value) : "";
  }
  return "";
}

MpiSession::MpiSession(int* argc, char*** argv, double timeout_s)
    : MpiSession(start_mpi(argc, argv, timeout_s)) {}

MpiSession::MpiSession(std::unique_ptr<MpiHandle> handle)
    : handle_(std::move(handle)), host_(host_name()) {
  CHECK_MPI(MPI_Comm_set_errhandler(handle_->comm, MPI_ERRORS_RETURN));
  CHECK_MPI(MPI_Comm_rank(handle_->comm, &rank_));
  CHECK_MPI(MPI_Comm_size(handle_->comm, &world_size_));

  MPI_Comm local = MPI_COMM_NULL;
  CHECK_MPI(MPI_Comm_split_type(handle_->comm, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &local));
  CHECK_MPI(MPI_Comm_rank(local, &local_rank_));
  CHECK_MPI(MPI_Comm_size(local, &local_size_));
  CHECK_MPI(MPI_Comm_free(&local));
  hosts_ = all_gather(host_);
  boot_ids_ = all_gather(boot_id());
  handle_->start.reset();
}

MpiSession::~MpiSession() {
  if (std::uncaught_exceptions() > exceptions_) return;  // operations may be under way
  std::unique_ptr<Watchdog> end;
  if (handle_->ends_mpi)
    end = watch("MPI_Finalize", handle_->timeout_s, "another rank does not end");
  MPI_Comm_free(&handle_->comm);
  if (handle_->ends_mpi) MPI_Finalize();
}

void MpiSession::set_timeout(double seconds) { handle_->timeout_s = seconds; }
double MpiSession::timeout_s() const { return handle_->timeout_s; }

std::vector<double> MpiSession::all_gather(double value) const {
  std::vector<double> values(static_cast<std::size_t>(world_size_));
  gather_bytes(&value, values.data(), sizeof(double));
  return values;
}

void MpiSession::gather_bytes(const void* mine, void* all, std::size_t bytes) const {
  progress();
  MpiOperation operation;
  const auto count = static_cast<int>(bytes);
  const auto& value = operation.keep(std::string(static_cast<const char*>(mine), bytes));
  auto& values = operation.keep(std::string(bytes * static_cast<std::size_t>(world_size_), '\0'));
  CHECK_MPI(MPI_Iallgather(value.data(), count, MPI_CHAR, values.data(), count, MPI_CHAR,
                           handle_->comm, operation.request()));
  operation.wait(handle_->timeout_s, "exchanging a value between all ranks");
  std::memcpy(all, values.data(), values.size());
}

std::vector<std::string> MpiSession::all_gather(const std::string& value) const {
  return gather_texts(value, true);
}

std::vector<std::string> MpiSession::gather(const std::string& value) const {
  return gather_texts(value, false);
}

std::vector<std::string> MpiSession::gather_texts(const std::string& value, bool everywhere) const {
  const std::vector<double> lengths = all_gather(static_cast<double>(value.size()));
  const double total = std::accumulate(lengths.begin(), lengths.end(), 0.0);
  if (total > std::numeric_limits<int>::max())
    throw InconclusiveError(fmt::format("{:.1f} GB of text of {} ranks: MPI counts 32-bit bytes",
                                        total / 1e9, lengths.size()));
  MpiOperation operation;
  const std::string& mine = operation.keep(value);
  const auto& counts = operation.keep(std::vector<int>(lengths.begin(), lengths.end()));
  auto& offsets = operation.keep(std::vector<int>(counts.size() + 1, 0));
  std::partial_sum(counts.begin(), counts.end(), offsets.begin() + 1);
  const bool here = everywhere || is_root();
  auto& all =
      operation.keep(std::string(here ? static_cast<std::size_t>(offsets.back()) : 0, '\0'));
  const auto length = static_cast<int>(mine.size());
  if (everywhere)
    CHECK_MPI(MPI_Iallgatherv(mine.data(), length, MPI_CHAR, all.data(), counts.data(),
                              offsets.data(), MPI_CHAR, handle_->comm, operation.request()));
  else
    CHECK_MPI(MPI_Igatherv(mine.data(), length, MPI_CHAR, all.data(), counts.data(), offsets.data(),
                           MPI_CHAR, 0, handle_->comm, operation.request()));
  operation.wait(handle_->timeout_s, "exchanging a text between all ranks");
  if (!here) return {};
  std::vector<std::string> values;
  for (std::size_t r = 0; r < counts.size(); ++r)
    values.push_back(
        all.substr(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(counts[r])));
  return values;
}

void MpiSession::barrier() const { wait_for_all(handle_->comm, handle_->timeout_s); }

void MpiSession::wait_idle() const {
  // A rank at work may first wait for its own operation as long as --timeout allows, and names
  // better who does not answer.
  const std::chrono::duration<double> patience(1.25 * handle_->timeout_s + 0.5);
  auto heard = std::chrono::steady_clock::now();
  MPI_Request all = MPI_REQUEST_NULL;
  CHECK_MPI(MPI_Ibarrier(handle_->comm, &all));
  for (;;) {
    int done = 0;
    int asked = 0;
    CHECK_MPI(MPI_Test(&all, &done, MPI_STATUS_IGNORE));
    if (done) return;
    CHECK_MPI(MPI_Iprobe(MPI_ANY_SOURCE, kWhoIsThere, handle_->comm, &asked, MPI_STATUS_IGNORE));
    if (asked) throw TimeoutError("stopped, because a rank that this one waited for timed out");
    const auto now = std::chrono::steady_clock::now();
    if (notified(kAtWork, handle_->comm)) heard = now;
    if (now - heard > patience)
      throw TimeoutError(
          fmt::format("the ranks at work, for which this one waits, made no progress within {:g} s "
                      "(--timeout)",
                      handle_->timeout_s));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void MpiSession::progress() const {
  if (progress_is_due()) notify(handle_->others, kAtWork, handle_->whole);
}

void MpiSession::progress(const std::vector<int>& waiting) const {
  if (progress_is_due()) notify(waiting, kAtWork, handle_->comm);
}

bool MpiSession::progress_is_due() const {
  const auto now = std::chrono::steady_clock::now();
  const std::chrono::duration<double> pause(handle_->timeout_s / 8);
  if (now - progressed_ < pause) return false;
  progressed_ = now;
  return true;
}

std::unique_ptr<MpiSession> MpiSession::split(int color) const {
  auto part = std::make_unique<MpiHandle>();
  part->timeout_s = handle_->timeout_s;
  const std::vector<double> colors = all_gather(color);
  const auto first = std::find(colors.begin(), colors.end(), color);
  if (first - colors.begin() == rank_) {
    part->whole = handle_->comm;
    for (int r = 0; r < world_size_; ++r)
      if (colors[static_cast<std::size_t>(r)] != color) part->others.push_back(r);
  }
  CHECK_MPI(MPI_Comm_split(handle_->comm, color < 0 ? MPI_UNDEFINED : color, rank_, &part->comm));
  if (color < 0) return nullptr;
  return std::unique_ptr<MpiSession>(new MpiSession(std::move(part)));
}

std::vector<int> MpiSession::silent_ranks(double patience_s) const {
  // Messages without content: those to and from a silent rank stay unfinished.
  std::vector<MPI_Request> receives(static_cast<std::size_t>(world_size_), MPI_REQUEST_NULL);
  for (int r = 0; r < world_size_; ++r) {
    if (r == rank_) continue;
    notify({r}, kWhoIsThere, handle_->comm);
    CHECK_MPI(MPI_Irecv(nullptr, 0, MPI_CHAR, r, kWhoIsThere, handle_->comm,
                        &receives[static_cast<std::size_t>(r)]));
  }
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_s);
  int all = 0;
  while (!all && std::chrono::steady_clock::now() < deadline) {
    CHECK_MPI(MPI_Testall(world_size_, receives.data(), &all, MPI_STATUSES_IGNORE));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::vector<int> silent;
  for (int r = 0; r < world_size_; ++r) {
    int here = 1;
    CHECK_MPI(MPI_Test(&receives[static_cast<std::size_t>(r)], &here, MPI_STATUS_IGNORE));
    if (!here) silent.push_back(r);
  }
  return silent;
}

bool MpiSession::root_gives(const std::string& reason) const noexcept {
  // Ranks often fail alike and at once: rank 0 speaks first. Its abort silences the others, under
  // mpirun at once; where it does not, those with the same reason are silent.
  const std::uint64_t mine = xxh64(reason);
  try {
    if (is_root()) {
      for (int r = 1; r < world_size_; ++r) {
        MpiOperation send;  // leaked: nobody waits for it
        const auto& hash = send.keep(std::uint64_t{mine});
        CHECK_MPI(MPI_Isend(&hash, 1, MPI_UINT64_T, r, kReason, handle_->comm, send.request()));
      }
      return false;
    }
    for (int polls = 0; polls < 30; ++polls) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      int there = 0;
      CHECK_MPI(MPI_Iprobe(0, kReason, handle_->comm, &there, MPI_STATUS_IGNORE));
      if (!there) continue;
      std::uint64_t of_root = 0;
      CHECK_MPI(MPI_Recv(&of_root, 1, MPI_UINT64_T, 0, kReason, handle_->comm, MPI_STATUS_IGNORE));
      std::this_thread::sleep_for(std::chrono::milliseconds(10 * (30 - polls)));
      return of_root == mine;
    }
  } catch (const std::exception&) {  // the reason matters more
  }
  return false;
}

void MpiSession::abort(ExitCode code, const std::string& reason) const noexcept {
  std::fflush(stdout);
  if (!root_gives(reason)) {
    std::fprintf(stderr, "error: rank %d on %s: %s\n", rank_, host_.c_str(), reason.c_str());
    std::fflush(stderr);
  }
  if (world_size_ > 1 || !handle_->ends_mpi) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until Hydra has read it
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  } else {
    MPI_Finalize();  // nobody else to end, and no need of MPI_Abort's own message
  }
  std::_Exit(static_cast<int>(code));
}

std::string MpiSession::build_version() {
#ifdef OMPI_MAJOR_VERSION
  return fmt::format("Open MPI {}.{}.{}", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION,
                     OMPI_RELEASE_VERSION);
#elif defined(I_MPI_VERSION)  // Intel's has MPICH's macros too
  return "Intel MPI " I_MPI_VERSION;
#elif defined(MPICH_VERSION)
  return "MPICH " MPICH_VERSION;
#else
  return fmt::format("MPI {}.{}", MPI_VERSION, MPI_SUBVERSION);
#endif
}

std::string MpiSession::library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  return mpi_version_in({text, static_cast<std::size_t>(length)});
}

std::string mpi_version_in(const std::string& text) {
  std::istringstream words(text.substr(0, text.find_first_of(",\n")));
  std::string version;
  for (std::string word; words >> word && word != "for";) {
    if (word == "Version:" || word == "Library") continue;
    version += (version.empty() ? "" : " ") + (word == "Intel(R)" ? "Intel" : word);
  }
  return version;
}

struct MpiAgreement::Pending {
  struct Round {
    MpiOperation operation;
    int* highest = nullptr;
  };

  void post(int value) {
    Round& round = rounds.emplace_back();
    const int& mine = round.operation.keep(value);
    round.highest = &round.operation.keep(0);
    CHECK_MPI(
        MPI_Iallreduce(&mine, round.highest, 1, MPI_INT, MPI_MAX, comm, round.operation.request()));
  }
  int take() {
    Round& round = rounds.front();
    round.operation.wait(session.timeout_s(), "agreeing on whether to stop");
    const int highest = *round.highest;
    rounds.pop_front();
    return highest;
  }

  const MpiSession& session;
  int lag;
  MPI_Comm comm = MPI_COMM_NULL;  // its own: rounds are under way during other operations
  std::deque<Round> rounds = {};
  int exceptions = std::uncaught_exceptions();
};

MpiAgreement::MpiAgreement(const MpiSession& session, int slack) {
  const int rounds =
      static_cast<int>(std::bit_width(static_cast<unsigned>(session.world_size() - 1)));
  pending_.reset(new Pending{session, slack + rounds});
  wait_for_all(session.handle().comm, session.timeout_s());
  CHECK_MPI(MPI_Comm_dup(session.handle().comm, &pending_->comm));
}

MpiAgreement::~MpiAgreement() {
  if (std::uncaught_exceptions() > pending_->exceptions) return;  // rounds may never end
  try {
    while (!pending_->rounds.empty()) pending_->take();
    MPI_Comm_free(&pending_->comm);
  } catch (const std::exception&) {  // a rank has gone: what follows reports it
  }
}

int MpiAgreement::lag() const { return pending_->lag; }

int MpiAgreement::step(int value) {
  pending_->post(value);
  return static_cast<int>(pending_->rounds.size()) > pending_->lag ? pending_->take() : 0;
}

int MpiAgreement::settle(int value) {
  pending_->post(value);
  int highest = 0;
  while (!pending_->rounds.empty()) highest = std::max(highest, pending_->take());
  return highest;
}

namespace {

std::int64_t now_ms() {  // of the clocks, a handler may call this one
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

/// The first signal, as a handler may keep it.
struct FirstSignal {
  volatile std::sig_atomic_t number = 0;
  std::atomic<std::int64_t> at_ms = 0;
  static_assert(std::atomic<std::int64_t>::is_always_lock_free);

  /// Whether it is the first. One of another stop ends the process.
  bool note(int other) {
    if (number == 0) {
      at_ms = now_ms();
      number = other;
      return true;
    }
    if (now_ms() - at_ms >= kSameStopMs) {
      std::signal(other, SIG_DFL);
      std::raise(other);  // delivered when the handler returns
    }
    return false;
  }
};

// A handler can reach nothing that is not static.
FirstSignal noted;   // of StopSignals
FirstSignal ending;  // of LastWords
sem_t woken;         // posted by that signal, or without one when the object ends

extern "C" void note(int number) { noted.note(number); }

std::vector<int> signals_to_note() {
  noted.number = 0;
  return {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
}

extern "C" void wake(int number) {
  if (ending.note(number)) sem_post(&woken);
}

/// Whether `report` returned in time; where it throws (a full disk) it did.
bool returns(const std::function<void()>& report, std::chrono::milliseconds patience) {
  const auto done = start_detached<int>([report] { return report(), 0; });
  return done.wait_for(patience) == std::future_status::ready;
}

/// For a line on stderr, which may block as the record did.
constexpr std::chrono::seconds kLastLine{1};

std::thread thread_of(const std::function<void()>& report, std::chrono::milliseconds patience) {
  ending.number = 0;
  sem_init(&woken, 0, 0);
  return std::thread([report, patience] {
    while (sem_wait(&woken) != 0) {
    }
    if (ending.number == 0) return;
    if (!returns(report, patience)) {
      const std::string text = fmt::format(
          "error: stopped by SIG{}; the end of the record was not written within {:g} s: its file "
          "blocks\n",
          sigabbrev_np(ending.number), std::chrono::duration<double>(patience).count());
      returns([text] { std::fputs(text.c_str(), stderr); }, kLastLine);
    }
    std::signal(ending.number, SIG_DFL);
    std::raise(ending.number);
  });
}

std::vector<int> signals_to_end() {
  std::vector<int> signals{SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
  if (launched_with_others().empty()) signals.push_back(SIGTERM);
  return signals;
}

}  // namespace

SignalHandler::SignalHandler(const std::vector<int>& signals, void (*handler)(int)) {
  for (const int number : signals) {
    struct sigaction before {};
    sigaction(number, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;
    struct sigaction now {};
    now.sa_handler = handler;
    now.sa_flags = SA_RESTART;
    sigaction(number, &now, nullptr);
    before_.emplace_back(number, before);
  }
}

SignalHandler::~SignalHandler() {
  for (const auto& [number, before] : before_) sigaction(number, &before, nullptr);
}

StopSignals::StopSignals() : handler_(signals_to_note(), note) {}

std::string StopSignals::received() const {
  return noted.number == 0 ? "" : std::string("SIG") + sigabbrev_np(noted.number);
}

LastWords::LastWords(const std::function<void()>& report, std::chrono::milliseconds patience)
    : thread_(thread_of(report, patience)), handler_(signals_to_end(), wake) {}

LastWords::~LastWords() {
  sem_post(&woken);
  thread_.join();
}

}  // namespace shakedown

#include "common/mpi_agreement.hpp"

#include <algorithm>
#include <bit>
#include <deque>
#include <exception>

#include "common/mpi_handle.hpp"
#include "common/mpi_session.hpp"

namespace shakedown {

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

}  // namespace shakedown

#include "training/programs/run.hpp"

#include <nlohmann/json.hpp>

namespace shakedown::training {

void Run::write(const char* kind, const Json& fields) const {
  record.write(kind, merged(record_of(identity), fields));
}

}  // namespace shakedown::training

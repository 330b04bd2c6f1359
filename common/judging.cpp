#include "common/judging.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace shakedown {

Judging::Judging(const judge::JudgeOptions& options, const MpiSession& session, std::string program,
                 bool unasked)
    : session_(session),
      program_(std::move(program)),
      unasked_(unasked && options.reference.empty() && options.limits.empty()) {
  if (session.is_root()) court_.emplace(options);
}

void Judging::bar(const std::string& metric, std::optional<double> least,
                  std::optional<double> most) {
  if (court_) court_->limits().bar(metric, least, most);
}

void Judging::add(const judge::Observation& observation, Record& record, std::optional<int> id) {
  if (!court_) return;
  record.write("metric", judge::record_of(observation));
  evidence_.observations.push_back(observation);
  ids_.push_back(id);
}

void Judging::add_table(const std::vector<judge::Observation>& observations, Record& record,
                        std::optional<int> first_id) {
  if (!court_) return;
  judge::write_table(observations, record);
  for (const judge::Observation& observation : observations) {
    evidence_.observations.push_back(observation);
    ids_.push_back(first_id);
    if (first_id) ++*first_id;
  }
}

void Judging::add(const Verdict& verdict, const std::vector<std::string>& nodes) {
  if (court_) evidence_.statements.push_back({verdict, "", nodes});
}

std::vector<int> Judging::slow() {
  std::set<int> ids;
  if (court_)
    for (const std::size_t observation : judge::suspects(judgement()))
      if (ids_[observation]) ids.insert(*ids_[observation]);
  return Json::parse(session_.all_gather(json_text(Json(ids))).front()).get<std::vector<int>>();
}

judge::Judgement Judging::judgement() const {
  if (!court_) return {};
  return court_->judge(evidence_, {program_, {}, false, unasked_});
}

void record_judgement(const judge::Judgement& judgement, Record& record, const Json& fields) {
  for (const Verdict& finding : judgement.findings)
    record.write("verdict", merged(fields, record_of(finding)));
  record.write("verdict", merged(fields, record_of(judgement.job)));
}

}  // namespace shakedown

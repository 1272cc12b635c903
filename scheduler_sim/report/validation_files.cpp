#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>

#include "reference/base/escape.hpp"
#include "scheduler_sim/measured/measure_fields.hpp"
#include "scheduler_sim/report/validation_report.hpp"

namespace loratory::sim {
namespace {

using Json = nlohmann::ordered_json;

std::string known_cell(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "";
}
Json known(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json measures_object(const RunMeasures& m) {
  Json object = Json::object();
  for (const MeasureField& field : kMeasureFields) {
    if (std::isfinite(m.*field.value)) object[std::string(field.name)] = m.*field.value;
  }
  return object;
}

Json errors_object(const ErrorsByQuantity& all, const std::vector<MeasuredRun>& runs) {
  Json object = Json::object();
  for (size_t q = 0; q < kNumQuantities; ++q) {
    const ErrorSummary& e = all[q];
    if (e.num_rows == 0) continue;
    object[std::string(text_of(Quantity(q)).name)] = {
        {"unit", text_of(Quantity(q)).is_in_ms ? "ms" : "fraction"},
        {"num_runs", e.num_rows},
        {"mean", e.mean_size},
        {"median", e.median_size},
        {"bias", e.bias},
        {"worst", e.worst},
        {"worst_run", runs[e.worst_run].place}};
  }
  return object;
}

Json places(const std::vector<size_t>& indices, const std::vector<MeasuredRun>& runs) {
  Json array = Json::array();
  for (const size_t i : indices) array.push_back(runs[i].place);
  return array;
}

Json group_object(const GroupErrors& group, const std::vector<MeasuredRun>& runs) {
  return {{"name", group.name},
          {"num_runs", group.num_runs},
          {"errors", errors_object(group.ours, runs)},
          {"errors_of_other", errors_object(group.other, runs)},
          {"num_starts_known", group.num_starts_known},
          {"wrong_starts", places(group.wrong_starts, runs)},
          {"critical", places(group.critical, runs)}};
}

Json groups_array(const std::vector<GroupErrors>& groups, const std::vector<MeasuredRun>& runs) {
  Json array = Json::array();
  for (const GroupErrors& group : groups) array.push_back(group_object(group, runs));
  return array;
}

Json choice_object(const SweepChoice::Choice& choice, const std::vector<MeasuredRun>& runs) {
  if (!choice.is_made) return nullptr;
  return {{"max_loras", runs[choice.run].max_loras}, {"regret", known(choice.regret)}};
}

Json choices_array(const ValidationReport& report) {
  Json array = Json::array();
  for (const SweepChoice& choice : report.errors.choices) {
    array.push_back({{"sweep", choice.sweep},
                     {"best_max_loras", report.table.runs[choice.best].max_loras},
                     {"chosen", choice_object(choice.ours, report.table.runs)},
                     {"chosen_by_other", choice_object(choice.other, report.table.runs)}});
  }
  return array;
}

Json runs_array(const ValidationReport& report) {
  Json array = Json::array();
  for (size_t i = 0; i < report.table.runs.size(); ++i) {
    const MeasuredRun& run = report.table.runs[i];
    const PredictedRun& predicted = report.predicted[i];
    Json object{{"place", run.place},
                {"group", run.group},
                {"sweep", run.sweep},
                {"model", run.model},
                {"engine", run.engine},
                {"gpu", run.gpu},
                {"max_loras", run.max_loras},
                {"num_adapters", run.num_adapters()},
                {"tp", run.tp},
                {"measured", measures_object(run.measured)}};
    if (!predicted.skip.empty()) {
      object["skipped"] = predicted.skip;
    } else {
      object["predicted"] = measures_object(predicted.measures);
      object["num_seeds"] = predicted.num_seeds;
      object["utilisation"] = known(predicted.utilisation);
    }
    object["other"] = measures_object(run.other);
    array.push_back(std::move(object));
  }
  return array;
}

Json skipped_array(const ValidationReport& report) {
  Json array = Json::array();
  for (const SkippedRow& row : report.table.skipped) {
    array.push_back({{"place", row.place}, {"reason", row.reason}});
  }
  return array;
}

}  // namespace

void write_validation_csv(std::ostream& out, const ValidationReport& report) {
  out << "place,group,sweep,model,engine,gpu,max_loras,num_adapters,tp,utilisation,num_seeds,"
         "skipped";
  for (const char* whose : {"measured", "predicted", "other"}) {
    for (const MeasureField& field : kMeasureFields) out << ',' << whose << '_' << field.name;
  }
  out << '\n';
  for (size_t i = 0; i < report.table.runs.size(); ++i) {
    const MeasuredRun& run = report.table.runs[i];
    const PredictedRun& p = report.predicted[i];
    out << fmt::format("{},{},{},{},{},{},{},{},{},{},{},{}", csv_field(run.place),
                       csv_field(run.group), csv_field(run.sweep), csv_field(run.model),
                       csv_field(run.engine), csv_field(run.gpu), run.max_loras, run.num_adapters(),
                       run.tp, known_cell(p.utilisation), p.num_seeds, csv_field(p.skip));
    for (const RunMeasures* m : {&run.measured, &p.measures, &run.other}) {
      for (const MeasureField& field : kMeasureFields) out << ',' << known_cell(m->*field.value);
    }
    out << '\n';
  }
}

void write_validation_json(std::ostream& out, const ValidationReport& report) {
  const Provenance& provenance = report.provenance;
  Json inputs = Json::array();
  for (const Provenance::Input& input : provenance.inputs) {
    inputs.push_back(
        {{"path", input.path}, {"checksum", input.checksum}, {"format", input.format}});
  }
  const Regret ours = regret_of(report.errors, &SweepChoice::ours);
  const Regret other = regret_of(report.errors, &SweepChoice::other);
  const Json document{
      {"schema", "loratory.validation/1"},
      {"command", provenance.command},
      {"commit", provenance.commit},
      {"version", provenance.version},
      {"seed", provenance.seed},
      {"inputs", std::move(inputs)},
      {"step_times", report.step_times},
      {"all", group_object(report.errors.all, report.table.runs)},
      {"models", groups_array(report.errors.models, report.table.runs)},
      {"groups", groups_array(report.errors.groups, report.table.runs)},
      {"regret", {{"mean", known(ours.mean)}, {"worst", known(ours.worst)}}},
      {"regret_of_other", {{"mean", known(other.mean)}, {"worst", known(other.worst)}}},
      {"sweeps", choices_array(report)},
      {"runs", runs_array(report)},
      {"skipped", skipped_array(report)}};
  out << document.dump(1) << '\n';
}

}  // namespace loratory::sim

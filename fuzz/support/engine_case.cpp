#include "fuzz/support/engine_case.hpp"

#include <cstring>

namespace loratory::sim {

using reference::ModelConfig;
using reference::RandomAdapter;
using reference::Vector;

namespace {

bool same_bits(const Vector<float>& a, const Vector<float>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), size_t(a.size()) * sizeof(float)) == 0;
}

}  // namespace

AdapterSource source_of(const RandomAdapter& adapter) {
  return [adapter] { return adapter.adapter; };
}

EngineRequest random_engine_request(Draw& draw, uint64_t id, const ModelConfig& model,
                                    uint64_t stem_seed) {
  EngineRequest r;
  r.id = id;
  Draw stem(stem_seed + uint64_t(draw(2)));
  const int64_t num_shared = draw.one_in(4) ? 0 : draw.between(1, 10);
  for (int64_t i = 0; i < num_shared; ++i) r.prompt.push_back(int32_t(stem(model.vocab)));
  const int64_t num_own = draw.between(num_shared == 0 ? 1 : 0, 12 - num_shared);
  for (int64_t i = 0; i < num_own; ++i) r.prompt.push_back(int32_t(draw(model.vocab)));
  r.params.max_new_tokens = draw.one_in(12) ? 0 : draw.between(1, 8);
  if (draw.one_in(2)) {
    r.params.sampling.temperature = draw.one_of({0.3, 1.0, 2.0});
    r.params.sampling.top_k = draw.one_of<int64_t>({0, 0, 3});
    r.params.sampling.top_p = draw.one_of({1.0, 1.0, 0.8});
    r.params.sampling.seed = uint64_t(draw(1000));
  }
  if (draw.one_in(4)) r.params.stop_tokens = {int32_t(draw(model.vocab))};
  r.params.prompt_logprobs = draw.one_in(10);
  r.disable_prefix_cache = draw.one_in(12);
  r.priority = int32_t(draw.between(-1, 1));
  return r;
}

bool same_generation(const EngineOutput& got, const reference::Generation& expected) {
  const bool whole = got.reason == FinishReason::stop || got.reason == FinishReason::length;
  const size_t num_tokens = got.tokens.size();
  if (got.logits.size() != num_tokens || num_tokens > expected.tokens.size()) return false;
  if (whole && num_tokens != expected.tokens.size()) return false;
  for (size_t i = 0; i < num_tokens; ++i) {
    if (got.tokens[i] != expected.tokens[i]) return false;
    if (!same_bits(got.logits[i], expected.logits[i])) return false;
  }
  return true;
}

StepByHand::StepByHand(const reference::Model& model, const SchedulerConfig& config,
                       int64_t max_lora_rank)
    : scheduler(config), runner(model, config, {.max_lora_rank = max_lora_rank}) {}

void StepByHand::add_adapter(const RandomAdapter& adapter) {
  const auto added = scheduler.register_adapter(std::to_string(++num_adapters_),
                                                uint32_t(adapter.adapter.rank), 1, false, now_ns_);
  runner.add_adapter(added.uid, source_of(adapter));
}

SubmitStatus StepByHand::submit(const EngineRequest& request) {
  RequestSpec spec = request_spec(request);
  if (!request.adapter.empty()) spec.adapter = scheduler.residency().find_name(request.adapter);
  const SubmitStatus status = scheduler.submit(spec, now_ns_);
  runner.set_sampling(request.id, request.params.sampling);
  finish_transfers();
  return status;
}

void StepByHand::finish_transfers() {
  ResidencyActions& starts = scheduler.starts();
  while (!starts.loads.empty() || !starts.copies.empty()) {
    const ResidencyActions now = starts;
    starts.clear();
    for (const LoadStart& load : now.loads) {
      runner.load(load.uid);
      scheduler.load_done(load.uid, true, now_ns_);
    }
    for (const CopyStart& copy : now.copies) {
      runner.begin_copy(copy.slot);
      runner.end_copy(copy.uid, copy.slot, copy.generation);
      scheduler.copy_done(copy.uid, now_ns_);
    }
  }
}

const StepPlan& StepByHand::plan() {
  for (;;) {
    const StepPlan& plan = scheduler.plan(++now_ns_);
    const bool moves = !scheduler.starts().loads.empty() || !scheduler.starts().copies.empty();
    finish_transfers();
    if (!plan.empty() || !moves) return plan;
  }
}

bool StepByHand::step() {
  const StepPlan& next = plan();
  if (next.empty()) return false;
  commit(runner.run(next, scheduler));
  return true;
}

}  // namespace loratory::sim

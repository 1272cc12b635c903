#include "scheduler_sim/measured/profile_terms.hpp"

#include <algorithm>

namespace loratory::sim {
namespace {

constexpr double kMs = 1e6, kUs = 1e3;  // in nanoseconds

// Of the datasheet, where the numbers of a preset were replaced by measured ones.
double datasheet_flops(const GpuSpec& gpu) {
  return gpu.preset.empty() ? gpu.flops : parse_gpu_spec(gpu.preset).flops;
}

// What the datasheet and the model say a step takes.
struct Physics {
  double weights_ns, token_ns, context_ns, pair_ns;
};

Physics physics_of(const EngineSpec& engine) {
  const ModelSpec& model = engine.model;
  const GpuSpec& gpu = engine.gpu;
  const int tp = engine.memory.tp;
  const double byte_ns = 1e9 / (gpu.bandwidth_bytes_per_s * gpu.bandwidth_fraction);
  const double peak = datasheet_flops(gpu);
  const double pair_flops = 4.0 * double(model.q_size(tp)) * double(model.num_layers);
  return {.weights_ns = double(model.weight_bytes(tp)) * byte_ns,
          .token_ns = 2e9 * double(model.num_parameters(tp)) / (peak * gpu.matmul_fraction),
          .context_ns = double(model.kv_bytes_per_token(tp)) * byte_ns,
          .pair_ns = 1e9 * pair_flops / (peak * gpu.attention_fraction)};
}

FitParameter about(double prior, double sigma, double low, double high) {
  return {.start = prior, .low = low, .high = high, .prior = prior, .sigma = sigma};
}

// Half of it or twice it would be no surprise.
FitParameter about(double prior) { return about(prior, prior / 2, 0, prior * 10); }

}  // namespace

const std::vector<ProfileTerm>& step_terms() {
  using P = StepProfile;
  static const std::vector<ProfileTerm> kTerms{
      {"host_ns", "ms", kMs, [](P& p) -> double& { return p.host_ns; }},
      {"ns_per.num_seqs", "us", kUs, [](P& p) -> double& { return p.term("num_seqs"); }},
      {"ns_per.num_waiting_seen", "us", kUs,
       [](P& p) -> double& { return p.term("num_waiting_seen"); }},
      {"constant_ns", "ms", kMs, [](P& p) -> double& { return p.constant_ns; }},
      {"ns_per.num_adapters", "us", kUs, [](P& p) -> double& { return p.term("num_adapters"); }},
      {"lora_block_ns.shrink", "ns", 1, [](P& p) -> double& { return p.shrink_block_ns; }},
      {"lora_block_ns.expand", "ns", 1, [](P& p) -> double& { return p.expand_block_ns; }},
      {"above.tokens", "tokens", 1, [](P& p) -> double& { return p.above_tokens; }},
      {"above.ns_per_token", "us", kUs, [](P& p) -> double& { return p.above_ns_per_token; }},
      {"launch.least_ns", "ms", kMs, [](P& p) -> double& { return p.launch_least_ns; }},
      {"load.copy_ns", "ms", kMs, [](P& p) -> double& { return p.copy_ns; }}};
  return kTerms;
}

const std::vector<ProfileTerm>& server_terms() {
  using P = StepProfile;
  static const std::vector<ProfileTerm> kTerms{
      {"server.mean_tokens_to_stop", "tokens", 1,
       [](P& p) -> double& { return p.server.mean_tokens_to_stop; }},
      {"server.frontend_ms", "ms", 1, [](P& p) -> double& { return p.server.frontend_ms; }},
      {"server.metrics_ms", "ms", 1, [](P& p) -> double& { return p.server.metrics_ms; }},
      {"server.metrics_us_per_adapter_set", "us", 1,
       [](P& p) -> double& { return p.server.metrics_us_per_adapter_set; }},
      {"server.metrics_us_per_name", "us", 1,
       [](P& p) -> double& { return p.server.metrics_us_per_name; }}};
  return kTerms;
}

std::vector<FitParameter> step_priors(const EngineSpec& engine) {
  const Physics physics = physics_of(engine);
  const double knee = physics.weights_ns / physics.token_ns;
  const auto layers = double(engine.model.num_layers);
  return {
      // Python between two steps. vLLM 0.5.3 spent 29 % of its time there and 38 % on the GPU with
      // Llama 3 8B on an H100 (vLLM's blog, "vLLM v0.6.0: 2.7x Throughput Improvement"); half of
      // that for an engine of its own process. It runs some 50 statements for each request.
      about(4 * kMs, 2 * kMs, 0, 20 * kMs),
      about(50 * kUs, 15 * kUs, 0, 200 * kUs),
      about(0.4 * kUs, 0.3 * kUs, 0, 5 * kUs),
      // All weights are read once; small kernels of a layer, 10 us (RooflineOptions).
      about(physics.weights_ns, 0.2 * physics.weights_ns, 0, 4 * physics.weights_ns),
      // Its bytes alone take 0.05 ms; its tiles run one after the other in every LoRA kernel.
      about(0.3 * kMs, 0.15 * kMs, 0, 2 * kMs),
      // An SM starts and ends a block in 1 to 2 us and holds 8 to 16 of them: 132 SMs, 1 ns.
      about(1.0, 0.5, 0, 10),
      about(1.0, 0.5, 0, 10),
      // Where computing the products takes as long as reading the weights.
      about(knee, 0.25 * knee, 0, 4 * knee),
      about(physics.token_ns, 0.3 * physics.token_ns, 0, 5 * physics.token_ns),
      // Without a graph Python launches 40 to 50 kernels a layer with LoRA, assumed at 20 us each.
      about(layers * kMs, 0.3 * layers * kMs, 0, 5 * layers * kMs),
      about(double(engine.loads.h2d_latency_ns)),
  };
}

StepProfile prior_profile(const EngineSpec& engine) {
  const Physics physics = physics_of(engine);
  StepProfile profile;
  profile.model = engine.model.name;
  profile.gpu = engine.gpu.name;
  profile.engine = engine.name;
  profile.tp = engine.memory.tp;
  describe_types(profile, engine.model, engine.memory.lora_dtype);
  profile.term("decode_context_tokens") = physics.context_ns;
  profile.term("prefill_pairs") = physics.pair_ns;
  profile.launch_above_tokens =
      512;  // vLLM captures up to here: config.py, cudagraph_capture_sizes
  const std::vector<FitParameter> priors = step_priors(engine);
  for (size_t i = 0; i < priors.size(); ++i) step_terms()[i].in(profile) = priors[i].prior;
  return profile;
}

LoraGrid grid_of(const EngineSpec& engine, int64_t max_loras) {
  const MemoryOptions& memory = engine.memory;
  return LoraGrid(engine.model, memory.targets, memory.tp, memory.max_lora_rank, max_loras);
}

EngineSpec with_profile(EngineSpec engine, const StepProfile& profile) {
  if (profile.copy_ns >= 0) engine.loads.h2d_latency_ns = int64_t(profile.copy_ns);
  engine.make_step_time = [described = engine,
                           profile](EnginePoint point) -> std::unique_ptr<StepTimeModel> {
    return std::make_unique<ProfileModel>(profile, grid_of(described, point.max_loras));
  };
  return engine;
}

}  // namespace loratory::sim

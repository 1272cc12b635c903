#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.hpp"
#include "cli/exit_code.hpp"
#include "cli/flags.hpp"
#include "cli/output_files.hpp"
#include "cli/progress.hpp"
#include "cli/serving_model.hpp"
#include "cli/system_options.hpp"
#include "cli/tokenizer.hpp"
#include "cli/wall_clock.hpp"
#include "reference/base/escape.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/integers.hpp"
#include "reference/base/units.hpp"
#include "reference/base/wording.hpp"
#include "scheduler_sim/report/serving_report.hpp"
#include "scheduler_sim/serving/request_file.hpp"
#include "scheduler_sim/serving/serving_run.hpp"

namespace loratory::cli {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kMostLoras = 4096;
constexpr int32_t kDefaultLoras = 8;
constexpr const char* kWeightsFile = "adapter_model.safetensors";

struct RunOptions {
  std::string model, requests, executor = "reference", dtype = "auto", out, python = "python3";
  std::string async_scheduling = "auto", lora_dtype = "auto";
  std::vector<std::string> adapters;  // NAME=DIR
  int32_t max_loras = 0, max_cpu_loras = 0;
  int64_t max_lora_rank = 0;
  uint32_t max_num_seqs = 256, max_num_batched_tokens = 2048, max_model_len = 0;
  uint32_t block_size = 16, kv_blocks = 0;
};

using Names = std::map<std::string, std::string>;  // adapter -> folder
using Folders = std::map<std::string, sim::AdapterFolder>;

// --- adapters ---------------------------------------------------------------------------------

Names adapter_names(const RunOptions& options) {
  Names names;
  for (const std::string& text : options.adapters) {
    const size_t equals = text.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == text.size()) {
      throw InputError("--adapter", fmt::format("{} is not NAME=DIR", shown(text)),
                       "write a name, =, and the folder that PEFT saved");
    }
    const std::string name = text.substr(0, equals);
    if (name == options.model) {
      throw InputError("--adapter", fmt::format("{} is the base model", shown(name)),
                       "name it otherwise");
    }
    if (!names.emplace(name, text.substr(equals + 1)).second) {
      throw InputError("--adapter", fmt::format("{} is given twice", shown(name)),
                       "give each adapter its own name");
    }
  }
  return names;
}

// Looks at all of the adapter but its numbers: those are read when it is loaded, and what is wrong
// with them then ends its own requests alone.
sim::AdapterFolder open_adapter(const std::string& path, const std::string& place,
                                const ServingModel& model) {
  const reference::BaseModelShapes shapes = base_model_shapes(model.config());
  reference::LoadOptions look = model.adapter_options();
  look.check_finite = false;
  try {
    const reference::Adapter adapter = reference::load_adapter(path, shapes, look);
    std::error_code unknown;
    const auto bytes = fs::file_size(fs::path(path) / kWeightsFile, unknown);
    return {.rank = uint32_t(adapter.rank),
            .bytes = unknown ? 1 : std::max<int64_t>(1, int64_t(bytes)),
            .source = sim::peft_directory(path, shapes, model.adapter_options())};
  } catch (const InputError& error) {
    throw InputError(place, error.what());
  }
}

// Of --adapter, and of the loads in the file, by folder.
Folders open_adapters(const Names& names, const sim::RequestFile& file, const ServingModel& model) {
  Folders folders;
  for (const auto& [name, path] : names) {
    if (folders.contains(path)) continue;
    folders.emplace(path, open_adapter(path, fmt::format("--adapter {}", name), model));
  }
  for (const sim::RequestLine& line : file.lines) {
    const auto* operation = std::get_if<sim::AdapterOperation>(&line.what);
    if (operation == nullptr || operation->path.empty()) continue;
    if (folders.contains(operation->path)) continue;
    folders.emplace(operation->path,
                    open_adapter(operation->path, file.place(line) + ": lora_path", model));
  }
  return folders;
}

std::set<std::string> names_of(const Names& names) {
  std::set<std::string> out;
  for (const auto& [name, path] : names) out.insert(name);
  return out;
}

// Two of them may be of one folder.
int64_t num_adapters(const Names& names, const sim::RequestFile& file) {
  return std::ssize(names) + std::ranges::count_if(file.lines, [](const sim::RequestLine& line) {
           const auto* operation = std::get_if<sim::AdapterOperation>(&line.what);
           return operation != nullptr && operation->kind == sim::OperationKind::load;
         });
}

std::vector<InputFile> input_files(const RunOptions& options, const Names& names,
                                   const sim::RequestFile& file) {
  std::vector<InputFile> out{{"the request file", options.requests}, {"the model", options.model}};
  for (const auto& [name, path] : names) out.push_back({"adapter " + name, path});
  for (const sim::RequestLine& line : file.lines) {
    const auto* operation = std::get_if<sim::AdapterOperation>(&line.what);
    if (operation != nullptr) out.push_back({"an adapter of the request file", operation->path});
  }
  return out;
}

// --- text -------------------------------------------------------------------------------------

sim::ServingRequest* request_in(sim::RequestLine& line) {
  return std::get_if<sim::ServingRequest>(&line.what);
}

void say_without_texts(const std::exception& why) {
  const std::string line = fmt::format("loratory: without texts: {}\n", printable(why.what()));
  std::fputs(line.c_str(), stderr);
}

// Needed where a prompt is text. Where none is, its lack costs the texts of the output alone.
std::unique_ptr<Tokenizer> find_tokenizer(const RunOptions& options, sim::RequestFile& file) {
  const std::string path = (fs::path(options.model) / "tokenizer.json").string();
  const auto text = std::ranges::find_if(file.lines, [](sim::RequestLine& line) {
    return request_in(line) != nullptr && request_in(line)->text.has_value();
  });
  const bool is_needed = text != file.lines.end();
  if (!fs::exists(path)) {
    if (!is_needed) return nullptr;
    throw InputError(file.place(*text) + ": prompt",
                     fmt::format("is text, and the model has no {}", path),
                     "give token ids, or a model with its tokenizer");
  }
  try {
    const Progress progress("starting the tokenizer");
    return std::make_unique<Tokenizer>(options.python, path);
  } catch (const InputError& error) {
    if (is_needed) throw;
    say_without_texts(error);
    return nullptr;
  }
}

void tokenize(Tokenizer& tokenizer, sim::RequestFile& file) {
  for (sim::RequestLine& line : file.lines) {
    sim::ServingRequest* const request = request_in(line);
    if (request == nullptr || !request->text) continue;
    request->prompt = tokenizer.encode(*request->text);
    if (!request->prompt.empty()) continue;
    throw InputError(file.place(line) + ": prompt", "has no token", "give a longer text");
  }
}

void add_end_tokens(sim::RequestFile& file, const std::vector<int32_t>& end_tokens) {
  for (sim::RequestLine& line : file.lines) {
    sim::ServingRequest* const request = request_in(line);
    if (request == nullptr || request->ignore_eos) continue;
    request->stop_token_ids.insert(request->stop_token_ids.end(), end_tokens.begin(),
                                   end_tokens.end());
  }
}

// --- sizes ------------------------------------------------------------------------------------

uint32_t max_model_len(const RunOptions& options, const reference::ModelConfig& model) {
  const int64_t most = most_positions(model);
  if (options.max_model_len > most) {
    throw InputError("--max-model-len", fmt::format("the model has {} positions", most),
                     "give that many at most");
  }
  return uint32_t(options.max_model_len > 0 ? int64_t{options.max_model_len} : most);
}

// How many KV blocks the longest request fills, and the longest max_num_seqs of them together.
struct Demand {
  int64_t one = 0, together = 0;
};

Demand demand_of(sim::RequestFile& file, const sim::SchedulerConfig& config) {
  std::vector<int64_t> blocks;
  for (sim::RequestLine& line : file.lines) {
    const sim::ServingRequest* const r = request_in(line);
    if (r == nullptr) continue;
    const int64_t tokens = int64_t(r->prompt.size()) + r->max_tokens;
    if (tokens > config.max_model_len) continue;  // it will be refused
    blocks.push_back(ceil_div(tokens, int64_t{config.block_size}));
  }
  std::ranges::sort(blocks, std::greater<>());
  Demand demand{.one = blocks.empty() ? 1 : blocks.front()};
  blocks.resize(std::min<size_t>(blocks.size(), config.max_num_seqs));
  for (const int64_t count : blocks) demand.together += count;
  return demand;
}

sim::ModelRunnerConfig runner_config(const RunOptions& options, int64_t max_lora_rank) {
  const bool is_fp8 = options.lora_dtype == "fp8";
  return {.max_lora_rank = max_lora_rank,
          .lora_dtype = is_fp8 ? sim::LoraDtype::fp8 : sim::LoraDtype::of_model};
}

void require_consistent(const RunOptions& options, const sim::SchedulerConfig& c) {
  if (c.residency.max_cpu_loras < c.residency.max_loras) {
    throw InputError(
        "--max-cpu-loras",
        fmt::format("{} is below --max-loras {}", options.max_cpu_loras, c.residency.max_loras),
        "an adapter in a slot is in host memory too");
  }
  require_token_for_each(c.max_num_batched_tokens, c.max_num_seqs);
}

sim::SchedulerConfig scheduler_config(const RunOptions& options, sim::RequestFile& file,
                                      const ServingModel& model, int64_t num_adapters,
                                      int64_t max_lora_rank) {
  sim::SchedulerConfig c;
  const auto as_needed = int32_t(std::clamp<int64_t>(num_adapters, 1, kDefaultLoras));
  c.residency.max_loras = options.max_loras > 0 ? options.max_loras : as_needed;
  c.residency.max_cpu_loras =
      options.max_cpu_loras > 0 ? options.max_cpu_loras : 4 * c.residency.max_loras;
  c.max_num_seqs = options.max_num_seqs;
  c.max_num_batched_tokens = options.max_num_batched_tokens;
  c.block_size = options.block_size;
  c.max_model_len = max_model_len(options, model.config());
  const Demand demand = demand_of(file, c);
  c.num_blocks = options.kv_blocks > 0
                     ? 1 + options.kv_blocks  // the null block
                     : model.num_kv_blocks(c, runner_config(options, max_lora_rank),
                                           demand.together, demand.one);
  require_consistent(options, c);
  const std::string problem = c.problem();
  if (!problem.empty()) throw InputError("run", problem);
  return c;
}

int64_t slot_rank(const RunOptions& options, const Folders& folders) {
  uint32_t largest = 1;
  for (const auto& [path, folder] : folders) largest = std::max(largest, folder.rank);
  if (options.max_lora_rank == 0) return largest;
  for (const auto& [path, folder] : folders) {
    if (int64_t{folder.rank} <= options.max_lora_rank) continue;
    throw InputError("--max-lora-rank",
                     fmt::format("{} is below the rank {} of {}", options.max_lora_rank,
                                 folder.rank, shown(path)),
                     fmt::format("give {} or leave it out", largest));
  }
  return options.max_lora_rank;
}

std::string describe_engine(const RunOptions& options, const sim::SchedulerConfig& c,
                            int64_t max_lora_rank) {
  return fmt::format("{}; max_loras {} of rank {}{}, max_cpu_loras {}; {} KV blocks of {} tokens",
                     options.executor, c.residency.max_loras, max_lora_rank,
                     options.lora_dtype == "fp8" ? " in fp8" : "", c.residency.max_cpu_loras,
                     format_count(c.num_blocks - 1), c.block_size);
}

// --- the run ----------------------------------------------------------------------------------

sim::ServedFile serve(sim::ServingRun& run, const sim::RequestFile& file, const Folders& folders) {
  const int64_t num_requests = std::ranges::count_if(file.lines, [](const sim::RequestLine& line) {
    return std::holds_alternative<sim::ServingRequest>(line.what);
  });
  Progress progress("running");
  progress.show(0, num_requests, "requests");
  return run.serve(file, folders, [&](int64_t num_finished) {
    progress.show(num_finished, num_requests, "requests");
  });
}

std::unique_ptr<ServingModel> load_model(const RunOptions& options) {
  const Progress progress("loading the model");
  return load_serving_model(options.executor, options.model, options.dtype);
}

// False if the tokenizer fails: the tokens are not lost with their texts.
bool add_texts(Tokenizer& tokenizer, sim::ServingReport& report) {
  try {
    for (const sim::ServedRequest& r : report.served.requests) {
      report.texts.push_back(tokenizer.decode(r.tokens));
    }
  } catch (const std::exception& error) {
    report.texts.clear();
    say_without_texts(error);
    return false;
  }
  return true;
}

void run(const CLI::App& command, const RunOptions& options) {
  const Names names = adapter_names(options);
  sim::ServingReport report;
  report.base_model = options.model;
  report.file = sim::read_request_file(options.requests);
  OutputFiles files(command, input_files(options, names, report.file));
  files.open("--out", options.out);
  sim::resolve_names(report.file, options.model, names_of(names));
  const std::unique_ptr<ServingModel> model = load_model(options);
  const std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(options, report.file);
  if (tokenizer != nullptr) tokenize(*tokenizer, report.file);
  sim::check_vocabulary(report.file, model->config().vocab);
  add_end_tokens(report.file, model->config().eos_token_ids);
  const Folders folders = open_adapters(names, report.file, *model);
  const int64_t max_lora_rank = slot_rank(options, folders);
  const sim::SchedulerConfig config = scheduler_config(
      options, report.file, *model, num_adapters(names, report.file), max_lora_rank);
  report.engine = describe_engine(options, config, max_lora_rank);

  WallClock clock;
  const auto executor = model->start(config, runner_config(options, max_lora_rank), clock);
  sim::ServingRun engine(config, *executor, clock,
                         steps_ahead(options.async_scheduling, options.executor));
  for (const auto& [name, path] : names) engine.add_adapter(name, folders.at(path));
  clock.restart();
  report.served = serve(engine, report.file, folders);
  const bool has_texts = tokenizer == nullptr || add_texts(*tokenizer, report);
  write_served_requests(*files.find("--out"), report);
  files.commit();  // before the table: whoever reads that may go away
  std::fputs(serving_console(report).c_str(), files.table());
  end_with(has_texts && num_failures(report) == 0 ? ExitCode::good : ExitCode::failure);
}

void add_engine_options(CLI::App& command, RunOptions& options) {
  add_number(command, "--max-loras", options.max_loras, {0, kMostLoras},
             "Slots for adapters; 0 = one for each adapter, 8 at most");
  add_number(command, "--max-cpu-loras", options.max_cpu_loras, {0, 1 << 20},
             "Adapters in host memory; 0 = 4 x max-loras");
  add_number(command, "--max-lora-rank", options.max_lora_rank, {0, 512},
             "Room of a slot; 0 = the largest rank there is");
  add_choice(command, "--lora-dtype", options.lora_dtype, {"auto", "fp8"},
             "Type of adapters in slots and in host memory; auto = the model's");
  add_number(command, "--max-num-seqs", options.max_num_seqs, {1, 65'536}, "Requests per step");
  add_number(command, "--max-num-batched-tokens", options.max_num_batched_tokens, {1, 1 << 20},
             "Tokens per step");
  add_number(command, "--max-model-len", options.max_model_len, {0, 1 << 24},
             "Longest prompt and output together; 0 = the model's positions");
  add_number(command, "--block-size", options.block_size, {1, 1024}, "Tokens per KV block");
  add_number(command, "--kv-blocks", options.kv_blocks, {0, 1 << 24},
             "Number of KV blocks; 0 = what the requests fill, up to 1 GiB");
}

}  // namespace

void add_run(CLI::App& app) {
  CLI::App& command = *app.add_subcommand(
      "run", "Run requests on a real model with adapters: tokens, log probabilities, times");
  const auto options = std::make_shared<RunOptions>();
  command.add_option("--model", options->model, "Folder of the base model (Hugging Face)")
      ->required();
  command
      .add_option("--adapter", options->adapters,
                  "NAME=DIR of an adapter that PEFT saved; may be repeated")
      ->allow_extra_args(false);
  command
      .add_option("--requests", options->requests,
                  "JSON lines: requests and operations (docs/serving.md), - for stdin")
      ->required();
  add_choice(command, "--executor", options->executor, executor_names(), "What computes");
  add_choice(command, "--dtype", options->dtype, dtype_names(),
             "Of weights and activations on the GPU; auto = the model's");
  add_async_scheduling(command, options->async_scheduling);
  command.add_option("--out", options->out, "Write one JSON line per request")->required();
  command.add_option("--python", options->python,
                     "Python 3 with the package tokenizers, for prompts and outputs as text");
  add_engine_options(command, *options);
  command.final_callback([&command, options] { run(command, *options); });
}

}  // namespace loratory::cli

#include "cli/settings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <array>
#include <filesystem>
#include <string>
#include <string_view>

#include "reference/base/units.hpp"
#include "scheduler_sim/trace/byte_source.hpp"

namespace loratory::cli {
namespace {

constexpr const char* kOutputs = "Outputs";

bool is_setting(const CLI::Option& option) {
  return !option.get_lnames().empty() && option.get_configurable() &&
         option.get_group() != kOutputs && !option.check_lname("help");
}

// The defaults of --engine, as the help of a program that has them.
class Defaults {
 public:
  explicit Defaults(const SystemOptions& system) : system_(with_engine_defaults(system)) {
    add_system_options(help_, system_);
  }
  std::string of(const CLI::Option& option) const {
    const std::string name = option.get_lnames().front();
    if (option.get_expected_min() == 0) return is_on(name) ? "true" : "false";
    const CLI::Option* const known = help_.get_option_no_throw("--" + name);
    const std::string text = (known == nullptr ? option : *known).get_default_str();
    return text == kNever ? "inf" : text;
  }

 private:
  static constexpr std::string_view kNever = "9223372036854775807";  // of add_count_or_inf()

  bool is_on(std::string_view name) const {
    return (name == "no-prefetch" && system_.no_prefetch) ||
           (name == "lora-max-grid" && system_.lora_max_grid) ||
           (name == "lora-padded-ranks" && system_.lora_padded_ranks);
  }
  SystemOptions system_;
  CLI::App help_;
};

sim::Setting setting_of(const CLI::Option& option, const Defaults& defaults) {
  const bool is_given = option.count() > 0;
  return {option.get_lnames().front(),
          is_given ? fmt::format("{}", fmt::join(option.results(), ",")) : defaults.of(option),
          is_given};
}

std::string gigabytes(int64_t bytes) { return fmt::format("{}", double(bytes) / 1e9); }

// What the flags that have no fixed default came to.
std::string resolved(std::string_view name, const sim::EngineSpec& engine) {
  if (name == "max-lora-rank") return fmt::format("{}", engine.memory.max_lora_rank);
  if (name == "block-size") return fmt::format("{}", engine.scheduler.block_size);
  if (name == "max-model-len") return fmt::format("{}", engine.scheduler.max_model_len);
  if (name == "disk-gbps") return gigabytes(engine.loads.disk_bytes_per_s);
  if (name == "h2d-gbps") return gigabytes(engine.loads.h2d_bytes_per_s);
  if (name == "reserve-gib") {
    const int64_t given = engine.memory.reserve_bytes;
    const int64_t bytes =
        given >= 0 ? given : sim::default_reserve_bytes(engine.model, engine.memory);
    return fmt::format("{}", double(bytes) / double(kGiB));
  }
  return "";
}

std::string checksum_of(const std::string& path) {
  sim::ChecksummedSource source(sim::open_file(path));
  std::array<char, 65536> bytes;
  while (source.read(bytes.data(), bytes.size()) > 0) {
  }
  return source.checksum();
}

}  // namespace

std::vector<sim::Setting> settings_of(const CLI::App& command, const SystemOptions& system,
                                      const sim::EngineSpec& engine) {
  const Defaults defaults(system);
  std::vector<sim::Setting> settings;
  for (const CLI::Option* option : command.get_options()) {
    if (!is_setting(*option)) continue;
    sim::Setting setting = setting_of(*option, defaults);
    if (setting.value.empty()) setting.value = resolved(setting.name, engine);
    settings.push_back(std::move(setting));
  }
  return settings;
}

std::vector<sim::Provenance::Input> inputs_of(const sim::Trace& trace,
                                              const std::vector<InputFile>& files) {
  std::vector<sim::Provenance::Input> inputs = {{trace.source, trace.checksum, trace.format}};
  for (const InputFile& file : files) {
    std::error_code error;
    const bool is_plain = std::filesystem::is_regular_file(file.path, error);
    if (file.what == "the trace" || !is_plain) continue;
    const std::string_view what = file.what;
    inputs.push_back({file.path, checksum_of(file.path),
                      std::string(what.starts_with("the ") ? what.substr(4) : what)});
  }
  return inputs;
}

}  // namespace loratory::cli

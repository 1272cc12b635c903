#include "scheduler_sim/cost/gpu_spec.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "reference/base/input_error.hpp"
#include "reference/base/text.hpp"
#include "reference/base/units.hpp"

namespace loratory::sim {
namespace {

constexpr std::string_view kPlace = "--gpu";
constexpr double kPcie4 = 32e9;  // x16, one direction
constexpr double kPcie5 = 64e9;
constexpr double kLargestMemoryBytes = 1e15;
constexpr double kLeastBandwidth = 1e6;
constexpr double kLargestBandwidth = 16e12;

struct Preset {
  const char* name;
  const char* source;
  double memory_gib;  // as the driver reports it: less than the datasheet's figure
  double bandwidth, flops, host, link;
};

constexpr std::array<Preset, 7> kPresets{{
    {"A100-80", "NVIDIA A100 datasheet (SXM4 80 GB)", 79.1, 2.039e12, 312e12, kPcie4, 300e9},
    {"H100-80", "NVIDIA H100 datasheet (SXM5)", 79.1, 3.35e12, 989e12, kPcie5, 450e9},
    {"H200", "NVIDIA H200 datasheet (SXM)", 139.7, 4.8e12, 989e12, kPcie5, 450e9},
    {"L40S", "NVIDIA L40S datasheet", 44.4, 864e9, 362e12, kPcie4, kPcie4},
    {"A10G", "AWS G5 / NVIDIA A10G datasheet", 22.0, 600e9, 70e12, kPcie4, kPcie4},
    {"RTX-4090", "NVIDIA Ada GPU architecture whitepaper", 23.51, 1.008e12, 165.2e12, kPcie4,
     kPcie4},
    {"RTX-PRO-6000", "NVIDIA RTX PRO 6000 Blackwell datasheet", 94.9, 1.597e12, 503.8e12, kPcie5,
     kPcie5},
}};

GpuSpec from_preset(const Preset& preset) {
  GpuSpec gpu;
  gpu.name = preset.name;
  gpu.source = preset.source;
  gpu.memory_bytes = int64_t(preset.memory_gib * double(kGiB));
  gpu.bandwidth_bytes_per_s = preset.bandwidth;
  gpu.flops = preset.flops;
  gpu.host_bytes_per_s = preset.host;
  gpu.link_bytes_per_s = preset.link;
  return gpu;
}

GpuSpec preset_named(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (name == preset.name) return from_preset(preset);
  }
  throw InputError(kPlace, fmt::format("unknown GPU '{}'", name),
                   fmt::format("use one of {}, or mem=80GiB,bw=3.35TB/s,flops=989T",
                               fmt::join(gpu_preset_names(), ", ")));
}

int64_t parse_memory(std::string_view value) {
  const double bytes = parse_quantity(value, "B", kPlace);
  if (bytes > kLargestMemoryBytes) {
    throw InputError(kPlace, fmt::format("mem={} is more than any GPU has", value));
  }
  return int64_t(bytes);
}

double parse_bandwidth(std::string_view value) {
  const double bytes_per_s = parse_quantity(value, "B/s", kPlace);
  if (bytes_per_s < kLeastBandwidth || bytes_per_s > kLargestBandwidth) {
    throw InputError(kPlace, fmt::format("a bandwidth of {} is not from 1MB/s to 16TB/s", value));
  }
  return bytes_per_s;
}

void set_number(GpuSpec& gpu, std::string_view key, std::string_view value) {
  if (key == "mem") {
    gpu.memory_bytes = parse_memory(value);
  } else if (key == "bw") {
    gpu.bandwidth_bytes_per_s = parse_bandwidth(value);
  } else if (key == "flops") {
    gpu.flops = parse_quantity(value, "FLOP/s", kPlace);
  } else if (key == "host") {
    gpu.host_bytes_per_s = parse_bandwidth(value);
  } else if (key == "link") {
    gpu.link_bytes_per_s = parse_bandwidth(value);
  } else {
    throw InputError(kPlace, fmt::format("unknown key '{}'", key),
                     "the keys are mem, bw, flops, host and link");
  }
}

}  // namespace

std::vector<std::string> gpu_preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

GpuSpec parse_gpu_spec(std::string_view text) {
  GpuSpec gpu;
  for (const std::string_view item : split(text, ',')) {
    const size_t equals = item.find('=');
    if (equals != std::string_view::npos) {
      set_number(gpu, item.substr(0, equals), item.substr(equals + 1));
    } else if (item.data() == text.data()) {
      gpu = preset_named(item);
    } else {
      throw InputError(kPlace, fmt::format("'{}' is not key=value", item));
    }
  }
  if (gpu.memory_bytes == 0 || gpu.bandwidth_bytes_per_s == 0 || gpu.flops == 0) {
    throw InputError(kPlace, fmt::format("'{}' lacks mem, bw or flops", text),
                     "give all three, e.g. mem=80GiB,bw=3.35TB/s,flops=989T");
  }
  if (gpu.host_bytes_per_s == 0) gpu.host_bytes_per_s = kPcie4;
  if (gpu.link_bytes_per_s == 0) gpu.link_bytes_per_s = gpu.host_bytes_per_s;
  if (gpu.name != text) {
    gpu.name = std::string(text);
    gpu.source = "command line";
  }
  return gpu;
}

}  // namespace loratory::sim

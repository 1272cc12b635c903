#include "scheduler_sim/cost/gpu_spec.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>

#include "reference/base/input_error.hpp"
#include "reference/base/text.hpp"
#include "reference/base/units.hpp"
#include "reference/base/wording.hpp"

namespace loratory::sim {
namespace {

constexpr std::string_view kPlace = "--gpu";
constexpr double kPcie4 = 32e9;  // x16, one direction
constexpr double kPcie5 = 64e9;
constexpr double kLargestMemoryBytes = 4e12;
constexpr double kLeastBandwidth = 1e6;
constexpr double kLargestBandwidth = 16e12;
constexpr double kLeastFlops = 1e9;
constexpr double kLargestFlops = 1e18;

// memory_gib: what a program sees as the total (cudaMemGetInfo, hipMemGetInfo), which is less than
// nvidia-smi shows and much less than the datasheet: as PyTorch's "total capacity of" lines quote
// it, the smallest figure where drivers differ. Rates are dense and accumulate in fp32; fp8 = 0 is
// a GPU whose matrix units have no such type. Multiprocessors and clock are those that make the
// FP32 rate of the same sheets, 256 FLOP per multiprocessor and cycle (A100: 128), which a test
// holds them to. We found no sheet with the clock of the RTX PRO 6000 Server: it has the tensor
// rates of the Workstation Edition here, and so its clock (NVIDIA RTX Blackwell PRO GPU
// Architecture v1.1, table 4: 503.8 TFLOP/s, which is 2,617 MHz; the Max-Q Edition's 438.9 are
// 2,280 MHz).
struct Preset {
  const char* name;
  const char* source;
  double memory_gib;
  double bandwidth, flops, fp8_flops, host, link;
  double sms, ghz;  // multiprocessors (compute units), boost clock
};

constexpr std::array<Preset, 15> kPresets{{
    // name, source, memory GiB, bandwidth, bf16, fp8, host, link, multiprocessors, GHz
    {"A100-40", "NVIDIA A100 datasheet (SXM4 40 GB)", 39.39, 1.555e12, 312e12, 0, kPcie4, 300e9,
     108, 1.41},
    {"A100-80", "NVIDIA A100 datasheet (SXM4 80 GB)", 79.1, 2.039e12, 312e12, 0, kPcie4, 300e9, 108,
     1.41},
    {"A100-80-PCIe", "NVIDIA A100 datasheet (PCIe 80 GB)", 79.1, 1.935e12, 312e12, 0, kPcie4,
     kPcie4, 108, 1.41},
    {"H100-80", "NVIDIA H100 datasheet (SXM5)", 79.1, 3.35e12, 989e12, 1979e12, kPcie5, 450e9, 132,
     1.98},
    {"H100-PCIe", "NVIDIA H100 PCIe product brief", 79.1, 2.0e12, 756e12, 1513e12, kPcie5, kPcie5,
     114, 1.755},
    {"H100-NVL", "NVIDIA H100 datasheet (NVL)", 93.0, 3.9e12, 835e12, 1671e12, kPcie5, 300e9, 132,
     1.785},
    {"H200", "NVIDIA H200 datasheet (SXM)", 139.7, 4.8e12, 989e12, 1979e12, kPcie5, 450e9, 132,
     1.98},
    {"B200", "NVIDIA Blackwell datasheet (HGX B200)", 178.3, 7.7e12, 2250e12, 4500e12, kPcie5,
     900e9, 148, 1.98},
    {"L4", "NVIDIA L4 datasheet", 21.9, 300e9, 121e12, 242.5e12, kPcie4, kPcie4, 58, 2.04},
    {"L40S", "NVIDIA L40S datasheet", 44.4, 864e9, 362e12, 733e12, kPcie4, kPcie4, 142, 2.52},
    {"A10G", "AWS G5 / NVIDIA A10G datasheet", 22.0, 600e9, 70e12, 0, kPcie4, kPcie4, 80, 1.71},
    {"RTX-4090", "NVIDIA Ada GPU architecture whitepaper", 23.51, 1.008e12, 165.2e12, 330.3e12,
     kPcie4, kPcie4, 128, 2.52},
    {"RTX-PRO-6000", "NVIDIA RTX PRO 6000 Blackwell datasheet (Server)", 94.9, 1.597e12, 503.8e12,
     1007.6e12, kPcie5, kPcie5, 188, 2.617},
    {"RTX-PRO-6000-WS", "NVIDIA RTX PRO 6000 Blackwell datasheet (Workstation)", 94.9, 1.792e12,
     503.8e12, 1007.6e12, kPcie5, kPcie5, 188, 2.617},
    {"MI300X", "AMD Instinct MI300X datasheet", 191.9, 5.3e12, 1307.4e12, 2614.9e12, kPcie5, 448e9,
     304, 2.1},
}};

struct Alias {
  std::string_view name;  // as plain_name() leaves it; one that ends in '*' is a beginning
  std::string_view preset;
};

// What nvidia-smi and rocm-smi call them, Kubernetes' accelerator labels, and the instance types of
// clouds that have one kind of GPU each.
constexpr Alias kAliases[] = {
    // name, preset
    {"a100-sxm4-40gb", "A100-40"},
    {"a100-pcie-40gb", "A100-40"},
    {"a100-40gb", "A100-40"},
    {"tesla-a100", "A100-40"},
    {"p4d.24xlarge", "A100-40"},
    {"a2-highgpu-*", "A100-40"},
    {"a2-megagpu-*", "A100-40"},
    {"standard-nd96asr-v4", "A100-40"},
    {"a100-sxm4-80gb", "A100-80"},
    {"a100-80gb", "A100-80"},
    {"p4de.24xlarge", "A100-80"},
    {"a2-ultragpu-*", "A100-80"},
    {"standard-nd96amsr-a100-v4", "A100-80"},
    {"a100-80gb-pcie", "A100-80-PCIe"},
    {"standard-nc24ads-a100-v4", "A100-80-PCIe"},
    {"standard-nc48ads-a100-v4", "A100-80-PCIe"},
    {"standard-nc96ads-a100-v4", "A100-80-PCIe"},
    {"h100-80gb-hbm3", "H100-80"},
    {"h100-80gb", "H100-80"},
    {"h100-mega-80gb", "H100-80"},
    {"h100-sxm*", "H100-80"},
    {"p5.*", "H100-80"},
    {"a3-highgpu-*", "H100-80"},
    {"a3-megagpu-*", "H100-80"},
    {"standard-nd96isr-h100-v5", "H100-80"},
    {"h100-pcie*", "H100-PCIe"},
    {"h100-nvl", "H100-NVL"},
    {"standard-nc40ads-h100-v5", "H100-NVL"},
    {"standard-nc80adis-h100-v5", "H100-NVL"},
    {"h200-141gb", "H200"},
    {"h200-sxm*", "H200"},
    {"p5e.*", "H200"},
    {"p5en.*", "H200"},
    {"a3-ultragpu-*", "H200"},
    {"standard-nd96isr-h200-v5", "H200"},
    {"p6-b200.*", "B200"},
    {"a4-highgpu-*", "B200"},
    {"g6.*", "L4"},
    {"g2-standard-*", "L4"},
    {"g6e.*", "L40S"},
    {"g5.*", "A10G"},
    {"rtx-pro-6000-blackwell-server-edition", "RTX-PRO-6000"},
    {"rtx-pro-6000-blackwell-workstation-edition", "RTX-PRO-6000-WS"},
    {"g7e.*", "RTX-PRO-6000"},
    {"mi300x-*", "MI300X"},
    {"standard-nd96isr-mi300x-v5", "MI300X"},
};

// Names that fit several presets: which one changes the answer by a factor.
constexpr Alias kAmbiguous[] = {{"a100", "A100-40 or A100-80"},
                                {"h100", "H100-80 (SXM), H100-PCIe or H100-NVL"},
                                {"rtx-pro-6000-blackwell", "RTX-PRO-6000 or RTX-PRO-6000-WS"}};

// "NVIDIA GeForce RTX 4090" -> "rtx-4090": lower case, one '-' between words, no makers.
std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    const bool separates = c == ' ' || c == '_' || c == '-';
    if (!separates) plain += char(std::tolower(uint8_t(c)));
    if (separates && !plain.empty() && plain.back() != '-') plain += '-';
  }
  for (const std::string_view maker : {"nvidia-", "amd-", "geforce-", "instinct-"}) {
    if (plain.starts_with(maker)) plain.erase(0, maker.size());
  }
  return plain;
}

bool matches(std::string_view plain, std::string_view pattern) {
  if (!pattern.ends_with('*')) return plain == pattern;
  return plain.starts_with(pattern.substr(0, pattern.size() - 1));
}

// The name of a preset, or nothing.
std::string_view preset_of(const std::string& plain) {
  for (const Preset& preset : kPresets) {
    if (equal_ignoring_case(plain, preset.name)) return preset.name;
  }
  for (const Alias& alias : kAliases) {
    if (matches(plain, alias.name)) return alias.preset;
  }
  return {};
}

GpuSpec from_preset(const Preset& preset) {
  GpuSpec gpu;
  gpu.name = gpu.preset = preset.name;
  gpu.source = preset.source;
  gpu.memory_bytes = int64_t(preset.memory_gib * double(kGiB));
  gpu.bandwidth_bytes_per_s = preset.bandwidth;
  gpu.flops = preset.flops;
  gpu.fp8_flops = preset.fp8_flops;
  gpu.host_bytes_per_s = preset.host;
  gpu.link_bytes_per_s = preset.link;
  gpu.sm_ghz = preset.sms * preset.ghz;
  return gpu;
}

[[noreturn]] void refuse_unknown(std::string_view name) {
  std::vector<std::string> names = gpu_preset_names();
  const std::string all =
      fmt::format("use one of {}, or mem=80GiB,bw=3.35TB/s,flops=989T", fmt::join(names, ", "));
  for (const Alias& several : kAmbiguous) names.emplace_back(several.name);
  std::string remedy = did_you_mean(name, names, all);
  const std::string_view guess = nearest(name, names);
  for (const Alias& several : kAmbiguous) {
    if (guess == several.name) remedy = fmt::format("did you mean {}?", several.preset);
  }
  throw InputError(kPlace, fmt::format("unknown GPU {}", shown(name)), remedy);
}

GpuSpec preset_named(std::string_view name) {
  const std::string plain = plain_name(name);
  for (const Alias& several : kAmbiguous) {
    if (plain != several.name) continue;
    throw InputError(kPlace, fmt::format("'{}' may be one of several GPUs", name),
                     fmt::format("say {}", several.preset));
  }
  const std::string_view found = preset_of(plain);
  for (const Preset& preset : kPresets) {
    if (found == preset.name) return from_preset(preset);
  }
  refuse_unknown(name);
}

int64_t parse_memory(std::string_view value) {
  const double bytes = parse_quantity(value, "B", kPlace);
  if (bytes > kLargestMemoryBytes) {
    throw InputError(kPlace, fmt::format("mem={} is more than any GPU has", value));
  }
  return int64_t(bytes);
}

double parse_bandwidth(std::string_view value, double least = kLeastBandwidth) {
  const double bytes_per_s = parse_quantity(value, "B/s", kPlace);
  if (bytes_per_s < least || bytes_per_s > kLargestBandwidth) {
    throw InputError(kPlace, fmt::format("a bandwidth of {} is not from {:g}MB/s to 16TB/s", value,
                                         least / 1e6));
  }
  return bytes_per_s;
}

double parse_flops(std::string_view value) {
  const double flops = parse_quantity(value, "FLOP/s", kPlace);
  if (flops < kLeastFlops || flops > kLargestFlops) {
    throw InputError(kPlace, fmt::format("{} FLOP/s are not from 1G to 1E", value));
  }
  return flops;
}

void set_number(GpuSpec& gpu, std::string_view key, std::string_view value) {
  if (key == "mem") {
    gpu.memory_bytes = parse_memory(value);
  } else if (key == "bw") {
    gpu.bandwidth_bytes_per_s = parse_bandwidth(value);
  } else if (key == "flops") {
    gpu.flops = parse_flops(value);
  } else if (key == "fp8") {
    gpu.fp8_flops = parse_flops(value);
  } else if (key == "host") {
    // What transfers reach of it is no less than the least bandwidth.
    gpu.host_bytes_per_s = parse_bandwidth(value, kLeastBandwidth / gpu.link_fraction);
  } else if (key == "link") {
    gpu.link_bytes_per_s = parse_bandwidth(value);
  } else {
    throw InputError(kPlace, fmt::format("unknown key '{}'", key),
                     "the keys are mem, bw, flops, fp8, host and link");
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
  std::set<std::string_view> keys;
  for (const std::string_view item : split(text, ',')) {
    const size_t equals = item.find('=');
    if (equals != std::string_view::npos) {
      const std::string_view key = item.substr(0, equals);
      set_number(gpu, key, item.substr(equals + 1));
      if (!keys.insert(key).second) {
        throw InputError(kPlace, fmt::format("{} is given twice", key), "give it once");
      }
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
  if (text.find('=') != std::string_view::npos) {
    gpu.name = std::string(text);
    gpu.source = "command line";
  }
  return gpu;
}

}  // namespace loratory::sim

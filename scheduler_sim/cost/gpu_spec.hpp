#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace loratory::sim {

/// One GPU: peak numbers of its datasheet and the fraction of each that kernels reach.
struct GpuSpec {
  std::string name;
  std::string preset;                ///< that it is, or was before numbers were replaced
  std::string source;                ///< datasheet
  int64_t memory_bytes = 0;          ///< total memory that the driver reports to programs
  double bandwidth_bytes_per_s = 0;  ///< device memory
  double flops = 0;                  ///< dense bf16 tensor FLOP/s, fp32 accumulation
  double fp8_flops = 0;              ///< dense FP8 tensor FLOP/s; 0 = FP8 runs at bf16's rate
  double sm_ghz = 0;                 ///< multiprocessors x boost clock; 0 = not known
  double host_bytes_per_s = 0;       ///< host link, one direction (PCIe or C2C)
  double link_bytes_per_s = 0;       ///< to the other GPUs of the host, one direction

  /// Achievable fractions. An H200 reaches .89 of its bandwidth (copy) and .80 of its FLOP/s
  /// (bf16 matmul); an RTX 4090 .93 and 1.0, an RTX PRO 6000 .89 and .79 in the layers of an 8B
  /// model; attention kernels .4 to .55 of the peak FLOP/s in prefill.
  double bandwidth_fraction = 0.9;
  double matmul_fraction = 0.8;
  double attention_fraction = 0.5;
  double link_fraction = 0.8;
};

/// Names of the presets, in the order in which `--help` shows them.
std::vector<std::string> gpu_preset_names();

/// A preset by name, a list of numbers ("mem=80GiB,bw=3.35TB/s,flops=989T"), or a preset with some
/// replaced ("H100-80,mem=64GiB,bw=2.02TB/s"). Names go as nvidia-smi, rocm-smi and clouds write
/// them too ("NVIDIA H100 80GB HBM3", "p5.48xlarge", "nvidia-l4"), in any case. Keys: mem, bw,
/// flops, fp8 (default 0), host (default 32GB/s), link (default: host). Throws InputError for an
/// unknown name, key or number, for a name that several GPUs have ("A100"), and when a list without
/// a preset lacks mem, bw or flops.
GpuSpec parse_gpu_spec(std::string_view text);

}  // namespace loratory::sim

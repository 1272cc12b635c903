#include "gpu/engine/device/device_model.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "gpu/engine/device/engine_kernels.hpp"
#include "gpu/engine/engine_options.hpp"
#include "gpu/runtime/cuda_check.hpp"
#include "gpu/runtime/cuda_handles.hpp"
#include "reference/model/checkpoint.hpp"

namespace loratory::gpu {

using reference::Checkpoint;
using reference::Dtype;
using reference::Model;
using reference::ModelConfig;
using reference::StoredTensor;

namespace {

constexpr size_t kStagingBytes = size_t{64} << 20;

// Writes to the GPU through two page-locked buffers: one is filled while the other is copied.
class Upload {
 public:
  Upload() {
    for (Half& half : halves_) {
      half.bytes = make_pinned_buffer(kStagingBytes);
      half.copied = make_event();
    }
  }
  ~Upload() { cudaStreamSynchronize(stream_.get()); }

  /// write(out, begin, end) gives bytes [begin, end) of what shall lie at `to`.
  void copy(std::byte* to, size_t bytes,
            const std::function<void(std::byte* out, size_t begin, size_t end)>& write) {
    for (size_t begin = 0; begin < bytes; begin += kStagingBytes) {
      const size_t end = std::min(bytes, begin + kStagingBytes);
      Half& half = halves_[next_];
      next_ = 1 - next_;
      LORATORY_CUDA_CHECK(cudaEventSynchronize(half.copied.get()));
      write(half.bytes.get(), begin, end);
      LORATORY_CUDA_CHECK(cudaMemcpyAsync(to + begin, half.bytes.get(), end - begin,
                                          cudaMemcpyHostToDevice, stream_.get()));
      LORATORY_CUDA_CHECK(cudaEventRecord(half.copied.get(), stream_.get()));
    }
  }
  void finish() { LORATORY_CUDA_CHECK(cudaStreamSynchronize(stream_.get())); }

 private:
  struct Half {
    PinnedBuffer bytes;
    Event copied;
  };
  Stream stream_ = make_stream();
  Half halves_[2];
  size_t next_ = 0;
};

void write_number(Dtype dtype, std::byte* out, double value) {
  if (dtype == Dtype::f32) {
    const auto number = float(value);
    std::memcpy(out, &number, sizeof number);
  } else {
    const auto bits = uint16_t(encode(dtype, value));
    std::memcpy(out, &bits, sizeof bits);
  }
}

}  // namespace

DeviceModel::DeviceModel(const ModelConfig& config, Dtype dtype) : config_(config), dtype_(dtype) {
  require_gpu_model(config, dtype);
  layout_ = lay_out_weights(config, dtype);
  weights_ = make_device_buffer(size_t(layout_.bytes));
}

DeviceModel DeviceModel::from(const Model& model, Dtype dtype) {
  DeviceModel out(model.config, dtype);
  Upload upload;
  const size_t size = size_bytes(dtype);
  for (const WeightPart& part : out.layout_.parts) {
    const WeightNumbers numbers = numbers_of(model, part);
    upload.copy(out.weights_.get() + part.offset, size_t(part.size()) * size,
                [&](std::byte* to, size_t begin, size_t end) {
                  for (size_t i = begin / size; i < end / size; ++i, to += size) {
                    const auto at = std::div(int64_t(i), part.num_columns);
                    write_number(dtype, to, numbers.at(at.quot, at.rem));
                  }
                });
  }
  upload.finish();
  return out;
}

namespace {

void upload_stored(const StoredTensor& tensor, Dtype dtype, std::byte* to, Upload& upload) {
  const Dtype stored = *weight_dtype(tensor.dtype);
  const size_t from_size = size_bytes(stored), size = size_bytes(dtype);
  const size_t count = tensor.bytes.size() / from_size;
  upload.copy(to, count * size, [&](std::byte* out, size_t begin, size_t end) {
    if (stored == dtype) {
      std::memcpy(out, tensor.bytes.data() + begin, end - begin);
      return;
    }
    for (size_t i = begin / size; i < end / size; ++i, out += size) {
      write_number(dtype, out, reference::load(stored, tensor.bytes.data() + i * from_size));
    }
  });
}

// As load_model() of reference/model finds out.
ExpertNames expert_names(const ModelConfig& config, const Checkpoint& checkpoint) {
  ExpertNames out;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    if (!has_experts(config, i)) continue;
    const std::string layer = fmt::format("model.layers.{}.", i);
    out.of_mixtral = checkpoint.has(layer + "block_sparse_moe.gate.weight");
    const char* const block = out.of_mixtral ? "block_sparse_moe." : "mlp.";
    out.fused = checkpoint.has(layer + block + "experts.gate_up_proj");
    break;
  }
  return out;
}

// Tensors that a checkpoint may have and the layout has not.
void take_known_rest(const ModelConfig& config, Checkpoint& checkpoint) {
  for (int64_t i = 0; i < config.num_layers; ++i) {
    checkpoint.ignore(fmt::format("model.layers.{}.self_attn.rotary_emb.inv_freq", i));
  }
  if (!config.tied_embeddings || !checkpoint.has("lm_head.weight")) return;
  const std::vector<int64_t> shape{config.vocab, config.hidden};
  const auto& head = checkpoint.stored("lm_head.weight", shape);
  const auto& embedding = checkpoint.stored("model.embed_tokens.weight", shape);
  if (head.dtype != embedding.dtype || !std::ranges::equal(head.bytes, embedding.bytes)) {
    checkpoint.fail("lm_head.weight", "differs from the embeddings that it is tied to");
  }
}

}  // namespace

DeviceModel DeviceModel::load(const std::string& directory, Dtype dtype) {
  const ModelConfig config = reference::read_model_config(fmt::format("{}/config.json", directory),
                                                          "a model is a folder with a config.json");
  require_gpu_model(config, dtype);
  Checkpoint checkpoint(directory);
  take_known_rest(config, checkpoint);
  const WeightLayout layout = lay_out_weights(config, dtype);
  const std::vector<StoredPart> parts = stored_parts(layout, expert_names(config, checkpoint));
  std::vector<const StoredTensor*> tensors;  // all are looked at before any memory is taken
  for (const StoredPart& part : parts) {
    tensors.push_back(&checkpoint.stored(part.name, part.shape));
  }
  checkpoint.refuse_unused();
  DeviceModel out(config, dtype);
  Upload upload;
  for (size_t i = 0; i < tensors.size(); ++i) {
    upload_stored(*tensors[i], dtype, out.weights_.get() + parts[i].offset, upload);
  }
  upload.finish();
  return out;
}

void DeviceModel::fill_part(const WeightPart& part, uint64_t seed) {
  void* const at = weights_.get() + part.offset;
  switch (part.role) {
    case WeightRole::norm:
    case WeightRole::input_norm:
    case WeightRole::post_attention_norm:
    case WeightRole::q_norm:
    case WeightRole::k_norm:
      return fill(dtype_, at, part.size(), 1, nullptr);
    default:
      break;
  }
  if (part.is_vector()) return fill(dtype_, at, part.size(), 0, nullptr);
  const auto size = float(1 / std::sqrt(double(part.num_columns)));
  fill_random(dtype_, at, part.size(), size, seed + uint64_t(part.offset), nullptr);
}

DeviceModel DeviceModel::random(const ModelConfig& config, Dtype dtype, uint64_t seed) {
  DeviceModel out(config, dtype);
  for (const WeightPart& part : out.layout_.parts) out.fill_part(part, seed);
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  return out;
}

}  // namespace loratory::gpu

#include "attention_case.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "gpu/runtime/cuda_check.hpp"
#include "upload.hpp"

namespace loratory::gpu {

using reference::Tensor;

AttentionOnGpu::AttentionOnGpu(const Sequences& sequences, std::vector<Chunk> chunks,
                               const BatchLayout& layout)
    : AttentionBatch(sequences, std::move(chunks), layout) {
  for (int i = 0; i < kNumArrays; ++i) arrays_.push_back(upload(array(Array(i))));
  for (int i = 0; i < kNumTensors; ++i) on_gpu_.emplace_back(tensor(Role(i)));
  const auto num_bytes = size_t(plan().workspace_bytes());
  workspace_ = make_device_buffer(num_bytes);
  LORATORY_CUDA_CHECK(cudaMemset(workspace_.get(), 0xFF, num_bytes));
}

BatchView AttentionOnGpu::batch_on_gpu() const {
  const int32_t* at[kNumArrays];
  for (int i = 0; i < kNumArrays; ++i) {
    at[i] = reinterpret_cast<const int32_t*>(arrays_[size_t(i)].get());
  }
  return batch(at);
}

void AttentionOnGpu::enqueue(CUstream_st* stream) const {
  const BatchView batch = batch_on_gpu();
  plan().build_work(batch, workspace_.get(), stream);
  const DeviceView views[] = {on_gpu_[kQuery].view(), on_gpu_[kOut].view(), on_gpu_[kKeys].view(),
                              on_gpu_[kValues].view()};
  plan().launch(tensors(views), batch, most_tokens(), workspace_.get(), stream);
}

void AttentionOnGpu::become(const AttentionOnGpu& other) const {
  for (int i = 0; i < kNumArrays; ++i) {
    LORATORY_CUDA_CHECK(cudaMemcpy(arrays_[size_t(i)].get(), other.arrays_[size_t(i)].get(),
                                   array(Array(i)).size() * sizeof(int32_t),
                                   cudaMemcpyDeviceToDevice));
  }
  for (size_t i = 0; i < on_gpu_.size(); ++i) {
    ASSERT_EQ(on_gpu_[i].num_bytes(), other.on_gpu_[i].num_bytes());
    LORATORY_CUDA_CHECK(cudaMemcpy(on_gpu_[i].view().data, other.on_gpu_[i].view().data,
                                   on_gpu_[i].num_bytes(), cudaMemcpyDeviceToDevice));
  }
}

Tensor AttentionOnGpu::read() const {
  LORATORY_CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_TRUE(on_gpu_[kOut].guards_are_intact()) << "written around the results";
  return on_gpu_[kOut].read();
}

Tensor AttentionOnGpu::run() const {
  enqueue(nullptr);
  Tensor results = read();
  EXPECT_EQ(padding_with_numbers(*this, results), -1) << "a padding token has numbers";
  return results;
}

}  // namespace loratory::gpu

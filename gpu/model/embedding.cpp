#include "gpu/model/embedding.hpp"

#include "gpu/model/model_checks.hpp"
#include "gpu/model/model_launch.hpp"

namespace loratory::gpu {

void embed(const BatchView& batch, const EmbedArgs& args, CUstream_st* stream, LaunchOrder order) {
  check_batch(batch, "embed: batch");
  check_matrix(args.table, "embed: table");
  const int64_t hidden = args.table.shape[1];
  check_matrix_like(args.x, args.table.dtype, batch.num_tokens, hidden, "embed: x");
  if (batch.num_tokens == 0) return;
  const auto size = int64_t(size_bytes(args.x.dtype));
  launch_embed({.batch = batch,
                .table = args.table.data,
                .x = args.x.data,
                .ids = args.ids,
                .table_stride_bytes = args.table.strides[0] * size,
                .x_stride_bytes = args.x.strides[0] * size,
                .row_bytes = hidden * size,
                .vocab = int32_t(args.table.shape[0]),
                .uses_vectors = hidden * size % 16 == 0 && has_aligned_rows(args.table) &&
                                has_aligned_rows(args.x)},
               stream, order);
}

}  // namespace loratory::gpu

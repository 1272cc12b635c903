// In a build without a CUDA compiler products can be checked and planned, and none launched.
#include <cstdlib>
#include <stdexcept>

#include "gpu/product/base_product.hpp"

namespace loratory::gpu {

struct Products::State {};

Products::Products(ProductOptions) {
  throw std::runtime_error("products: this build of loratory has no CUDA kernels");
}
Products::~Products() = default;

// Nobody has an object to call these with.
const ProductPlan& Products::plan(const ProductShape&) { std::abort(); }
void Products::save() const {}
void Products::launch(const ProductShape&, const ProductChoice&, const ProductTensors&,
                      CUstream_st*, LaunchOrder) const {}
std::vector<ProductChoice> Products::choices(const ProductShape&, int64_t, bool) { return {}; }
int Products::num_sms() const { return 0; }
const ProductKey& Products::key() const { std::abort(); }
const std::vector<std::string>& Products::notes() const { std::abort(); }
size_t Products::workspace_bytes() const { return 0; }

}  // namespace loratory::gpu

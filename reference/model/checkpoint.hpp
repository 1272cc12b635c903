#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "reference/adapter/safetensors.hpp"
#include "reference/numerics/matrix.hpp"

namespace loratory::reference {

/// The tensors of a model's folder: model.safetensors, or the shards that
/// model.safetensors.index.json names.
/// Errors   InputError naming the file or the folder, and the tensor.
class Checkpoint {
 public:
  /// Also InputError: neither file, an index without weight_map, a shard outside of the folder, a
  /// tensor in a shard that the index does not give it to, or missing there.
  explicit Checkpoint(std::string directory);

  bool has(const std::string& name) const { return tensors_.count(name) != 0; }
  /// As float, exact. F32, F16 or BF16 of that shape, or an error.
  Matrix<float> matrix(const std::string& name, int64_t num_rows, int64_t num_columns);
  Vector<float> vector(const std::string& name, int64_t size);
  /// [planes, rows, columns], plane after plane.
  std::vector<Matrix<float>> planes(const std::string& name, int64_t num_planes, int64_t num_rows,
                                    int64_t num_columns);
  /// As it is stored: F32, F16 or BF16 of that shape, or an error. Lives as long as the checkpoint.
  const StoredTensor& stored(const std::string& name, const std::vector<int64_t>& shape);
  /// Marks a tensor as known without reading it.
  void ignore(const std::string& name) { used_.insert(name); }
  /// The names that nobody has asked for.
  std::vector<std::string> unused() const;
  /// An error if there are any.
  void refuse_unused() const;
  [[noreturn]] void fail(const std::string& name, const std::string& rule) const;

 private:
  void open_file(const std::string& name);
  void open_shards(const std::string& index_path);

  std::string directory_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, const StoredTensor*> tensors_;
  std::set<std::string> used_;
};

}  // namespace loratory::reference

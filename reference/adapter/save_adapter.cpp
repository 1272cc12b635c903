#include <filesystem>
#include <system_error>

#include "reference/adapter/adapter.hpp"
#include "reference/adapter/adapter_error.hpp"
#include "reference/base/atomic_file.hpp"

namespace loratory::reference {
namespace {

void write_file(const std::filesystem::path& path, const std::string& bytes) {
  AtomicFile file(path.string());
  file.stream() << bytes;
  file.commit();
}

}  // namespace

void save_adapter(const std::string& directory, const AdapterConfig& config,
                  const std::vector<StoredTensor>& tensors) {
  const std::string weights = write_safetensors(tensors, {{"format", "pt"}});
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw AdapterError(AdapterErrorCode::io, directory, "cannot be created");
  const std::filesystem::path folder(directory);
  write_file(folder / "adapter_model.safetensors", weights);
  write_file(folder / "adapter_config.json", adapter_config_text(config));
}

}  // namespace loratory::reference

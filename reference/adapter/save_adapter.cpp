#include <filesystem>
#include <fstream>
#include <system_error>

#include "reference/adapter/adapter.hpp"
#include "reference/adapter/adapter_error.hpp"

namespace loratory::reference {
namespace {

/// Written beside its place, then renamed: nobody reads half a file.
void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::path partial = path;
  partial += ".partial";
  std::ofstream out(partial, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(partial, path, error);
  if (!out || error) {
    throw AdapterError(AdapterErrorCode::kIo, path.string(), "cannot be written");
  }
}

}  // namespace

void save_adapter(const std::string& directory, const AdapterConfig& config,
                  const std::vector<StoredTensor>& tensors) {
  const std::string weights = write_safetensors(tensors, {{"format", "pt"}});
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw AdapterError(AdapterErrorCode::kIo, directory, "cannot be created");
  const std::filesystem::path folder(directory);
  write_file(folder / "adapter_model.safetensors", weights);
  write_file(folder / "adapter_config.json", adapter_config_text(config));
}

}  // namespace loratory::reference

// Runs a fuzz target over files and folders of inputs: the corpus stays a test in every build, and
// a crashing input can be replayed under a debugger without libFuzzer.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

#include "reference/base/files.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

int replay(const std::filesystem::path& path) {
  const std::string bytes = loratory::read_file(path.string());
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  int num_inputs = 0;
  for (int i = 1; i < argc; ++i) {
    const std::filesystem::path path(argv[i]);
    if (!std::filesystem::is_directory(path)) {
      num_inputs += replay(path);
      continue;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
      if (entry.is_regular_file()) num_inputs += replay(entry.path());
    }
  }
  std::printf("replayed %d inputs\n", num_inputs);
  return num_inputs > 0 ? 0 : 1;
}

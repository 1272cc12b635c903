// The main of every test program. CTest runs the tests side by side, each in a process of its own:
// what one of them writes must not lie where another looks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace {

namespace fs = std::filesystem;

/// A folder of this process alone, as long as this lives: testing::TempDir(), the temporary folder
/// of the standard library, and that of every program that a test starts.
class OwnTempFolder {
 public:
  OwnTempFolder() {
    std::string name = (fs::temp_directory_path() / "loratory-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw fs::filesystem_error("mkdtemp", name, {});
    path_ = name;
    setenv("TMPDIR", path_.c_str(), 1);
    unsetenv("TEST_TMPDIR");
  }
  ~OwnTempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  OwnTempFolder(const OwnTempFolder&) = delete;
  OwnTempFolder& operator=(const OwnTempFolder&) = delete;

 private:
  fs::path path_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  const OwnTempFolder folder;
  return RUN_ALL_TESTS();
}

#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace loratory::cli {

/// A model's tokenizer.json, read by the library that transformers uses for it: Hugging Face's
/// `tokenizers`, which has no face for C++. A Python of the user's runs it as a process of its own
/// and answers line by line; docs/serving.md says why. No bytes of a text leave the machine.
class Tokenizer {
 public:
  /// `python` is a command, looked for on PATH. It may take `patience` for its start, and for each
  /// answer.
  /// Errors  InputError: no such command, it has no package `tokenizers`, the file is no tokenizer,
  ///         it says nothing.
  Tokenizer(const std::string& python, const std::string& file,
            std::chrono::milliseconds patience = std::chrono::minutes(2));
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// With the special tokens that the file puts around a text, as transformers does.
  /// Errors  std::runtime_error: the process has died, or says nothing.
  std::vector<int32_t> encode(std::string_view text);
  /// Without special tokens, as vLLM does. Bytes that are no character become U+FFFD.
  std::string decode(std::span<const int32_t> tokens);

 private:
  class Process;
  std::unique_ptr<Process> process_;
};

}  // namespace loratory::cli

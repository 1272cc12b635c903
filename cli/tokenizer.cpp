#include "cli/tokenizer.hpp"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "reference/base/input_error.hpp"
#include "reference/base/wording.hpp"

extern char** environ;  // NOLINT: POSIX calls it so

namespace loratory::cli {

using nlohmann::json;

namespace {

// Says {"ready": true} or {"error": ..., "missing": ...}, then one line of JSON for each it gets.
// The current folder is no place for packages.
constexpr const char* kScript = R"py(
import sys
if sys.path and sys.path[0] == "":
    del sys.path[0]
import json
def say(value):
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
try:
    from tokenizers import Tokenizer
except Exception as error:
    say({"error": str(error), "missing": True})
    sys.exit(0)
try:
    tokenizer = Tokenizer.from_file(sys.argv[1])
    tokenizer.no_truncation()
    tokenizer.no_padding()
except Exception as error:
    say({"error": str(error), "missing": False})
    sys.exit(0)
say({"ready": True})
for line in sys.stdin:
    question = json.loads(line)
    if "text" in question:
        say(tokenizer.encode(question["text"]).ids)
    else:
        say(tokenizer.decode(question["ids"]))
)py";

constexpr const char* kHasEnded = "tokenizer: the Python that runs it has ended";
constexpr const char* kPythonRemedy =
    "name a Python 3 with the package tokenizers, or give prompts as token ids";

// Both ends of a stream; the first is kept from processes that are started meanwhile, and waits for
// so long.
std::array<int, 2> make_stream(std::chrono::milliseconds patience) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw std::runtime_error(fmt::format("tokenizer: no stream: {}", std::strerror(errno)));
  }
  const timeval limit{.tv_sec = patience.count() / 1000, .tv_usec = patience.count() % 1000 * 1000};
  for (const int direction : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    ::setsockopt(ends[0], SOL_SOCKET, direction, &limit, sizeof limit);
  }
  return ends;
}

struct Silence : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace

// One line to it, one line back. It ends when the stream does, so that nothing outlives us; signals
// that we block it blocks too, and Ctrl-C ends us first.
class Tokenizer::Process {
 public:
  Process(const std::string& python, const std::string& file, std::chrono::milliseconds patience)
      : patience_(patience) {
    const auto [ours, theirs] = make_stream(patience);
    stream_ = ours;
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, theirs, STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, theirs, STDOUT_FILENO);
    std::array<const char*, 5> words = {python.c_str(), "-c", kScript, file.c_str(), nullptr};
    const int error = ::posix_spawnp(&child_, python.c_str(), &actions, nullptr,
                                     const_cast<char* const*>(words.data()), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(theirs);
    if (error == 0) return;
    ::close(stream_);
    throw InputError("--python",
                     fmt::format("{} cannot be started: {}", shown(python), std::strerror(error)),
                     kPythonRemedy);
  }
  ~Process() {
    ::close(stream_);
    ::kill(child_, SIGKILL);  // it has nothing to finish, and may have hung
    ::waitpid(child_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // What the script says at first. Errors  InputError: it is no Python 3 that runs it.
  json hello(const std::string& python);

  json ask(const json& question) {
    send(question.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace) + "\n");
    return answer();
  }

 private:
  json answer() {
    std::array<char, 65536> buffer{};
    size_t end = unread_.find('\n');
    while (end == std::string::npos) {
      const ssize_t count = ::recv(stream_, buffer.data(), buffer.size(), 0);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail();
      if (count == 0) throw std::runtime_error(kHasEnded);
      end = unread_.size();
      unread_.append(buffer.data(), size_t(count));
      end = unread_.find('\n', end);
    }
    const std::string line = unread_.substr(0, end);
    unread_.erase(0, end + 1);
    json value = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (value.is_discarded())
      throw std::runtime_error("tokenizer: Python prints what is no answer");
    return value;
  }

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(stream_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail();
      bytes.remove_prefix(size_t(count));
    }
  }

  std::string silence() const {
    return fmt::format("has not answered for {} s", double(patience_.count()) / 1000);
  }
  // The stream has failed, or nobody was at its other end for too long.
  [[noreturn]] void fail() const {
    if (errno != EAGAIN) throw std::runtime_error(kHasEnded);
    throw Silence(fmt::format("tokenizer: the Python that runs it {}", silence()));
  }

  const std::chrono::milliseconds patience_;
  int stream_ = -1;
  pid_t child_ = 0;
  std::string unread_;
};

json Tokenizer::Process::hello(const std::string& python) {
  try {
    json value = answer();
    if (value.contains("ready") || value.contains("error")) return value;
  } catch (const Silence&) {
    throw InputError("--python", fmt::format("{} {}", shown(python), silence()), kPythonRemedy);
  } catch (const std::runtime_error&) {  // it ended, or prints something else
  }
  throw InputError("--python", fmt::format("{} does not answer as Python 3 does", shown(python)),
                   kPythonRemedy);
}

Tokenizer::Tokenizer(const std::string& python, const std::string& file,
                     std::chrono::milliseconds patience)
    : process_(std::make_unique<Process>(python, file, patience)) {
  const json hello = process_->hello(python);
  if (hello.contains("ready")) return;
  const std::string why = hello["error"].get<std::string>();
  if (hello.value("missing", false)) {
    throw InputError("--python",
                     fmt::format("{} cannot import tokenizers ({})", shown(python), why),
                     "pip install tokenizers, or give prompts as token ids");
  }
  throw InputError(file, fmt::format("is no tokenizer that the library reads ({})", why));
}

Tokenizer::~Tokenizer() = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text) {
  return process_->ask({{"text", text}}).get<std::vector<int32_t>>();
}

std::string Tokenizer::decode(std::span<const int32_t> tokens) {
  return process_->ask({{"ids", std::vector<int32_t>(tokens.begin(), tokens.end())}})
      .get<std::string>();
}

}  // namespace loratory::cli

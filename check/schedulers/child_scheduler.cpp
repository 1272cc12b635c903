#include "check/schedulers/child_scheduler.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <thread>

#include "check/schedulers/json_lines.hpp"
#include "reference/base/escape.hpp"
#include "reference/base/input_error.hpp"
#include "reference/base/wording.hpp"

extern char** environ;

namespace loratory::check {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kNumLooks = 40;  // for the end of a process that was told to end, 5 ms apart

// One end of a pair of sockets. A socket, not two pipes: writing to a process that has died is then
// an error and no signal.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { close(); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

// Groups of processes that were started and have not been reaped.
struct Groups {
  std::mutex mutex;
  std::set<pid_t> ids;
};

Groups& groups() {
  static auto& all = *new Groups;  // outlives every thread
  return all;
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) return fmt::format("was ended by signal {}", WTERMSIG(status));
  return fmt::format("ended with status {}", WEXITSTATUS(status));
}

// What a shell ends with that found no such command, or may not run it.
bool is_no_command(int status) {
  return WIFEXITED(status) && (WEXITSTATUS(status) == 126 || WEXITSTATUS(status) == 127);
}

// In a group of its own, so that what it starts ends with it.
pid_t start(const std::string& command, int fd) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, fd, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, fd, STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setpgroup(&attributes, 0);
  sigset_t none;  // whatever this program blocks
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  const char* const words[] = {"/bin/sh", "-c", command.c_str(), nullptr};
  pid_t pid = -1;
  const std::scoped_lock lock(groups().mutex);
  const int error =
      posix_spawn(&pid, words[0], &files, &attributes, const_cast<char* const*>(words), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) {
    throw InputError("--scheduler", fmt::format("no process: {}", std::strerror(error)));
  }
  groups().ids.insert(pid);
  return pid;
}

class ChildScheduler final : public SchedulerUnderTest {
 public:
  ChildScheduler(const std::string& command, int64_t timeout_ms)
      : command_(command), timeout_ms_(timeout_ms) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      throw InputError("--scheduler", fmt::format("no socket: {}", std::strerror(errno)));
    }
    Socket theirs(ends[1]);
    socket_.emplace(ends[0]);
    pid_ = start(command, theirs.fd());
  }
  ~ChildScheduler() override { end(); }
  ChildScheduler(const ChildScheduler&) = delete;
  ChildScheduler& operator=(const ChildScheduler&) = delete;

  Reply exchange(const Message& message) override {
    if (!received_.empty()) {
      throw DoorError(fmt::format("before {} came a line that nobody asked for: {}",
                                  word_of(message), one_line(received_)));
    }
    send(to_json(message) + "\n", message);
    return parse_reply(receive(message), message);
  }

 private:
  // A reader that is slow makes the socket full; then this waits no longer than for a reply.
  void send(std::string_view text, const Message& message) {
    const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms_);
    while (!text.empty()) {
      wait_for(POLLOUT, deadline, message);
      const ssize_t sent =
          ::send(socket_->fd(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) {
        text.remove_prefix(size_t(sent));
      } else if (errno != EAGAIN && errno != EINTR) {
        ended(message);
      }
    }
  }

  std::string receive(const Message& message) {
    const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms_);
    while (received_.find('\n') == std::string::npos) {
      if (received_.size() > kLongestLine) {
        throw DoorError(
            fmt::format("the reply to {} exceeds {} bytes", word_of(message), kLongestLine));
      }
      wait_for(POLLIN, deadline, message);
      char buffer[1 << 14];
      const ssize_t got = recv(socket_->fd(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (got > 0) {
        received_.append(buffer, size_t(got));
      } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        ended(message);
      }
    }
    const size_t end = received_.find('\n');
    std::string line = received_.substr(0, end);
    received_.erase(0, end + 1);
    return line;
  }

  void wait_for(short events, Clock::time_point deadline, const Message& message) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waited{.fd = socket_->fd(), .events = events, .revents = 0};
    if (left > 0 && (poll(&waited, 1, int(left)) > 0 || errno == EINTR)) return;
    if (Clock::now() < deadline) return;
    throw DoorError(fmt::format("no reply to {} within {} ms{}", word_of(message), timeout_ms_,
                                received_.empty() ? "" : ", only: " + one_line(received_)));
  }

  [[noreturn]] void ended(const Message& message) {
    int status = 0;
    const bool is_known = reap(status);
    if (is_known && is_no_command(status)) {
      throw InputError("--scheduler", fmt::format("/bin/sh cannot run it: {}", shown(command_)),
                       "give a command, or a path that ends with .so");
    }
    throw DoorError(fmt::format("the process {} before it answered {}{}",
                                is_known ? how_it_ended(status) : "closed its output",
                                word_of(message),
                                received_.empty() ? "" : "; it wrote: " + one_line(received_)));
  }

  // Waits a little for the process to end. False: it goes on.
  bool reap(int& status) {
    for (int i = 0; i < kNumLooks && pid_ > 0; ++i) {
      if (is_reaped(status, WNOHANG)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  bool is_reaped(int& status, int how) {
    const std::scoped_lock lock(groups().mutex);
    if (how != WNOHANG) kill(-pid_, SIGKILL);
    if (waitpid(pid_, &status, how) != pid_) return false;
    kill(-pid_, SIGKILL);  // what it left behind
    groups().ids.erase(pid_);
    pid_ = -1;
    return true;
  }

  void end() {
    socket_.reset();
    int status = 0;
    if (pid_ > 0 && !reap(status)) is_reaped(status, 0);
  }

  std::string command_;
  int64_t timeout_ms_;
  std::optional<Socket> socket_;
  pid_t pid_ = -1;
  std::string received_;
};

}  // namespace

std::unique_ptr<SchedulerUnderTest> child_scheduler(const std::string& command,
                                                    int64_t timeout_ms) {
  return std::make_unique<ChildScheduler>(command, timeout_ms);
}

void abandon_children() {
  groups().mutex.lock();  // for good: no process is started any more
  for (const pid_t group : groups().ids) kill(-group, SIGKILL);
}

void serve_scheduler(SchedulerUnderTest& scheduler, std::FILE* in, std::FILE* out) {
  char* line = nullptr;
  size_t capacity = 0;
  for (ssize_t length = 0; (length = getline(&line, &capacity, in)) >= 0;) {
    std::string answer;
    try {
      const Message message = parse_message({line, size_t(length)});
      answer = to_json(scheduler.exchange(message), message);
    } catch (const DoorError& error) {
      answer = error_json(error.what());
    }
    answer += '\n';
    std::fwrite(answer.data(), 1, answer.size(), out);
    std::fflush(out);
  }
  std::free(line);
}

}  // namespace loratory::check

// SPDX-License-Identifier: Apache-2.0
#include "model/core/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <thread>

#include "model/core/packaged_models.h"

namespace lintel {
namespace {

constexpr std::chrono::seconds kPatience{5};
constexpr std::chrono::milliseconds kPoll{10};

int status_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Runs in the child, between fork and exec: only calls that are safe there.
[[noreturn]] void run(char* const* words, pid_t parent, int out,
                      const ChildProcess::Options& options) {
  if (options.has_group) ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(127);  // it ended before it was watched
  const int empty = ::open("/dev/null", O_RDONLY);
  ::dup2(empty, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  if (options.error >= 0) ::dup2(options.error, STDERR_FILENO);
  // Resets signals as a shell does when it starts programs.
  for (const int ignored : {SIGPIPE, SIGXFSZ}) ::signal(ignored, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execvp(words[0], words);
  ::_exit(127);
}

}  // namespace

std::filesystem::path program_beside(const std::string& name) {
  std::error_code error;
  const std::filesystem::path folder = program_directory();
  const std::filesystem::path beside = folder / name;
  return !folder.empty() && std::filesystem::exists(beside, error) ? beside
                                                                   : std::filesystem::path(name);
}

ChildProcess::ChildProcess(const std::vector<std::string>& words, const Options& options) {
  std::vector<std::string> copies = words;
  std::vector<char*> argv;
  for (std::string& word : copies) argv.push_back(word.data());
  argv.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw std::system_error(errno, std::generic_category(), words.front());
  }
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) run(argv.data(), parent, ends[1], options);
  const int error = errno;
  ::close(ends[1]);
  if (pid_ < 0) {
    ::close(ends[0]);
    throw std::system_error(error, std::generic_category(), words.front());
  }
  out_ = ends[0];
}

ChildProcess::~ChildProcess() {
  end(kPatience);
  ::close(out_);
}

int ChildProcess::wait() {
  if (!status_) {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    status_ = status_of(status);
  }
  return *status_;
}

std::optional<int> ChildProcess::poll() {
  int status = 0;
  if (!status_ && ::waitpid(pid_, &status, WNOHANG) == pid_) status_ = status_of(status);
  return status_;
}

std::optional<int> ChildProcess::wait_for(std::chrono::milliseconds patience) {
  for (const auto until = std::chrono::steady_clock::now() + patience;
       !poll() && std::chrono::steady_clock::now() < until;) {
    std::this_thread::sleep_for(kPoll);
  }
  return poll();
}

int ChildProcess::end(std::chrono::milliseconds patience) {
  if (poll()) return *status_;
  ::kill(pid_, SIGTERM);
  if (!wait_for(patience)) ::kill(pid_, SIGKILL);
  return wait();
}

}  // namespace lintel

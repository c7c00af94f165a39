// SPDX-License-Identifier: Apache-2.0
#include "tests/support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <stdexcept>

extern char** environ;

namespace lintel::testing {

Process::Process(const std::vector<std::string>& arguments) {
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const int error = posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  close(err[1]);
  out_ = out[0];
  err_ = err[0];
  if (error != 0) throw std::runtime_error("cannot start " + arguments[0]);
}

Process::~Process() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close_out();
  if (err_ >= 0) close(err_);
}

bool Process::read_some() {
  std::array<pollfd, 2> files = {pollfd{out_, POLLIN, 0}, pollfd{err_, POLLIN, 0}};
  if (out_ < 0 && err_ < 0) return false;
  poll(files.data(), files.size(), -1);  // negative descriptors are ignored
  const auto take = [](const pollfd& file, int& fd, std::string& text) {
    if (file.fd < 0 || file.revents == 0) return;
    std::array<char, 65536> bytes;
    const ssize_t got = read(fd, bytes.data(), bytes.size());
    if (got > 0) {
      text.append(bytes.data(), static_cast<std::size_t>(got));
    } else {
      close(fd);
      fd = -1;
    }
  };
  take(files[0], out_, out_text_);
  take(files[1], err_, err_text_);
  return true;
}

const std::string& Process::read_out_until(const std::string& text) {
  while (out_text_.find(text) == std::string::npos && out_ >= 0 && read_some()) {
  }
  return out_text_;
}

const std::string& Process::read_err_until(const std::string& text) {
  while (err_text_.find(text) == std::string::npos && err_ >= 0 && read_some()) {
  }
  return err_text_;
}

void Process::close_out() {
  if (out_ >= 0) close(out_);
  out_ = -1;
}

void Process::send(int signal) const { kill(pid_, signal); }

int Process::wait() {
  while (read_some()) {
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace lintel::testing

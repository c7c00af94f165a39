// SPDX-License-Identifier: Apache-2.0
#include "tests/cli/terminal_process.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>

namespace lintel::testing {

TerminalProcess::TerminalProcess(const std::vector<std::string>& arguments) {
  std::vector<char*> words;
  for (const std::string& argument : arguments)
    words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  winsize size{};
  size.ws_row = 24;
  size.ws_col = 80;
  pid_ = forkpty(&terminal_, nullptr, nullptr, &size);
  if (pid_ < 0) throw std::runtime_error("no pseudo-terminal");
  if (pid_ > 0) return;
  setenv("TERM", "xterm", 1);
  setenv("LC_ALL", "C.UTF-8", 1);
  execv(words[0], words.data());
  _exit(127);
}

TerminalProcess::~TerminalProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(terminal_);
}

void TerminalProcess::type(const std::string& keys) const {
  if (write(terminal_, keys.data(), keys.size()) != static_cast<ssize_t>(keys.size())) {
    throw std::runtime_error("the terminal takes no keys");
  }
}

void TerminalProcess::send(int signal) const { kill(pid_, signal); }

bool TerminalProcess::read_some() {
  constexpr int kPatience = 60'000;  // milliseconds
  pollfd waiting{terminal_, POLLIN, 0};
  if (poll(&waiting, 1, kPatience) <= 0) throw std::runtime_error("silent since: " + unread_);
  char bytes[4096];
  const ssize_t got = read(terminal_, bytes, sizeof bytes);
  if (got <= 0) return false;  // EIO where the other side is closed
  unread_.append(bytes, static_cast<std::size_t>(got));
  return true;
}

std::string TerminalProcess::read_until(const std::string& text) {
  std::size_t found = unread_.find(text);
  while (found == std::string::npos && read_some()) found = unread_.find(text);
  const std::size_t end = found == std::string::npos ? unread_.size() : found + text.size();
  const std::string came = unread_.substr(0, end);
  unread_.erase(0, end);
  return came;
}

int TerminalProcess::wait() {
  while (read_some()) {
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace lintel::testing

#include "tests/cli/processes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>
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

std::vector<nlohmann::json> Result::lines() const {
  std::vector<nlohmann::json> lines;
  std::istringstream in(out);
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

ServerProcess::ServerProcess(const std::vector<TinyModel>& models,
                             const std::vector<std::string>& flags) {
  std::vector<std::string> arguments = {LINTEL_SERVER, "--listen", "127.0.0.1:0"};
  for (const TinyModel kind : models) {
    const std::string name = kind == TinyModel::kImage   ? "image"
                             : kind == TinyModel::kBytes ? "bytes"
                                                         : "tokens";
    write_random_model(directory_.path() / name, tiny_config(kind), /*seed=*/7);
    arguments.insert(arguments.end(), {"--model", path(name)});
  }
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  process_ = std::make_unique<Process>(arguments);
  const std::string ready = "lintel-server ready on ";
  const std::string& out = process_->read_out_until("\n");
  if (out.rfind(ready, 0) != 0 || out.back() != '\n') {
    process_->wait();
    throw std::runtime_error("lintel-server did not start: " + out + process_->err());
  }
  address_ = out.substr(ready.size(), out.size() - ready.size() - 1);
}

std::vector<std::string> ServerProcess::command(const std::vector<std::string>& arguments) const {
  std::vector<std::string> all = {LINTEL_CLI};
  all.insert(all.end(), arguments.begin(), arguments.end());
  all.insert(all.end(), {"--address", address_});
  return all;
}

Result ServerProcess::lintel(const std::vector<std::string>& arguments) const {
  Process process(command(arguments));
  const int code = process.wait();
  return {code, process.out(), process.err()};
}

int ServerProcess::stop() {
  process_->send(SIGTERM);
  return process_->wait();
}

std::string ServerProcess::write(const std::string& name, const std::string& bytes) const {
  std::ofstream(path(name), std::ios::binary) << bytes;
  return path(name);
}

}  // namespace lintel::testing

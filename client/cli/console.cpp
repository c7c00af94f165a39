// SPDX-License-Identifier: Apache-2.0
#include "client/cli/console.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "client/lib/call_error.h"

namespace lintel::cli {
namespace {

constexpr std::size_t kOutBufferBytes = 64 * 1024;
constexpr std::size_t kMaxInputBytes = 64 * 1024 * 1024;

// Returns 0 or errno.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

}  // namespace

void Console::out(std::string_view text) {
  out_buffer_ += text;
  if (out_buffer_.size() >= kOutBufferBytes) flush();
}

void Console::flush() {
  const int error = write_all(out_, out_buffer_);
  out_buffer_.clear();
  if (error == EPIPE) throw OutputClosed();
  if (error != 0) throw Failure(std::string("standard output: ") + std::strerror(error));
}

void Console::err(std::string_view text) { write_all(err_, text); }

bool Console::fill_input() {
  pollfd waiting{in_, POLLIN, 0};
  // Waits in slices: the signal that cancels is not delivered to this thread.
  while (poll(&waiting, 1, /*milliseconds=*/100) == 0) {
    if (cancellation_.cancelled()) throw CallError(grpc::StatusCode::CANCELLED, "cancelled");
  }
  std::array<char, 64 * 1024> chunk;
  ssize_t got = 0;
  do {
    got = read(in_, chunk.data(), chunk.size());
  } while (got < 0 && errno == EINTR);
  if (got < 0) throw Failure(std::string("standard input: ") + std::strerror(errno));
  in_buffer_.erase(0, in_position_);
  in_position_ = 0;
  in_buffer_.append(chunk.data(), static_cast<std::size_t>(got));
  return got > 0;
}

std::optional<std::string> Console::read_line() {
  std::size_t searched = in_position_;
  for (;;) {
    const std::size_t end = in_buffer_.find('\n', searched);
    if (end != std::string::npos) {
      std::string line = in_buffer_.substr(in_position_, end - in_position_);
      in_position_ = end + 1;
      return line;
    }
    if (in_buffer_.size() - in_position_ > kMaxInputBytes) {
      throw Failure("standard input: a line longer than 64 MiB");
    }
    searched = in_buffer_.size() - in_position_;
    if (!fill_input()) break;
  }
  if (in_position_ == in_buffer_.size()) return std::nullopt;
  std::string line = in_buffer_.substr(in_position_);
  in_position_ = in_buffer_.size();
  return line;
}

std::string Console::read_all() {
  while (fill_input()) {
    if (in_buffer_.size() > kMaxInputBytes) throw Failure("standard input: more than 64 MiB");
  }
  std::string all = in_buffer_.substr(in_position_);
  in_position_ = in_buffer_.size();
  return all;
}

std::string Console::read_file(const std::string& flag, const std::string& path) {
  if (path == "-") return read_all();
  std::ifstream in(path, std::ios::binary);
  std::ostringstream bytes;
  // peek() reads: a directory can be opened, and only reading shows that it is one.
  if (in && in.peek() != std::ifstream::traits_type::eof()) bytes << in.rdbuf();
  const int error = errno;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw Failure(flag + " " + path + ": is a directory, not a file");
  }
  if (!in.is_open() || in.bad() || !bytes) {
    throw Failure(flag + " " + path + ": cannot be read: " + std::strerror(error));
  }
  return bytes.str();
}

void Console::cancel() {
  cancellation_.cancel();
  interrupt();
}

bool Console::interrupt() {
  const std::lock_guard lock(interruptible_mutex_);
  if (interruptible_ == nullptr) return false;
  interruptible_->cancellation().cancel();
  return true;
}

Console::Interruptible::Interruptible(Console& console) : console_(console) {
  const std::lock_guard lock(console_.interruptible_mutex_);
  console_.interruptible_ = this;
  // A command that was cancelled just before cancels this, too.
  if (console_.cancellation_.cancelled()) cancellation_.cancel();
}

Console::Interruptible::~Interruptible() {
  const std::lock_guard lock(console_.interruptible_mutex_);
  console_.interruptible_ = nullptr;
}

bool Console::in_is_terminal() const { return isatty(in_) == 1; }
bool Console::out_is_terminal() const { return isatty(out_) == 1; }
bool Console::err_is_terminal() const { return isatty(err_) == 1; }

}  // namespace lintel::cli

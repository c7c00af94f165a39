// SPDX-License-Identifier: Apache-2.0
#define XXH_INLINE_ALL
#include "server/sessions/storage/sqlite/storage_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <random>
#include <regex>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace lintel {
namespace {

[[noreturn]] void throw_errno(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

class PosixStorageFile : public StorageFile {
 public:
  explicit PosixStorageFile(int file) : file_(file) {}
  ~PosixStorageFile() override { close(file_); }

  void write(std::uint64_t offset, std::span<const std::byte> head,
             std::span<const std::byte> body) override {
    while (!head.empty() || !body.empty()) {
      const std::array<iovec, 2> parts = {iovec{const_cast<std::byte*>(head.data()), head.size()},
                                          iovec{const_cast<std::byte*>(body.data()), body.size()}};
      const ssize_t written = pwritev(file_, parts.data(), 2, static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw_errno("pwritev");
      if (written == 0) throw std::system_error(ENOSPC, std::generic_category(), "pwritev");
      const auto of_head = std::min<std::size_t>(static_cast<std::size_t>(written), head.size());
      head = head.subspan(of_head);
      body = body.subspan(static_cast<std::size_t>(written) - of_head);
      offset += static_cast<std::uint64_t>(written);
    }
  }

  std::size_t read(std::uint64_t offset, std::span<std::byte> head,
                   std::span<std::byte> body) override {
    const auto begin = static_cast<off_t>(offset);
    const auto all = static_cast<off_t>(head.size() + body.size());
    // The disk reads all of it at once, not one range after the other.
    if (!body.empty()) posix_fadvise(file_, begin, all, POSIX_FADV_WILLNEED);
    off_t done = 0;
    while (!head.empty() || !body.empty()) {
      const std::array<iovec, 2> parts = {iovec{head.data(), head.size()},
                                          iovec{body.data(), body.size()}};
      const ssize_t count = preadv(file_, parts.data(), 2, begin + done);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw_errno("preadv");
      if (count == 0) break;
      const auto of_head = std::min<std::size_t>(static_cast<std::size_t>(count), head.size());
      head = head.subspan(of_head);
      body = body.subspan(static_cast<std::size_t>(count) - of_head);
      done += count;
    }
    return static_cast<std::size_t>(done);
  }

  void sync() override {
    if (fdatasync(file_) != 0) throw_errno("fdatasync");
  }

  void punch(std::uint64_t offset, std::uint64_t bytes) override {
    if (fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(bytes)) == 0) {
      return;
    }
    if (errno != EOPNOTSUPP && errno != ENOSYS) throw_errno("fallocate");
    write(offset, std::vector<std::byte>(bytes), {});
  }

  bool has_data(std::uint64_t offset, std::uint64_t bytes) override {
    const off_t data = lseek(file_, static_cast<off_t>(offset), SEEK_DATA);
    if (data < 0) return errno != ENXIO;
    return static_cast<std::uint64_t>(data) < offset + bytes;
  }

  bool give_back(std::uint64_t offset, std::uint64_t bytes) override {
    return fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                     static_cast<off_t>(bytes)) == 0;
  }

  void cut(std::uint64_t bytes) override {
    struct stat now {};
    if (fstat(file_, &now) != 0) throw_errno("fstat");
    if (static_cast<std::uint64_t>(now.st_size) <= bytes) return;
    if (ftruncate(file_, static_cast<off_t>(bytes)) != 0) throw_errno("ftruncate");
  }

 private:
  const int file_;
};

void sync_directory(const std::filesystem::path& path) {
  const int directory = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) throw_errno("open");
  const int failed = fsync(directory);
  close(directory);
  if (failed != 0) throw_errno("fsync");
}

// The holder of the lock, by the content of its file.
std::string holder_of(int lock) {
  std::array<char, 32> text{};
  const ssize_t count = pread(lock, text.data(), text.size(), 0);
  std::string pid(text.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  pid.erase(std::find_if(pid.begin(), pid.end(), [](char c) { return c < '0' || c > '9'; }),
            pid.end());
  return pid.empty() ? "another process" : "pid " + pid;
}

// True for names that a storage may have, or the root of a volume: lost+found.
bool is_of_a_storage(const std::string& name) {
  static const std::regex kOurs(
      R"(lock|acknowledged|reserve|lost\+found|(sessions|documents)\.db(-wal|-shm|-journal)?|)"
      R"(documents\.key|documents\.reserve|states-[0-9]+\.slab)");
  return std::regex_match(name, kOurs);
}

// A descriptor, or -1 with errno: ELOOP for a symbolic link, which is not followed, EINVAL for
// other files that are not regular.
int open_regular(const std::filesystem::path& path) {
  const int file =
      open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
  if (file < 0) return file;
  struct stat found {};
  if (fstat(file, &found) == 0 && S_ISREG(found.st_mode)) return file;
  close(file);
  errno = EINVAL;
  return -1;
}

// The reason, in words, why other users may access a directory; empty: none may. If the mode cannot
// be changed, as for a volume that is mounted for a group, its group may stay.
std::string still_open_to_others(const std::filesystem::path& path) {
  const int directory = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return std::generic_category().message(errno);
  struct stat found {};
  std::string why;
  if (fstat(directory, &found) != 0) {
    why = std::generic_category().message(errno);
  } else if ((found.st_mode & 0077) != 0 && fchmod(directory, 0700) != 0 &&
             (found.st_mode & 0007) != 0) {
    std::array<char, 8> mode{};
    std::snprintf(mode.data(), mode.size(), "%04o", static_cast<unsigned>(found.st_mode & 07777));
    why = std::string("has mode ") + mode.data() + ", which lets other users in, and 0700 " +
          "cannot be set: " + std::generic_category().message(errno);
  }
  close(directory);
  return why;
}

}  // namespace

std::unique_ptr<StorageFile> open_storage_file(const std::filesystem::path& path) {
  const int file = open_regular(path);
  if (file < 0) throw_errno(path.filename().c_str());
  auto opened = std::make_unique<PosixStorageFile>(file);
  sync_directory(path.parent_path());
  return opened;
}

void take_room(StorageFile& file, std::size_t from, std::size_t to) {
  constexpr std::size_t kPiece = std::size_t{64} << 10;
  std::minstd_rand random(1);
  std::vector<std::byte> piece;
  for (std::size_t at = from; at < to; at += piece.size()) {
    piece.resize(std::min(kPiece, to - at));
    for (std::byte& byte : piece) byte = static_cast<std::byte>(random() >> 8);
    file.write(at, piece, {});
  }
}

bool is_want_of_room(const std::system_error& error) {
  const int code = error.code().value();
  return code == ENOSPC || code == EDQUOT || code == EFBIG;
}

StorageDirectory::StorageDirectory(std::filesystem::path path) : path_(std::move(path)) {
  const auto fail = [&](const std::string& why) {
    if (lock_ >= 0) close(lock_);
    throw StorageError("session store " + path_.string() + ": " + why);
  };
  if (mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST)
    fail(std::generic_category().message(errno));
  if (const std::string why = still_open_to_others(path_); !why.empty()) fail(why);
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path_, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!is_of_a_storage(name)) fail("holds " + name + ", which is no file of a session store");
    std::error_code unknown;
    const bool is_plain =
        entry->symlink_status(unknown).type() == std::filesystem::file_type::regular;
    if (!is_plain && name != "lost+found") fail("holds " + name + ", which is no regular file");
  }
  if (error) fail(error.message());
  lock_ = open_regular(path_ / "lock");
  if (lock_ < 0) fail("lock: " + std::generic_category().message(errno));
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0) fail("in use by " + holder_of(lock_));
  // The text has a fixed length, so that nothing has to be truncated (which ext4 takes for a file's
  // replacement, and writes out at once).
  std::string pid = std::to_string(getpid());
  pid.resize(15, ' ');
  pid += '\n';
  if (pwrite(lock_, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    fail("lock: " + std::generic_category().message(errno));
  }
  // SQLite gives its other files the permissions of this one.
  const int database_file = open_regular(database());
  if (database_file < 0) fail("sessions.db: " + std::generic_category().message(errno));
  close(database_file);
}

StorageDirectory::~StorageDirectory() { close(lock_); }  // and frees the lock

std::vector<std::size_t> StorageDirectory::slot_sizes() const {
  constexpr std::string_view kBefore = "states-", kBehind = ".slab";
  std::vector<std::size_t> sizes;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path_, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(kBefore) || !name.ends_with(kBehind)) continue;
    std::size_t bytes = 0;
    std::from_chars(name.data() + kBefore.size(), name.data() + name.size() - kBehind.size(),
                    bytes);
    if (bytes > 0) sizes.push_back(bytes);
  }
  return sizes;
}

namespace {

struct CommitWatermarkNote {
  std::int64_t seq = 0;
  std::uint64_t hash = 0;
};
static_assert(std::endian::native == std::endian::little);

}  // namespace

CommitWatermark::CommitWatermark(std::unique_ptr<StorageFile> file) : file_(std::move(file)) {
  CommitWatermarkNote note;
  const auto bytes = std::as_writable_bytes(std::span(&note, 1));
  if (file_->read(0, bytes, {}) == bytes.size() &&
      note.hash == XXH3_64bits(&note.seq, sizeof(note.seq))) {
    found_ = note.seq;
  }
}

void CommitWatermark::note(std::int64_t seq) noexcept {
  const CommitWatermarkNote note{seq, XXH3_64bits(&seq, sizeof(seq))};
  try {
    file_->write(0, std::as_bytes(std::span(&note, 1)), {});
  } catch (const std::system_error&) {
  }
}

}  // namespace lintel

// SPDX-License-Identifier: Apache-2.0
#include "tests/server/sessions/storage/test_disk.h"

#include <sqlite3.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>

namespace lintel::testing {
namespace {

constexpr std::uint64_t kBlock = 4096;

void make_change(std::vector<std::byte>& content, const TestDisk::Change& change) {
  if (change.cuts) {
    content.resize(change.offset);
    return;
  }
  content.resize(std::max<std::size_t>(content.size(), change.offset + change.bytes.size()));
  std::ranges::copy(change.bytes, content.begin() + static_cast<std::ptrdiff_t>(change.offset));
}

// SQLite's view: a file is a path on a disk.
struct VfsFile {
  sqlite3_file base;
  TestDisk* disk;
  char path[512];
};

VfsFile& of(sqlite3_file* file) { return *reinterpret_cast<VfsFile*>(file); }

int close_file(sqlite3_file*) { return SQLITE_OK; }

int read_file(sqlite3_file* file, void* to, int count, sqlite3_int64 offset) {
  const std::span<std::byte> bytes(static_cast<std::byte*>(to), static_cast<std::size_t>(count));
  const std::size_t there =
      of(file).disk->read(of(file).path, static_cast<std::uint64_t>(offset), bytes);
  if (there == bytes.size()) return SQLITE_OK;
  std::ranges::fill(bytes.subspan(there), std::byte{0});
  return SQLITE_IOERR_SHORT_READ;
}

int result(TestDisk::Fault fault, int error) {
  switch (fault) {
    case TestDisk::Fault::kNone:
      return SQLITE_OK;
    case TestDisk::Fault::kError:
      return error;
    case TestDisk::Fault::kFull:
    case TestDisk::Fault::kNoSpace:
      return error == SQLITE_IOERR_FSYNC ? SQLITE_IOERR_FSYNC : SQLITE_FULL;
  }
  return error;
}

int write_file(sqlite3_file* file, const void* from, int count, sqlite3_int64 offset) {
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(from),
                                         static_cast<std::size_t>(count));
  return result(of(file).disk->write(of(file).path, static_cast<std::uint64_t>(offset), bytes),
                SQLITE_IOERR_WRITE);
}

int truncate_file(sqlite3_file* file, sqlite3_int64 size) {
  return result(of(file).disk->cut(of(file).path, static_cast<std::uint64_t>(size)),
                SQLITE_IOERR_TRUNCATE);
}

int sync_file(sqlite3_file* file, int) {
  return result(of(file).disk->sync(of(file).path), SQLITE_IOERR_FSYNC);
}

int size_of_file(sqlite3_file* file, sqlite3_int64* size) {
  *size = static_cast<sqlite3_int64>(of(file).disk->size(of(file).path));
  return SQLITE_OK;
}

int lock_file(sqlite3_file*, int) { return SQLITE_OK; }
int check_lock(sqlite3_file*, int* held) {
  *held = 0;
  return SQLITE_OK;
}
int control_file(sqlite3_file*, int, void*) { return SQLITE_NOTFOUND; }
int sector_bytes(sqlite3_file*) { return 4096; }
int characteristics(sqlite3_file*) { return SQLITE_IOCAP_POWERSAFE_OVERWRITE; }

const sqlite3_io_methods kMethods = {
    1,         close_file, read_file,  write_file,   truncate_file, sync_file,       size_of_file,
    lock_file, lock_file,  check_lock, control_file, sector_bytes,  characteristics, nullptr,
    nullptr,   nullptr,    nullptr,    nullptr,      nullptr};

TestDisk& disk_of(sqlite3_vfs* vfs) { return *static_cast<TestDisk*>(vfs->pAppData); }

int open_file(sqlite3_vfs* vfs, const char* name, sqlite3_file* file, int flags, int* flags_out) {
  auto* const opened = new (file) VfsFile{};
  if (name == nullptr || std::strlen(name) >= sizeof(opened->path)) return SQLITE_CANTOPEN;
  if (!disk_of(vfs).has(name) && (flags & SQLITE_OPEN_CREATE) == 0) return SQLITE_CANTOPEN;
  disk_of(vfs).make(name);
  opened->disk = &disk_of(vfs);
  std::strcpy(opened->path, name);
  opened->base.pMethods = &kMethods;
  if (flags_out != nullptr) *flags_out = flags;
  return SQLITE_OK;
}

int remove_file(sqlite3_vfs* vfs, const char* name, int) {
  disk_of(vfs).remove(name);
  return SQLITE_OK;
}

int access_file(sqlite3_vfs* vfs, const char* name, int, int* there) {
  *there = disk_of(vfs).has(name) ? 1 : 0;
  return SQLITE_OK;
}

int full_path(sqlite3_vfs*, const char* name, int room, char* path) {
  if (std::strlen(name) >= static_cast<std::size_t>(room)) return SQLITE_CANTOPEN;
  std::strcpy(path, name);
  return SQLITE_OK;
}

// A slab's view.
class DiskFile : public StorageFile {
 public:
  DiskFile(TestDisk& disk, std::string path) : disk_(disk), path_(std::move(path)) {
    disk_.make(path_);
  }
  void write(std::uint64_t offset, std::span<const std::byte> head,
             std::span<const std::byte> body) override {
    std::vector<std::byte> all(head.begin(), head.end());
    all.insert(all.end(), body.begin(), body.end());
    check(disk_.write(path_, offset, all));
  }
  std::size_t read(std::uint64_t offset, std::span<std::byte> head,
                   std::span<std::byte> body) override {
    const std::size_t of_head = disk_.read(path_, offset, head);
    return of_head + disk_.read(path_, offset + of_head, body);
  }
  void sync() override { check(disk_.sync(path_)); }
  void punch(std::uint64_t offset, std::uint64_t bytes) override {
    const std::uint64_t size = disk_.size(path_);
    if (offset >= size) return;
    check(disk_.write(path_, offset, std::vector<std::byte>(std::min(bytes, size - offset))));
    disk_.punch(path_, offset, bytes);
  }
  bool has_data(std::uint64_t offset, std::uint64_t bytes) override {
    return disk_.has_data(path_, offset, bytes);
  }
  bool give_back(std::uint64_t offset, std::uint64_t bytes) override {
    punch(offset, bytes);
    return true;
  }
  void cut(std::uint64_t bytes) override {
    if (disk_.size(path_) > bytes) check(disk_.cut(path_, bytes));
  }

 private:
  static void check(TestDisk::Fault fault) {
    if (fault == TestDisk::Fault::kNone) return;
    throw std::system_error(fault == TestDisk::Fault::kError ? EIO : ENOSPC,
                            std::generic_category());
  }

  TestDisk& disk_;
  const std::string path_;
};

}  // namespace

TestDisk::TestDisk() : TestDisk(Content()) {}

TestDisk::TestDisk(Content content) {
  for (auto& [path, bytes] : content) {
    File& file = files_[path] = {bytes, bytes, {}, {}};
    for (std::uint64_t block = 0; block * kBlock < bytes.size(); ++block) file.blocks.insert(block);
  }
  static std::atomic<int> disks{0};
  vfs_ = "test-disk-" + std::to_string(++disks);
  auto* const vfs = new sqlite3_vfs(*sqlite3_vfs_find(nullptr));  // its clock and random numbers
  vfs->iVersion = 1;
  vfs->szOsFile = sizeof(VfsFile);
  vfs->mxPathname = 500;
  vfs->pNext = nullptr;
  vfs->zName = vfs_.c_str();
  vfs->pAppData = this;
  vfs->xOpen = open_file;
  vfs->xDelete = remove_file;
  vfs->xAccess = access_file;
  vfs->xFullPathname = full_path;
  sqlite3_vfs_register(vfs, 0);
}

TestDisk::~TestDisk() {
  sqlite3_vfs* const vfs = sqlite3_vfs_find(vfs_.c_str());
  sqlite3_vfs_unregister(vfs);
  delete vfs;
}

OpenStorageFile TestDisk::opener() {
  return [this](const std::filesystem::path& path) {
    return std::make_unique<DiskFile>(*this, path.string());
  };
}

void TestDisk::on_change(std::function<Fault(std::int64_t)> ask) {
  std::lock_guard lock(mutex_);
  ask_ = std::move(ask);
}

std::int64_t TestDisk::changes() const {
  std::lock_guard lock(mutex_);
  return changes_;
}

std::int64_t TestDisk::bytes_written() const {
  std::lock_guard lock(mutex_);
  return bytes_written_;
}

TestDisk::Content TestDisk::now() const {
  std::lock_guard lock(mutex_);
  Content content;
  for (const auto& [path, file] : files_) content[path] = file.now;
  return content;
}

TestDisk::Content TestDisk::after_power_loss(Loss loss, std::mt19937_64& random) const {
  std::lock_guard lock(mutex_);
  return after_power_loss_locked(loss, random);
}

TestDisk::Content TestDisk::after_power_loss_locked(Loss loss, std::mt19937_64& random) const {
  constexpr std::size_t kSectorBytes = 512;
  Content content;
  for (const auto& [path, file] : files_) {
    std::vector<std::byte>& bytes = content[path] = file.synced;
    for (const Change& change : file.since) {
      if (loss == Loss::kAll) continue;
      if (loss == Loss::kNone) make_change(bytes, change);
      if (loss == Loss::kSome && random() % 2 == 0) make_change(bytes, change);
      if (loss != Loss::kTorn) continue;
      if (change.cuts) {
        if (random() % 2 == 0) make_change(bytes, change);
        continue;
      }
      for (std::size_t at = 0; at < change.bytes.size();) {
        const std::uint64_t offset = change.offset + at;
        const std::size_t count =
            std::min<std::size_t>(kSectorBytes - offset % kSectorBytes, change.bytes.size() - at);
        const auto from = change.bytes.begin() + static_cast<std::ptrdiff_t>(at);
        if (random() % 2 == 0) {
          make_change(bytes, {offset, {from, from + static_cast<std::ptrdiff_t>(count)}, false});
        }
        at += count;
      }
    }
  }
  return content;
}

TestDisk::Fault TestDisk::next_fault() {
  return ask_ ? ask_(changes_++) : (++changes_, Fault::kNone);
}

bool TestDisk::take_blocks(File& file, std::uint64_t offset, std::size_t bytes) {
  std::int64_t used = 0;
  for (const auto& [path, each] : files_) {
    used += static_cast<std::int64_t>(each.blocks.size() * kBlock);
  }
  std::vector<std::uint64_t> more;
  for (std::uint64_t block = offset / kBlock; block * kBlock < offset + bytes; ++block) {
    if (!file.blocks.contains(block)) more.push_back(block);
  }
  if (used + static_cast<std::int64_t>(more.size() * kBlock) > capacity_) return false;
  file.blocks.insert(more.begin(), more.end());
  return true;
}

void TestDisk::set_capacity(std::int64_t bytes) {
  std::lock_guard lock(mutex_);
  capacity_ = bytes;
}

std::int64_t TestDisk::bytes_in_use() const {
  std::lock_guard lock(mutex_);
  std::int64_t used = 0;
  for (const auto& [path, file] : files_) {
    used += static_cast<std::int64_t>(file.blocks.size() * kBlock);
  }
  return used;
}

void TestDisk::punch(const std::string& path, std::uint64_t offset, std::uint64_t bytes) {
  std::lock_guard lock(mutex_);
  std::erase_if(files_[path].blocks, [&](std::uint64_t block) {
    return block * kBlock >= offset && (block + 1) * kBlock <= offset + bytes;
  });
}

bool TestDisk::has_data(const std::string& path, std::uint64_t offset, std::uint64_t bytes) const {
  std::lock_guard lock(mutex_);
  const auto file = files_.find(path);
  if (file == files_.end()) return false;
  const auto block = file->second.blocks.lower_bound(offset / kBlock);
  return block != file->second.blocks.end() && *block * kBlock < offset + bytes;
}

void TestDisk::change(const std::string& path, Change change) {
  File& file = files_[path];
  make_change(file.now, change);
  file.since.push_back(std::move(change));
}

TestDisk::Fault TestDisk::write(const std::string& path, std::uint64_t offset,
                                std::span<const std::byte> bytes) {
  std::lock_guard lock(mutex_);
  Fault fault = next_fault();
  if (fault == Fault::kNone && !take_blocks(files_[path], offset, bytes.size())) {
    return Fault::kNoSpace;
  }
  if (fault == Fault::kNoSpace || fault == Fault::kFull) bytes = bytes.first(bytes.size() / 2);
  if (fault == Fault::kError) return fault;
  bytes_written_ += static_cast<std::int64_t>(bytes.size());
  change(path, {offset, {bytes.begin(), bytes.end()}, false});
  return fault;
}

TestDisk::Fault TestDisk::cut(const std::string& path, std::uint64_t size) {
  std::lock_guard lock(mutex_);
  const Fault fault = next_fault();
  if (fault == Fault::kNone) {
    change(path, {size, {}, true});
    std::erase_if(files_[path].blocks, [&](std::uint64_t block) { return block * kBlock >= size; });
  }
  return fault;
}

TestDisk::Fault TestDisk::sync(const std::string& path) {
  std::lock_guard lock(mutex_);
  const Fault asked = next_fault();
  const Fault fault = asked == Fault::kFull ? Fault::kNone : asked;
  File& file = files_[path];
  if (fault == Fault::kNone) {
    for (const Change& change : file.since) make_change(file.synced, change);
  }
  file.since.clear();
  return fault;
}

std::size_t TestDisk::read(const std::string& path, std::uint64_t offset,
                           std::span<std::byte> to) const {
  std::lock_guard lock(mutex_);
  const auto file = files_.find(path);
  if (file == files_.end() || offset >= file->second.now.size()) return 0;
  const std::size_t count = std::min<std::size_t>(to.size(), file->second.now.size() - offset);
  std::copy_n(file->second.now.begin() + static_cast<std::ptrdiff_t>(offset), count, to.begin());
  return count;
}

std::uint64_t TestDisk::size(const std::string& path) const {
  std::lock_guard lock(mutex_);
  const auto file = files_.find(path);
  return file == files_.end() ? 0 : file->second.now.size();
}

void TestDisk::make(const std::string& path) {
  std::lock_guard lock(mutex_);
  files_[path];
}

void TestDisk::remove(const std::string& path) {
  std::lock_guard lock(mutex_);
  files_.erase(path);
}

bool TestDisk::has(const std::string& path) const {
  std::lock_guard lock(mutex_);
  return files_.contains(path);
}

}  // namespace lintel::testing

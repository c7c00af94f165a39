// SPDX-License-Identifier: Apache-2.0
// lintel-server on a small disk that is full to its last block, as an operator meets it.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "tests/server/sessions/restart/server_process.h"
#include "tests/support/catch.h"
#include "tests/support/eventually.h"

namespace lintel::testing {
namespace {

using Catch::Contains;
using Code = grpc::StatusCode;

// A tmpfs of some MiB, in a mount namespace of this process's own. Needs root.
class SmallDisk {
 public:
  explicit SmallDisk(const char* size) {
    if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", directory_.path().c_str(), "tmpfs", 0, size) != 0) {
      why_ = std::strerror(errno == 0 ? EPERM : errno);
    }
  }
  ~SmallDisk() {
    if (why_.empty()) umount2(directory_.path().c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  // Empty: it is there.
  const std::string& why_not() const { return why_; }
  std::string store() const { return directory_.path() / "store"; }
  // Takes every block that is left.
  void fill() {
    const std::string path = directory_.path() / ("ballast" + std::to_string(++fills_));
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    REQUIRE(file >= 0);
    const std::vector<char> block(4096, 'b');
    while (write(file, block.data(), block.size()) > 0) {
    }
    CHECK(errno == ENOSPC);
    close(file);
    CHECK(free_bytes() == 0);
  }
  std::uint64_t free_bytes() const {
    struct statvfs found {};
    REQUIRE(statvfs(directory_.path().c_str(), &found) == 0);
    return std::uint64_t{found.f_bfree} * found.f_bsize;
  }
  std::uint64_t slab_bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(store())) {
      if (entry.path().extension() == ".slab") bytes += entry.file_size();
    }
    return bytes;
  }

 private:
  const TemporaryDirectory directory_;
  std::string why_;
  int fills_ = 0;
};

#define REQUIRE_DISK(disk)                                                 \
  if (!(disk).why_not().empty()) {                                         \
    WARN("skipped: a tmpfs cannot be mounted here: " << (disk).why_not()); \
    return;                                                                \
  }

std::vector<std::string> flags_on(const Files& files, const SmallDisk& disk,
                                  const std::vector<std::string>& more = {}) {
  // Its log is not read while it runs.
  std::vector<std::string> all = {"--session-park-tokens", "1", "--log-level", "error"};
  all.insert(all.end(), more.begin(), more.end());
  std::vector<std::string> flags = files.flags(all);
  *(std::ranges::find(flags, "--session-store") + 1) = disk.store();
  return flags;
}

// Sessions with 33 tokens and a state each.
std::vector<std::string> sessions_on(Server& server, int count) {
  std::vector<std::string> ids;
  for (int i = 0; i < count; ++i) {
    v1::Session session;
    REQUIRE(server.create(v1::DURABILITY_INPUT, &session).ok());
    REQUIRE(server.generate(call_on(session.id(), "one", {1, 2, 3}, 30)).status.ok());
    ids.push_back(session.id());
  }
  return ids;
}

grpc::Status remove(Server& server, const std::string& id) {
  v1::DeleteSessionRequest request;
  request.set_id(id);
  google::protobuf::Empty response;
  grpc::ClientContext context;
  return server.sessions->Delete(&context, request, &response);
}

// Creates sessions until one is refused for want of room. Returns how many there are.
int create_until_full(Server& server, std::string* why) {
  for (int made = 0; made < 5000; ++made) {
    v1::Session session;
    const grpc::Status status = server.create(v1::DURABILITY_INPUT, &session);
    if (status.ok()) continue;
    CHECK(status.error_code() == Code::RESOURCE_EXHAUSTED);
    *why = status.error_message();
    return made;
  }
  return 5000;
}

TEST_CASE("full disk: states make room, deletes always succeed, and then calls do again",
          "[threat-59]") {
  SmallDisk disk("size=16m");
  REQUIRE_DISK(disk);
  const Files files;
  Server server(flags_on(files, disk));
  const std::vector<std::string> ids = sessions_on(server, 40);
  disk.fill();
  std::string why;
  const int made = create_until_full(server, &why);
  WARN(made << " sessions more on a full disk, then: " << why);
  CHECK(made > 0);
  CHECK_THAT(why, Contains("the session store is full"));
  const grpc::Status full = server.generate(call_on(ids[0], "two", {4}, 30)).status;
  WARN("a call on one: " << full.error_message());
  for (const std::string& id : ids) {
    const grpc::Status removed = remove(server, id);
    INFO(removed.error_message());
    REQUIRE(removed.ok());
    REQUIRE(remove(server, id).error_code() == Code::NOT_FOUND);
  }
  v1::Session session;
  CHECK(eventually([&] { return server.create(v1::DURABILITY_INPUT, &session).ok(); }));
  CHECK(server.generate(call_on(session.id(), "one", {1}, 30)).status.ok());
  server.process.send(SIGTERM);
  CHECK(server.process.wait() == 0);
}

TEST_CASE("full disk: a smaller --session-store-size makes room before the server is ready") {
  SmallDisk disk("size=22m");
  REQUIRE_DISK(disk);
  const Files files;
  {
    Server server(flags_on(files, disk));
    sessions_on(server, 400);
    server.process.send(SIGTERM);
    REQUIRE(server.process.wait() == 0);
  }
  REQUIRE(disk.slab_bytes() > (1 << 20));
  disk.fill();
  Server server(flags_on(files, disk, {"--session-store-size", "1MiB"}));
  CHECK(disk.slab_bytes() <= (1 << 20));
  v1::Session session;
  CHECK(server.create(v1::DURABILITY_INPUT, &session).ok());
  CHECK(server.generate(call_on(session.id(), "one", {1}, 30)).status.ok());
}

TEST_CASE("full disk: a shorter --session-expire removes expired sessions from the start on") {
  SmallDisk disk("size=16m");
  REQUIRE_DISK(disk);
  const Files files;
  std::vector<std::string> ids;
  {
    Server server(flags_on(files, disk));
    ids = sessions_on(server, 40);
    disk.fill();
    std::string why;
    create_until_full(server, &why);
    server.process.send(SIGTERM);
    REQUIRE(server.process.wait() == 0);
  }
  disk.fill();
  Server server(flags_on(files, disk, {"--session-expire", "1s"}));
  v1::Session session;
  grpc::Status status;
  CHECK(eventually([&] {
    status = server.create(v1::DURABILITY_INPUT, &session);
    return status.ok();
  }));
  INFO(status.error_message());
  CHECK(status.ok());
  CHECK(eventually([&] { return remove(server, ids[0]).error_code() == Code::NOT_FOUND; }));
  CHECK(eventually([&] {
    return server.create(v1::DURABILITY_INPUT, &session).ok() &&
           server.generate(call_on(session.id(), "one", {1}, 30)).status.ok();
  }));
}

}  // namespace
}  // namespace lintel::testing

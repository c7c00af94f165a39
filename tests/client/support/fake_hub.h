// SPDX-License-Identifier: Apache-2.0
// A model hub over HTTP on a port of this machine, with faults on purpose.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace lintel::testing {

struct HubRequest {
  std::string method, target;
  std::map<std::string, std::string> headers;  // names in lower case
};

// A fault in the next GET of a file, in place of its content.
struct HubFault {
  std::optional<std::size_t> cut_after = {};  // bytes of the body, then the connection is closed
  bool wrong_content = false;                 // the first byte is another
  int status = 0;                             // an empty reply of this status
  std::string header = {};                    // of that reply, with its line end
  bool endless = false;                       // that reply has a body without an end
  bool ignores_range = false;                 // status 200 and the whole file
};

// Threads: set up before the first request; requests() and add_fault() from any.
class FakeHub {
 public:
  static constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

  FakeHub();
  ~FakeHub();
  FakeHub(const FakeHub&) = delete;
  FakeHub& operator=(const FakeHub&) = delete;

  // http://127.0.0.1:PORT
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

  // A file of every repository and revision, large (by SHA-256) or not (by git's SHA-1).
  void add_file(const std::string& path, const std::string& content, bool large = true);
  // Its entity tag, of the content it should have.
  std::string etag(const std::string& path) const { return files_.at(path).etag; }

  void add_fault(const HubFault& fault);
  // GETs of large files are redirected there; that hub has the same files.
  void redirect_to(const FakeHub& other) { elsewhere_ = other.url(); }
  // Sets the size that HEAD claims, in place of the true one.
  void claim_size(const std::string& size) { claimed_size_ = size; }
  // The list of files has this JSON in place of the files.
  void set_list(const std::string& json) { list_ = json; }
  // The list has this file alone; "": what there is.
  void list_name(const std::string& name);
  // GETs of files wait for this until it is false.
  std::atomic<bool> held{false};
  // Bytes of endless bodies that were taken from the hub, by the client or on the way to it.
  std::atomic<std::size_t> endless_bytes{0};

  std::vector<HubRequest> requests() const;
  std::size_t count(const std::string& method, const std::string& target_part) const;

 private:
  struct File {
    std::string content, etag;
    bool large = true;
  };

  void serve();
  void answer(int connection);
  std::string reply(const HubRequest& request, std::optional<std::size_t>& cut_after,
                    bool& is_endless);

  int listener_ = -1;
  int port_ = 0;
  std::map<std::string, File> files_;
  std::string elsewhere_, claimed_size_, list_;
  mutable std::mutex mutex_;
  std::deque<HubFault> faults_;       // guarded by mutex_
  std::vector<HubRequest> requests_;  // guarded by mutex_
  std::atomic<bool> ending_{false};
  std::thread thread_;
  std::vector<std::thread> answers_;  // of thread_
};

}  // namespace lintel::testing

// ConnectClient: a client of Generate over HTTP, as cheap as may be, to measure the server with.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "lintel/v1/generation.pb.h"

namespace lintel::bench {

// One connection in plain text, one stream of Connect's protocol after the other
// (application/connect+proto). Throws std::runtime_error where the server is gone or says no.
// Threads: stop by any, the rest by one.
class ConnectClient {
 public:
  explicit ConnectClient(const std::string& address);  // HOST:PORT
  ~ConnectClient();
  ConnectClient(const ConnectClient&) = delete;
  ConnectClient& operator=(const ConnectClient&) = delete;

  // Runs a call to its end. Returns false where it was stopped before.
  bool generate(const v1::GenerateRequest& request,
                const std::function<void(const v1::GenerateResponse&)>& on_message);
  // Ends the call that runs, and all that would come after it.
  void stop();

 private:
  // Makes sure that the buffer holds so many bytes.
  void need(std::size_t bytes);
  std::string take(std::size_t bytes);
  std::string take_line();

  int fd_ = -1;
  std::atomic<bool> stopped_{false};
  std::string buffer_;
};

}  // namespace lintel::bench

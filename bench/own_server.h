// A server in this process, on a loopback port of the system's choice.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "model/transformer.h"
#include "server/app/lintel_server.h"

namespace lintel::bench {

class OwnServer {
 public:
  struct Options {
    int workers = 1;
    int rows = 16;  // of a worker's step
    Speculation speculation = Speculation::kAuto;
    bool http = false;                      // also over HTTP
    std::filesystem::path session_store{};  // empty: sessions are in memory alone
  };

  OwnServer(std::shared_ptr<const Transformer> model, const Options& options);
  std::string address() const { return server_.address(); }
  std::string http_address() const { return server_.http_address(); }  // REQUIRES: with http

 private:
  const SteadyClock clock_;
  LintelServer server_;
};

}  // namespace lintel::bench

// SPDX-License-Identifier: Apache-2.0
// Model files that are cut short, written over or deleted while they are served, or while they
// load.
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <sstream>
#include <thread>

#include "tests/chaos/chaos_server.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"

namespace lintel::testing {
namespace {

namespace fs = std::filesystem;

}  // namespace

TEST_CASE("changes of a model's files while it is served have no effect", "[threat-74]") {
  const TemporaryDirectory directory;
  const fs::path model = directory.path() / "tokens", weights = model / "model.safetensors";
  // Larger than one step touches of it, in all weight types: none may be read from the file later.
  ModelConfig config = tiny_config(TinyModel::kTokens);
  config.vocab_size = 5000;
  write_random_model(model, config, /*seed=*/7);
  const auto whole = fs::file_size(weights);

  struct Deed {
    const char* what;
    std::function<void()> act;
  };
  const Deed deeds[] = {
      {"cut to half", [&] { fs::resize_file(weights, whole / 2); }},
      {"cut to nothing", [&] { fs::resize_file(weights, 0); }},
      {"written over",
       [&] { std::ofstream(weights, std::ios::binary) << std::string(whole, '\xff'); }},
      {"replaced by another model",
       [&] { write_random_model(model, tiny_config(TinyModel::kBytes), /*seed=*/8); }},
      {"deleted", [&] { fs::remove_all(model); }},
  };
  for (const char* type : {"f32", "bf16", "int8"}) {
    INFO(type);
    write_random_model(model, config, /*seed=*/7);
    ChaosServer server({.flags = {"--weight-type", type}, .models = {model}});
    std::ifstream maps("/proc/" + std::to_string(server.pid()) + "/maps");
    std::ostringstream mapped;
    mapped << maps.rdbuf();
    CHECK_THAT(mapped.str(), !Catch::Contains("safetensors"));
    server.take_baseline();

    std::atomic<bool> done{false};
    std::atomic<int> right{0}, wrong{0};
    std::vector<std::thread> clients;
    for (int i = 0; i < 4; ++i) {
      clients.emplace_back([&] {
        while (!done) ++(server.generate_reference() == server.reference() ? right : wrong);
      });
    }
    for (const Deed& deed : deeds) {
      INFO(deed.what);
      const int before = right;
      deed.act();
      CHECK(eventually([&] { return right + wrong >= before + 20; }));
      CHECK(wrong == 0);
      CHECK(server.serving());
    }
    done = true;
    for (std::thread& client : clients) client.join();
    CHECK(wrong == 0);
    server.check_recovered(std::string("weights in ") + type +
                           " cut, written over, replaced and deleted under " +
                           std::to_string(right) + " generations");
  }
}

TEST_CASE("a model that is cut short while it loads is refused, and nothing crashes",
          "[threat-74]") {
  const TemporaryDirectory directory;
  const fs::path model = directory.path() / "large", copy = directory.path() / "copy";
  ModelConfig config = tiny_config(TinyModel::kTokens);
  config.d_model = 256;
  config.n_heads = 8;
  config.d_head = 32;
  config.d_ff = 1024;
  config.n_layers = 8;
  config.attention.assign(8, config.attention[0]);
  write_random_model(model, config, /*seed=*/7);
  int refused = 0, loaded = 0;
  for (int i = 0; i < 20; ++i) {
    fs::remove_all(copy);
    fs::copy(model, copy);
    Process server({LINTEL_SERVER, "--listen", "127.0.0.1:0", "--http-listen", "off", "--model",
                    copy, "--workers", "1"});
    // At another moment of the start each time.
    std::this_thread::sleep_for(std::chrono::milliseconds(5 * i));
    fs::resize_file(copy / "model.safetensors", 1000);
    const bool ready = server.read_out_until("\n").rfind("lintel-server ready on ", 0) == 0;
    if (ready) server.send(SIGTERM);
    const int code = server.wait();
    INFO(server.err());
    CHECK(code == (ready ? 0 : 1));
    if (!ready) CHECK_THAT(server.err(), Catch::Contains("model.safetensors"));
    ++(ready ? loaded : refused);
  }
  std::cout << "chaos: files cut short during 20 loads: " << refused << " refused, " << loaded
            << " had been read" << std::endl;
}

}  // namespace lintel::testing

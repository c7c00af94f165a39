// Calls within the process whose answer finds no memory.
#include "server/http/transport/http_calls.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <new>

#include "tests/server/support/service_fixture.h"
#include "tests/support/eventually.h"

namespace lintel::testing {
namespace {

// Of which it is only counted how it ends.
class CountedExchange final : public HttpExchange {
 public:
  const HttpRequest& request() const override { return request_; }
  std::string take_body() override { return {}; }
  void answer(HttpAnswer) override { ++answered; }
  void begin(HttpAnswer) override {}
  void write(std::string, std::function<void(bool)> taken) override { taken(true); }
  void end(std::string) override {}
  void abort() override { ++aborted; }
  void when_gone(std::function<void()>) override {}

  std::atomic<int> answered{0}, aborted{0};

 private:
  const HttpRequest request_{.method = "POST", .request_id = "one"};
};

}  // namespace

TEST_CASE("a unary call whose answer finds no memory ends its connection alone") {
  TestServer server({"tokens"});
  HttpCalls calls(server.channel(), "key");
  const std::string method = "/lintel.v1.ModelService/List";
  const auto lost = std::make_shared<CountedExchange>();
  calls.unary(lost, method, bytes_of(v1::ListModelsRequest()),
              [](const auto&, auto&, const auto&) { throw std::bad_alloc(); });
  REQUIRE(eventually([&] { return lost->aborted > 0; }));
  CHECK(lost->answered == 0);
  // The thread that ran it serves the next.
  const auto next = std::make_shared<CountedExchange>();
  calls.unary(next, method, bytes_of(v1::ListModelsRequest()),
              [next](const grpc::Status& status, auto&, const auto&) {
                if (status.ok()) next->answer({});
              });
  REQUIRE(calls.stop(std::chrono::seconds(60)));
  CHECK(lost->aborted == 1);
  CHECK(next->answered == 1);
  CHECK(next->aborted == 0);
}

}  // namespace lintel::testing

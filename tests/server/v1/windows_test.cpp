// Text in windows, over gRPC: longer than the model's length, and the same in any cut of calls.
#include <catch2/catch.hpp>

#include "tests/server/support/session_calls.h"

namespace lintel::testing {
namespace {

Generated in_window(TestServer& server, const std::string& model, std::int64_t window,
                    unsigned count) {
  v1::GenerateRequest request = request_for(model, {1, 2}, count);
  request.set_window(window);
  request.mutable_sampling()->set_seed(7);
  request.set_log2_probs(true);
  return generate(server, request);
}

TEST_CASE("text in a window goes on behind the model's length, in one call or in several") {
  TestServer server({"bytes"});  // of at most 256 positions
  const Sample whole = in_window(server, "bytes", 32, 400).only();
  REQUIRE(whole.tokens.size() == 400);
  CHECK(whole.finish.replayed_tokens() == 16 * (1 + (402 - 32) / 16));
  CHECK(in_window(server, "bytes", 64, 400).only().tokens != whole.tokens);

  const v1::Session session = create_windowed(server, "bytes", 32);
  CHECK(session.window() == 32);
  Sample parts = go_on(server, session.id(), 37, {1, 2});
  for (const unsigned count : {1u, 10u, 352u}) {
    const Sample part = go_on(server, session.id(), count);
    parts.tokens.insert(parts.tokens.end(), part.tokens.begin(), part.tokens.end());
    parts.log2_probs.insert(parts.log2_probs.end(), part.log2_probs.begin(), part.log2_probs.end());
  }
  CHECK(parts.tokens == whole.tokens);
  CHECK(parts.log2_probs == whole.log2_probs);
  CHECK(get_session(server, session.id()).position() == 402);

  // Back to before several windows, and on again.
  v1::Session rewound;
  REQUIRE(rewind_session(server, session.id(), 102, &rewound).ok());
  const Sample again = go_on(server, session.id(), 300);
  CHECK(again.tokens == std::vector<std::int32_t>(whole.tokens.begin() + 100, whole.tokens.end()));
}

TEST_CASE("a window is even, no longer than the model, the session's own, and not for images") {
  TestServer server({"bytes", "image"});
  const auto refusal_of = [&](const std::string& model, std::int64_t window) {
    const grpc::Status called = in_window(server, model, window, 1).status;
    grpc::Status created;
    create_windowed(server, model, window, &created);
    CHECK(called.error_code() == created.error_code());
    CHECK((called.ok() || called.error_message().find("window") != std::string::npos));
    CHECK((created.ok() || created.error_message().find("window") != std::string::npos));
    return called.error_code();
  };
  for (const std::int64_t window : {-2, 1, 3, 258}) {
    CHECK(refusal_of("bytes", window) == grpc::StatusCode::INVALID_ARGUMENT);
  }
  for (const std::int64_t window : {2, 256}) {
    CHECK(refusal_of("bytes", window) == grpc::StatusCode::OK);
  }
  CHECK(refusal_of("image", 2) == grpc::StatusCode::INVALID_ARGUMENT);

  const v1::Session session = create_windowed(server, "bytes", 32);
  v1::GenerateRequest request = request_for("", {1}, 1);
  request.set_session_id(session.id());
  request.set_window(64);
  CHECK(generate(server, request).status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  request.set_window(32);
  CHECK(generate(server, request).status.ok());
}

}  // namespace
}  // namespace lintel::testing

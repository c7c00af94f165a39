// SPDX-License-Identifier: Apache-2.0
// Requests are measured in their bytes, before they are parsed.

#include <string>

#include "inference/grpc_service.pb.h"
#include "lintel/v1/generation.pb.h"
#include "server/rpc/call_scope.h"
#include "server/rpc/rpc.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

constexpr MessageBounds kBounds{1 << 20};

// Slices of 1,000 bytes, as they come from the network.
grpc::ByteBuffer buffer_of(const std::string& bytes) {
  std::vector<grpc::Slice> slices;
  for (std::size_t at = 0; at < bytes.size(); at += 1000)
    slices.emplace_back(bytes.substr(at, 1000));
  return {slices.data(), slices.size()};
}

template <typename Message>
grpc::Status parse(const std::string& bytes, Message& message, MessageBounds bounds = kBounds) {
  grpc::ByteBuffer buffer = buffer_of(bytes);
  return parse_bounded(buffer, bounds, message);
}

std::string repeated(const std::string& bytes, std::size_t times) {
  std::string all;
  for (std::size_t i = 0; i < times; ++i) all += bytes;
  return all;
}

TEST_CASE("a request in any slices is parsed as libprotobuf would") {
  v1::GenerateRequest request;
  request.set_model(std::string(5000, 'm'));
  for (int i = 0; i < 50'000; ++i) request.mutable_prompt()->mutable_tokens()->add_ids(i);
  request.add_given()->mutable_values()->set_text("text");
  request.mutable_time_limit()->set_seconds(3);
  v1::GenerateRequest parsed;
  CHECK(parse(request.SerializeAsString(), parsed).ok());
  CHECK(parsed.SerializeAsString() == request.SerializeAsString());

  inference::ModelInferRequest infer;
  (*infer.mutable_parameters())["seed"].set_int64_param(-7);
  infer.add_raw_input_contents(std::string(100'000, '\x7f'));
  infer.add_inputs()->mutable_contents()->add_fp64_contents(0.5);
  inference::ModelInferRequest parsed_infer;
  CHECK(parse(infer.SerializeAsString(), parsed_infer).ok());
  CHECK(parsed_infer.SerializeAsString() == infer.SerializeAsString());
  CHECK(parse("", parsed).ok());
}

TEST_CASE("about as many ids as a message has bytes for fit") {
  v1::GenerateRequest request;
  for (int i = 0; i < (1 << 20) - 1000; ++i) request.mutable_prompt()->mutable_tokens()->add_ids(1);
  v1::GenerateRequest parsed;
  CHECK(parse(request.SerializeAsString(), parsed).ok());
}

TEST_CASE("a message of small elements is refused with its bound", "[threat-42]") {
  const auto refusal = [](const std::string& bytes) {
    inference::ModelInferRequest request;
    const grpc::Status status = parse(bytes, request);
    CHECK(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    CHECK(request.ByteSizeLong() == 0);  // the parser has not seen it
    return status.error_message();
  };
  const auto bound = Catch::Contains("4194304 bytes of memory");
  CHECK_THAT(refusal(repeated(std::string("\x3a\0", 2), 200'000)), bound);  // raw_input_contents
  CHECK_THAT(refusal(repeated(std::string("\x2a\0", 2), 200'000)), bound);  // inputs
  CHECK_THAT(refusal(repeated(std::string("\xf8\x07\0", 3), 200'000)), bound);  // unknown
  // A byte each on the wire and eight in memory.
  inference::ModelInferRequest wide;
  wide.add_inputs()->mutable_contents()->mutable_uint64_contents()->Resize(600'000, 1);
  CHECK_THAT(refusal(wide.SerializeAsString()), bound);
}

TEST_CASE("a message that is too large or malformed is refused by the name of its type") {
  v1::GenerateRequest request;
  const auto refusal = [&](const std::string& bytes, MessageBounds bounds = kBounds) {
    const grpc::Status status = parse(bytes, request, bounds);
    CHECK(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  CHECK_THAT(refusal(std::string(5000, '\x0a'), kOpenMessage),
             Catch::Contains("5000 bytes are more than the 4096 of a GenerateRequest"));
  for (const std::string& bytes :
       {std::string("\x0a"), std::string("\x0a\xff\xff\xff\xff\x0f"), std::string("\0", 1),
        std::string("\x0b\x0c"), std::string("\x0a\x05"), std::string("\x08\x80")}) {
    CHECK_THAT(refusal(bytes), Catch::Contains("is not a GenerateRequest"));
  }
}

TEST_CASE("fields that a type does not know are left out") {
  v1::GenerateRequest request;
  CHECK(parse(std::string("\x0a\x01m\xfa\x3f\x03"
                          "abc\xf8\x3f\x01",
                          12),
              request)
            .ok());
  CHECK(request.model() == "m");
  CHECK(request.GetReflection()->GetUnknownFields(request).empty());
}

TEST_CASE("a request releases its bytes after it is read", "[threat-44]") {
  v1::GenerateRequest request;
  request.set_model("tokens");
  const RequestMessage bytes(buffer_of(request.SerializeAsString()));
  const LazyMessage<v1::GenerateRequest> received(bytes);
  v1::GenerateRequest once, again;
  CHECK(received.read(kBounds, once).ok());
  CHECK(once.model() == "tokens");
  CHECK_FALSE(received.read(kBounds, again).ok());
}

TEST_CASE("a request that is moved leaves nothing of its bytes behind", "[threat-44]") {
  v1::GenerateRequest request;
  request.set_model("tokens");
  RequestMessage first(buffer_of(request.SerializeAsString()));
  const std::size_t size = first.size();
  REQUIRE(size == request.ByteSizeLong());
  RequestMessage second = std::move(first);
  CHECK(first.size() == 0);
  CHECK(second.size() == size);
  first = std::move(second);
  CHECK(second.size() == 0);
  CHECK(first.size() == size);
}

TEST_CASE("a message of this process has the bounds of one that came over the wire",
          "[threat-42]") {
  v1::GenerateRequest request;
  request.set_model("tokens");
  const RequestMessage fits = RequestMessage::of(v1::GenerateRequest(request));
  CHECK(fits.size() == request.SpaceUsedLong());
  v1::GenerateRequest once, again;
  CHECK(fits.read(kBounds, once).ok());
  CHECK(once.model() == "tokens");
  CHECK_FALSE(fits.read(kBounds, again).ok());  // nothing is left of it
  CHECK(fits.size() == 0);

  request.set_model(std::string(kBounds.max_bytes, 'm'));
  const grpc::Status refused =
      RequestMessage::of(v1::GenerateRequest(request)).read(kBounds, again);
  CHECK(refused.error_code() == grpc::INVALID_ARGUMENT);
  CHECK(refused.error_message() == parse(request.SerializeAsString(), again).error_message());
  CHECK(again.model().empty());
}

}  // namespace
}  // namespace lintel::testing

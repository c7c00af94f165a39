// SPDX-License-Identifier: Apache-2.0
// Why a model is not loaded, as a status.
#include "server/api/refusals.h"
#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Code = grpc::StatusCode;
using Kind = LoadRefusal::Kind;

TEST_CASE("every refusal of a load has its code, its text and its details") {
  CHECK(load_status(std::nullopt).ok());
  const auto status = [](Kind kind) { return load_status(LoadRefusal{kind, "digits", "why"}); };
  const grpc::Status not_found = status(Kind::kNotFound);
  CHECK(not_found.error_code() == Code::NOT_FOUND);
  CHECK(not_found.error_message() == "why");
  CHECK(detail_of<google::rpc::ResourceInfo>(not_found)->resource_name() == "digits");
  const grpc::Status unusable = status(Kind::kUnusable);
  CHECK(unusable.error_code() == Code::FAILED_PRECONDITION);
  CHECK(detail_of<google::rpc::PreconditionFailure>(unusable)->violations(0).subject() == "digits");
  const auto retry = [&](Kind kind) {
    CHECK(status(kind).error_code() == Code::RESOURCE_EXHAUSTED);
    CHECK(status(kind).error_message() == "why");
    return detail_of<google::rpc::RetryInfo>(status(kind))->retry_delay().seconds();
  };
  CHECK(retry(Kind::kOutOfModelMemory) == 10);
  CHECK(retry(Kind::kTooManyLoads) == 1);
  CHECK(status(Kind::kStopping).error_code() == Code::UNAVAILABLE);
  CHECK_THAT(status(Kind::kStopping).error_message(), Catch::Contains("shutting down"));
  CHECK(status(Kind::kOutOfMemory).error_code() == Code::RESOURCE_EXHAUSTED);
  CHECK(status(Kind::kFailed).error_code() == Code::INTERNAL);
}

}  // namespace
}  // namespace lintel::testing

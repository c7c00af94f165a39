// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/status.h"

#include <chrono>
#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using std::chrono::milliseconds;

TEST_CASE("status: its details are read as they were given") {
  CHECK(read_status_details(grpc::Status::OK).violations.empty());
  CHECK(read_status_details({grpc::StatusCode::NOT_FOUND, "none", "no details"}).resource.empty());
  const StatusDetails wrong = read_status_details(
      invalid_argument({{"top_p", "2 is more than 1"}, {"seed", "is a text"}}, "REASON"));
  REQUIRE(wrong.violations.size() == 2);
  CHECK(wrong.violations[1].field == "seed");
  CHECK(wrong.violations[1].description == "is a text");
  CHECK(wrong.reason == "REASON");
  CHECK(wrong.precondition.empty());
  CHECK_FALSE(wrong.retry_after);
  CHECK(read_status_details(not_found("model", "m", "no model m")).resource == "model");
  CHECK(read_status_details(failed_precondition("SEQUENCE_COMPLETE", "s", "it is")).precondition ==
        "SEQUENCE_COMPLETE");
  CHECK(read_status_details(unavailable("later", milliseconds(1500))).retry_after ==
        milliseconds(1500));
}

TEST_CASE("status: fields that are wrong take the names of another API") {
  const auto renamed = [](const std::string& field) {
    return field == "top_log2_probs" ? std::string("top_logprobs") : field;
  };
  const grpc::Status wrong = with_fields(
      invalid_argument({{"top_log2_probs", "65 is more than 64"}, {"n", "is 0"}}), renamed);
  CHECK(wrong.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(wrong.error_message() == "top_logprobs: 65 is more than 64; n: is 0");
  CHECK(read_status_details(wrong).violations[0].field == "top_logprobs");
  CHECK(
      read_status_details(with_fields(invalid_argument({{"n", "is 0"}}, "WHY"), renamed)).reason ==
      "WHY");
  // Those beyond the 16 that are listed are counted all the same.
  std::vector<FieldViolation> many(20, {"n", "is 0"});
  const grpc::Status counted = with_fields(invalid_argument(many), renamed);
  CHECK_THAT(counted.error_message(), Catch::EndsWith("; and 4 fields more that are wrong"));
  CHECK(read_status_details(counted).violations.size() == 16);
  CHECK(more_violations(read_status_details(counted)) == "; and 4 fields more that are wrong");
  CHECK(with_fields(invalid_argument(many, "WHY"), renamed).error_message() ==
        counted.error_message());
  many.resize(17);
  CHECK_THAT(with_fields(invalid_argument(many), renamed).error_message(),
             Catch::EndsWith("; and 1 field more that is wrong"));
  many.resize(16);
  CHECK(more_violations(read_status_details(invalid_argument(many))).empty());
  const grpc::Status other = with_fields(not_found("model", "m", "no model m"), renamed);
  CHECK(read_status_details(other).resource == "model");
}

}  // namespace
}  // namespace lintel::testing

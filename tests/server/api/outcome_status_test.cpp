// SPDX-License-Identifier: Apache-2.0
// How a request ended, as a status. Clients time their own deadlines: only here, in metrics and in
// logs does it show what the server says of one.
#include "server/api/refusals.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using Code = grpc::StatusCode;

TEST_CASE("every outcome has its code, and names the model or session that is concerned") {
  ServedModel model;
  model.name = "digits";
  const auto status = [&](RequestOutcome outcome, const std::string& session = "") {
    return outcome_status(outcome, model, session);
  };
  CHECK(status(RequestOutcome::kDone).ok());
  CHECK(status(RequestOutcome::kCancelled).error_code() == Code::CANCELLED);
  CHECK(status(RequestOutcome::kDeadline).error_code() == Code::DEADLINE_EXCEEDED);
  for (const auto outcome : {RequestOutcome::kNonFinite, RequestOutcome::kInternal}) {
    CHECK(status(outcome).error_code() == Code::INTERNAL);
    CHECK_THAT(status(outcome).error_message(), Contains("digits") && !Contains("session"));
    CHECK_THAT(status(outcome, "abc").error_message(), Contains("session abc is gone"));
    CHECK_THAT(outcome_status(outcome, model, "abc", /*is_stored=*/true).error_message(),
               Contains("session abc resumes from what is stored of it") && !Contains("gone"));
  }
  CHECK(status(RequestOutcome::kGrammarWork).error_code() == Code::INVALID_ARGUMENT);
  CHECK_THAT(status(RequestOutcome::kGrammarWork).error_message(), Contains("too ambiguous"));
  CHECK(status(RequestOutcome::kNoToken).error_code() == Code::INVALID_ARGUMENT);
  CHECK_THAT(status(RequestOutcome::kNoToken).error_message(),
             Contains("no token of model digits"));
  CHECK_THAT(status(RequestOutcome::no_token('?')).error_message(), Contains("byte 0x3F (?)"));
  CHECK_THAT(status(RequestOutcome::no_token(0xE4)).error_message(),
             Contains("byte 0xE4 is needed"));
  CHECK(status(RequestOutcome::kMemory).error_code() == Code::RESOURCE_EXHAUSTED);
  CHECK_THAT(status(RequestOutcome::kMemory).error_message(), Contains("--max-queue-wait"));
  CHECK(status(RequestOutcome::kShutdown).error_code() == Code::UNAVAILABLE);
  CHECK_THAT(status(RequestOutcome::kShutdown).error_message(), Contains("shutting down"));
  CHECK(status(RequestOutcome::kMoved, "abc").error_code() == Code::UNAVAILABLE);
  CHECK_THAT(status(RequestOutcome::kMoved, "abc").error_message(), Contains("by its call_id"));
  model.retired.store(true);
  CHECK(status(RequestOutcome::kShutdown).error_code() == Code::UNAVAILABLE);
  CHECK_THAT(status(RequestOutcome::kShutdown).error_message(), Contains("digits was unloaded"));
}

}  // namespace
}  // namespace lintel::testing

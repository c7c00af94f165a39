// SPDX-License-Identifier: Apache-2.0
// Why every write compares a nonce and a digest: what less would let happen, and that this lets
// nothing happen.
#include "tests/server/sessions/storage/protocol/protocol_model.h"

#include <string>

#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// Smaller, as each request may arrive twice.
constexpr ProtocolBounds kLate{.tokens = 2, .claims = 2, .has_late_requests = true};

std::string trace_of(const std::optional<ProtocolFault>& fault) {
  if (!fault) return "none";
  std::string all;
  for (const std::string& event : fault->trace) all += event + "\n";
  return all;
}

}  // namespace

TEST_CASE("a counter alone lets a replica write into another's line after a failover") {
  const ProtocolSearch found = search_protocol({.counter = true});
  INFO(trace_of(found.foreign_write));
  REQUIRE(found.foreign_write);
  // The same number was given out twice: once by the store that was lost, once by its copy.
  CHECK(trace_of(found.foreign_write).find("failover") != std::string::npos);
}

TEST_CASE("a counter and a length let a replica write into another's line after a failover") {
  const ProtocolSearch found = search_protocol({.counter = true, .length = true});
  INFO(trace_of(found.foreign_write));
  CHECK(found.foreign_write);
}

TEST_CASE("a nonce alone leaves a hole where a failover has lost tokens") {
  const ProtocolSearch found = search_protocol({.nonce = true});
  INFO(trace_of(found.foreign_write));
  REQUIRE(found.foreign_write);
  CHECK(trace_of(found.foreign_write).find("failover") != std::string::npos);
}

TEST_CASE("a nonce alone lets a write that arrives late undo what came after it") {
  const ProtocolSearch found = search_protocol({.nonce = true}, kLate);
  INFO(trace_of(found.foreign_write));
  REQUIRE(found.foreign_write);
  CHECK(trace_of(found.foreign_write).find("failover") == std::string::npos);  // none is needed
}

TEST_CASE("with nonce and digest no write is accepted upon what its writer does not know of") {
  const ProtocolSearch found = search_protocol({.nonce = true, .digest = true});
  INFO(found.states << " states\n" << trace_of(found.foreign_write));
  CHECK(found.states > 40'000);  // it did look
  CHECK_FALSE(found.foreign_write);
  // Without WAIT the failover may have lost what was acknowledged: it is detected, not prevented.
  CHECK(found.gone);
}

TEST_CASE("with counter and digest no write is accepted upon what its writer does not know of") {
  CHECK_FALSE(search_protocol({.counter = true, .digest = true}).foreign_write);
}

TEST_CASE("with nonce and digest requests that arrive late or twice do no harm") {
  const ProtocolSearch found =
      search_protocol({.nonce = true, .digest = true, .waits = true}, kLate);
  INFO(found.states << " states\n" << trace_of(found.foreign_write) << trace_of(found.gone));
  CHECK(found.states > 20'000);
  CHECK_FALSE(found.foreign_write);
  CHECK_FALSE(found.gone);
}

TEST_CASE("with nonce, digest and WAIT nothing that was acknowledged is ever gone") {
  const ProtocolSearch found = search_protocol({.nonce = true, .digest = true, .waits = true});
  INFO(found.states << " states\n" << trace_of(found.gone));
  CHECK(found.states > 40'000);
  CHECK_FALSE(found.foreign_write);
  CHECK_FALSE(found.gone);
}

}  // namespace lintel::testing

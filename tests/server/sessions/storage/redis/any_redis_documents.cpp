// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/storage/redis/redis_documents.h"
#include "tests/server/redis_lab/redis_server.h"
#include "tests/server/sessions/storage/any_documents.h"

namespace lintel::testing {
namespace {

// One for all tests of documents.
RedisServer& documents_server() {
  static RedisServer server;
  return server;
}

}  // namespace

struct AnyDocuments::Place {};

AnyDocuments::AnyDocuments(int sort) : sort_(sort), place_(std::make_unique<Place>()) {
  documents_server().client()("FLUSHALL");
  reopen();
}
AnyDocuments::~AnyDocuments() = default;

int AnyDocuments::sorts() { return 1; }

void AnyDocuments::reopen() {
  storage_.reset();
  RedisOptions options;
  options.url.servers = {{"127.0.0.1", documents_server().port()}};
  storage_ = std::make_unique<RedisDocuments>(options, clock);
}

bool AnyDocuments::bounds_owners() const { return false; }
void AnyDocuments::set_owner_bytes(std::uint64_t) {}

}  // namespace lintel::testing

// SPDX-License-Identifier: Apache-2.0
// What every kind of document storage has to do.
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/sessions/storage/any_documents.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

Document document(AnyDocuments& storage, const std::string& id, const std::string& parent = "") {
  return {.id = id,
          .owner = "ada",
          .parent = parent,
          .body = std::string("body of ") + id + std::string(1, '\0'),
          .expires = storage.clock.wall_time() + std::chrono::hours(10)};
}
SessionError put(AnyDocuments& storage, const std::string& id, const std::string& parent = "") {
  Document made = document(storage, id, parent);
  return storage->put(made);
}
SessionError find(AnyDocuments& storage, const std::string& id, Document* found = nullptr,
                  std::optional<DocumentStorage::Time> keep_until = std::nullopt) {
  Document any;
  return storage->find(id, "ada", keep_until, found == nullptr ? any : *found);
}

TEST_CASE("documents: each is as it was written, and its owner's alone", "[threat-82]") {
  AnyDocuments storage(GENERATE(range(0, AnyDocuments::sorts())));
  CHECK(find(storage, "a1") == SessionError::kNotFound);
  Document made = document(storage, "a1");
  REQUIRE(storage->put(made) == SessionError::kNone);
  CHECK(made.version == 1);
  Document child = document(storage, "a2", "a1");
  REQUIRE(storage->put(child) == SessionError::kNone);
  storage.reopen();
  Document found;
  REQUIRE(find(storage, "a1", &found) == SessionError::kNone);
  CHECK(found == made);
  REQUIRE(find(storage, "a2", &found) == SessionError::kNone);
  CHECK(found == child);
  CHECK(storage->find("a1", "eve", std::nullopt, found) == SessionError::kNotFound);
  CHECK(storage->remove("a1", "eve") == SessionError::kNotFound);
  Document theirs = document(storage, "b1", "a1");
  theirs.owner = "eve";
  CHECK(storage->put(theirs) == SessionError::kNotFound);  // its parent is another's
}

TEST_CASE("documents: a write names the version that it replaces") {
  AnyDocuments storage(GENERATE(range(0, AnyDocuments::sorts())));
  Document made = document(storage, "a1");
  REQUIRE(storage->put(made) == SessionError::kNone);
  Document late = document(storage, "a1");
  CHECK(storage->put(late) == SessionError::kFenced);
  CHECK(late.version == 0);
  made.body = "new";
  REQUIRE(storage->put(made) == SessionError::kNone);
  CHECK(made.version == 2);
  late.version = 1;
  CHECK(storage->put(late) == SessionError::kFenced);
  Document lost = document(storage, "a3");
  lost.version = 1;
  CHECK(storage->put(lost) == SessionError::kFenced);  // it is gone
  Document found;
  REQUIRE(find(storage, "a1", &found) == SessionError::kNone);
  CHECK(found.body == "new");
}

TEST_CASE("documents: a chain lives from its last use") {
  AnyDocuments storage(GENERATE(range(0, AnyDocuments::sorts())));
  REQUIRE(put(storage, "a1") == SessionError::kNone);
  REQUIRE(put(storage, "c1") == SessionError::kNone);
  storage.clock.advance(std::chrono::hours(6));
  REQUIRE(put(storage, "a2", "a1") == SessionError::kNone);
  storage.clock.advance(std::chrono::hours(6));
  // Its own time is over, the other's is not.
  CHECK(find(storage, "a1") == SessionError::kNone);
  CHECK(find(storage, "c1") == SessionError::kNotFound);
  const auto until = storage.clock.wall_time() + std::chrono::hours(10);
  CHECK(find(storage, "a2", nullptr, until) == SessionError::kNone);
  CHECK(find(storage, "a1", nullptr, until) == SessionError::kNone);
  REQUIRE(put(storage, "a3", "a2") == SessionError::kNone);
  storage.clock.advance(std::chrono::hours(8));
  storage->sweep(100);
  CHECK(find(storage, "a1") == SessionError::kNone);
  CHECK(find(storage, "a2") == SessionError::kNone);
  storage.clock.advance(std::chrono::hours(3));
  for (int i = 0; i < 3; ++i) storage->sweep(100);
  for (const char* const id : {"a1", "a2", "a3"}) {
    CHECK(find(storage, id) == SessionError::kNotFound);
  }
}

TEST_CASE("documents: a removed one is hidden at once, and goes when nothing continues it") {
  AnyDocuments storage(GENERATE(range(0, AnyDocuments::sorts())));
  REQUIRE(put(storage, "a1") == SessionError::kNone);
  REQUIRE(put(storage, "a2", "a1") == SessionError::kNone);
  REQUIRE(put(storage, "a3", "a1") == SessionError::kNone);
  REQUIRE(storage->remove("a1", "ada") == SessionError::kNone);
  storage.reopen();
  CHECK(storage->remove("a1", "ada") == SessionError::kNotFound);
  Document found;
  REQUIRE(find(storage, "a1", &found) == SessionError::kNone);
  CHECK(found.is_hidden);
  CHECK(put(storage, "a4", "a1") == SessionError::kNotFound);  // nothing new continues it
  REQUIRE(storage->remove("a2", "ada") == SessionError::kNone);
  CHECK(find(storage, "a2") == SessionError::kNotFound);
  CHECK(find(storage, "a1") == SessionError::kNone);
  REQUIRE(storage->remove("a3", "ada") == SessionError::kNone);
  CHECK(find(storage, "a1") == SessionError::kNotFound);
  // A write that began before it was removed finds it gone.
  Document made = document(storage, "b1");
  REQUIRE(storage->put(made) == SessionError::kNone);
  REQUIRE(storage->remove("b1", "ada") == SessionError::kNone);
  CHECK(storage->put(made) == SessionError::kFenced);
}

TEST_CASE("documents: those with a runner are listed in rounds, until they are stored without") {
  AnyDocuments storage(GENERATE(range(0, AnyDocuments::sorts())));
  CHECK(storage->unfinished(10).empty());
  Document one = document(storage, "a1"), two = document(storage, "b2"),
           three = document(storage, "c3");
  one.runner = "me";
  two.runner = "you";
  for (Document* const each : {&one, &two, &three}) {
    REQUIRE(storage->put(*each) == SessionError::kNone);
  }
  storage.reopen();
  using Unfinished = DocumentStorage::Unfinished;
  // All of a round; how many come at once is the storage's.
  const auto listed = [&](std::size_t most) {
    std::vector<Unfinished> all;
    for (int i = 0; i < 3; ++i) {
      for (Unfinished& each : storage->unfinished(most)) all.push_back(std::move(each));
    }
    std::ranges::sort(all, {}, &Unfinished::id);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
  };
  CHECK(listed(1) == std::vector<Unfinished>{{"a1", "ada", "me"}, {"b2", "ada", "you"}});
  one.runner = "you";
  REQUIRE(storage->put(one) == SessionError::kNone);
  two.runner = "";
  REQUIRE(storage->put(two) == SessionError::kNone);
  CHECK(listed(10) == std::vector<Unfinished>{{"a1", "ada", "you"}});
  storage->settle("a1");
  storage->settle("nosuch");
  CHECK(listed(10).empty());
  // One that is gone may be listed, but is not found.
  one.runner = "me";
  REQUIRE(storage->put(one) == SessionError::kNone);
  REQUIRE(storage->remove("a1", "ada") == SessionError::kNone);
  for (const Unfinished& each : listed(10))
    CHECK(find(storage, each.id) == SessionError::kNotFound);
}

TEST_CASE("documents: the secret of a storage stays the same") {
  AnyDocuments storage(GENERATE(range(0, AnyDocuments::sorts())));
  DocumentStorage::Secret first{}, second{};
  REQUIRE(storage->secret(first) == SessionError::kNone);
  storage.reopen();
  REQUIRE(storage->secret(second) == SessionError::kNone);
  CHECK(first == second);
  CHECK(first != DocumentStorage::Secret{});
}

TEST_CASE("documents: an owner at its bound stores nothing new until something of it goes",
          "[threat-94]") {
  AnyDocuments storage(GENERATE(range(0, AnyDocuments::sorts())));
  if (!storage.bounds_owners()) return;
  const auto put_of = [&](const std::string& id, const std::string& owner, std::size_t bytes,
                          const std::string& parent = "") {
    Document made = document(storage, id, parent);
    made.owner = owner;
    made.body = std::string(bytes, 'x');
    return storage->put(made);
  };
  storage.set_owner_bytes(10'000);
  const std::size_t each = 4000 - kDocumentBytes;
  REQUIRE(put_of("a1", "ada", each) == SessionError::kNone);
  REQUIRE(put_of("a2", "ada", each, "a1") == SessionError::kNone);
  CHECK(put_of("a3", "ada", each, "a2") == SessionError::kOwnerOutOfMemory);
  CHECK(find(storage, "a3") == SessionError::kNotFound);
  CHECK(put_of("b1", "bob", each) == SessionError::kNone);
  CHECK(put_of("a3", "ada", 2000 - kDocumentBytes) == SessionError::kNone);  // just so
  CHECK(put_of("a4", "ada", 0) == SessionError::kOwnerOutOfMemory);
  // A further version of one that is there is stored, and counts.
  Document end;
  REQUIRE(find(storage, "a3", &end) == SessionError::kNone);
  end.body = std::string(5000 - kDocumentBytes, 'x');
  REQUIRE(storage->put(end) == SessionError::kNone);
  REQUIRE(storage->remove("a3", "ada") == SessionError::kNone);
  storage.reopen();
  // A hidden one counts while another continues it.
  REQUIRE(storage->remove("a1", "ada") == SessionError::kNone);
  CHECK(put_of("a5", "ada", each) == SessionError::kOwnerOutOfMemory);
  REQUIRE(storage->remove("a2", "ada") == SessionError::kNone);
  CHECK(put_of("a5", "ada", each) == SessionError::kNone);
  CHECK(put_of("a6", "ada", each) == SessionError::kNone);
  storage.clock.advance(std::chrono::hours(11));
  storage->sweep(100);
  CHECK(put_of("a7", "ada", each) == SessionError::kNone);
}

TEST_CASE("documents: a process is known to have been there") {
  AnyDocuments storage(GENERATE(range(0, AnyDocuments::sorts())));
  storage->note_alive("me");
  const auto seen = storage->last_seen("me");
  REQUIRE(seen);
  CHECK(storage.clock.wall_time() - *seen < std::chrono::seconds(1));
}

}  // namespace
}  // namespace lintel::testing

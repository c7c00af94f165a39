// SPDX-License-Identifier: Apache-2.0
// RedisDocuments: documents that several servers share. scripts/document.lua has the keys.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/sessions/storage/document_storage.h"
#include "server/sessions/storage/redis/redis_client.h"

namespace lintel {

// A chain's documents may be on several servers, so each has a time to live, which is prolonged for
// the whole chain when it is used: by find() with keep_until. A document and the entry for it at
// its parent are two writes; an interruption between them leaves a parent that lives until its
// time. The same holds for a document and its runner, in a hash of all that have one.
//
// Connects when it is first used. Thread-safe.
class RedisDocuments final : public DocumentStorage {
 public:
  // `clock` outlives it.
  RedisDocuments(RedisOptions options, const Clock& clock);
  ~RedisDocuments() override;

  bool waits() const override { return true; }
  bool is_shared() const override { return true; }
  SessionError put(Document& document) override;
  SessionError find(const std::string& id, const std::string& owner, std::optional<Time> keep_until,
                    Document& found) override;
  SessionError remove(const std::string& id, const std::string& owner) override;
  // Does nothing: servers remove expired documents.
  std::size_t sweep(std::size_t most) override;
  std::vector<Unfinished> unfinished(std::size_t most) override EXCLUDES(mutex_);
  void settle(const std::string& id) override;
  SessionError secret(Secret& secret) override;
  void note_alive(const std::string& process) override EXCLUDES(mutex_);
  std::optional<Time> last_seen(const std::string& process) override;

 private:
  // The client; null: no server can be reached.
  std::shared_ptr<RedisClient> client() EXCLUDES(mutex_);
  // Runs the script on a document. words: the operation and its arguments after owner and time to
  // live.
  SessionError ask(const std::string& id, const std::string& owner, Time expires,
                   std::vector<std::string> words, RedisReply& reply);
  // Notes the runner of a document.
  SessionError begin(const Document& document);
  // Removes `child` from the document's continuations; removes hidden documents without any, up the
  // chain.
  void release(std::string id, const std::string& owner, std::string child);
  std::string alive_key(const std::string& process) const;

  const RedisOptions options_;
  const Clock& clock_;
  Mutex mutex_;
  std::shared_ptr<RedisClient> client_ GUARDED_BY(mutex_);  // null: not used yet
  std::string process_ GUARDED_BY(mutex_);                  // this one; empty: unknown
  std::string listed_until_ GUARDED_BY(mutex_) = "0";       // unfinished ones of this round
};

}  // namespace lintel

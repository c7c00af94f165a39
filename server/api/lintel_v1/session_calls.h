// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lintel/v1/generation.pb.h"
#include "server/api/refusals.h"
#include "server/api/response_stream.h"
#include "server/api/service_context.h"
#include "server/core/request_memory.h"
#include "server/rpc/call_scope.h"
#include "server/rpc/rpc.h"
#include "server/sessions/session_history.h"

namespace lintel {

// Semaphore: limits the concurrent calls of a kind.

// Thread-safe; outlives what it gives.
class Semaphore {
 public:
  explicit Semaphore(int most) : free_(most) {}

  // Takes a place, held until the pointer and its copies are gone; null: none is free.
  std::shared_ptr<void> take() {
    if (free_.fetch_sub(1) > 0) {
      return {&free_, [](std::atomic<int>* free) { free->fetch_add(1); }};
    }
    free_.fetch_add(1);
    return nullptr;
  }

 private:
  std::atomic<int> free_;
};

// PieceStream: an answer that is there and goes out in pieces, as fast as its reader takes them.

// One message is made at a time, when the one before it is out. The source of the pieces is
// destroyed with the reader. Threads: gRPC's.
template <typename Message>
class PieceStream final : public ResponseStream<Message> {
 public:
  enum class Piece { kMore, kLast, kNone };  // kNone: the message is not to be sent, nor another
  using Fill = std::function<Piece(Message&)>;

  explicit PieceStream(Fill fill) : fill_(std::move(fill)) {}

  // REQUIRES: a reactor runs the stream.
  void begin() { this->pump(); }

 private:
  using Next = typename ResponseStream<Message>::Next;

  Next next(Message& message, grpc::Status& status) override REQUIRES(this->mutex_) {
    if (failure_) {
      status = std::move(*failure_);
      return Next::kFinish;
    }
    switch (fill_(message)) {
      case Piece::kMore:
        return Next::kWrite;
      case Piece::kLast:
        fill_ = nullptr;  // what it holds is free before the reader can know the end
        return Next::kWriteAndFinish;
      case Piece::kNone:
        fill_ = nullptr;
        break;
    }
    return Next::kFinish;
  }
  void on_gone() override { fail(cancelled()); }
  void on_lost() override {
    fail(out_of_memory());
    this->pump();
  }
  TokenUse tokens_used() const override REQUIRES(this->mutex_) { return {}; }

  void fail(grpc::Status status) EXCLUDES(this->mutex_) {
    Fill gone;  // what it holds is released without the mutex
    MutexLock lock(this->mutex_);
    if (!failure_) failure_ = std::move(status);
    gone.swap(fill_);
  }

  Fill fill_ GUARDED_BY(this->mutex_);
  std::optional<grpc::Status> failure_ GUARDED_BY(this->mutex_);
};

// The source of a token, as messages have it.

inline v1::ValueSource wire_source(TokenSource source) {
  switch (source) {
    case TokenSource::kSampled:
      return v1::VALUE_SOURCE_SAMPLED;
    case TokenSource::kGiven:
      return v1::VALUE_SOURCE_GIVEN;
    case TokenSource::kPrompt:
      return v1::VALUE_SOURCE_PROMPT;
  }
  return v1::VALUE_SOURCE_UNSPECIFIED;
}

}  // namespace lintel

// PieceStream: an answer that is there and goes out in pieces, as fast as its reader takes them.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "server/api/response_stream.h"

namespace lintel {

// One message is made at a time, when the one before it is out. What the pieces are made of goes
// when the reader does. Threads: gRPC's.
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
  ValueUse tokens_used() const override REQUIRES(this->mutex_) { return {}; }

  void fail(grpc::Status status) EXCLUDES(this->mutex_) {
    Fill gone;  // what it holds is released without the mutex
    MutexLock lock(this->mutex_);
    if (!failure_) failure_ = std::move(status);
    gone.swap(fill_);
  }

  Fill fill_ GUARDED_BY(this->mutex_);
  std::optional<grpc::Status> failure_ GUARDED_BY(this->mutex_);
};

}  // namespace lintel

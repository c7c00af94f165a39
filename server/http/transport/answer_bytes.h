// AnswerBytes: what a connection writes next, framed as HTTP/1.1 or 1.0 has it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "server/http/transport/response_head.h"

namespace lintel {

// Used on the strand. Two buffers: one gathers while the other is written.
class AnswerBytes {
 public:
  // An answer begins. `chunked`: its pieces are HTTP/1.1's; else they are bytes as they are, up to
  // the connection's end. `bodiless`: to HEAD, of which the body is left out.
  void begin(std::string head, bool chunked, bool bodiless) {
    gathered_ += head;
    chunked_ = chunked;
    bodiless_ = bodiless;
  }
  // A whole body, of the head's content-length, or an interim response such as "100 Continue".
  void add(std::string_view bytes) { gathered_ += bytes; }
  void add_body(std::string_view body) {
    if (!bodiless_) gathered_ += body;
  }
  void add_piece(std::string_view piece) {
    if (piece.empty() || bodiless_) return;  // an empty one would be the last
    if (chunked_) gathered_ += chunk_size_line(piece.size());
    gathered_ += piece;
    if (chunked_) gathered_ += "\r\n";
  }
  void add_last_piece(std::string_view piece) {
    add_piece(piece);
    if (chunked_ && !bodiless_) gathered_ += "0\r\n\r\n";
  }

  // What is to be written now, until so much of it was written; empty: nothing is.
  std::string_view in_flight() {
    if (written_ == in_flight_.size()) {
      written_ = 0;
      in_flight_.clear();
      std::swap(in_flight_, gathered_);
      if (in_flight_.empty() && in_flight_.capacity() > kKeptBytes) in_flight_ = {};
    }
    return std::string_view(in_flight_).substr(written_);
  }
  void written(std::size_t bytes) { written_ += bytes; }

  // Waits for the write in progress.
  std::size_t gathered() const { return gathered_.size(); }
  void drop_gathered() { gathered_.clear(); }

 private:
  static constexpr std::size_t kKeptBytes = std::size_t{64} << 10;  // of an idle connection

  std::string gathered_;
  std::string in_flight_;
  std::size_t written_ = 0;  // of in_flight_
  bool chunked_ = false;
  bool bodiless_ = false;
};

}  // namespace lintel

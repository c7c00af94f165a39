// SPDX-License-Identifier: Apache-2.0
// The output of `lintel generate`.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client/cli/console.h"
#include "client/lib/client.h"

namespace lintel::cli {

// The speed of a Generate call, as its caller and as the server saw it.

// Made when a call begins.
class GenerationSpeed {
 public:
  void on_chunk(const v1::Chunk& chunk);
  void on_finish(const v1::SampleFinish& finish) { finishes_.push_back(finish); }

  // "200 tokens at 152.1/s, the first after 38 ms; prompt: 21 tokens at 1750/s". The time to the
  // first token is the caller's, with the way to the server and its queue; the rates are of the
  // server's own times, so they do not depend on how tokens were put into messages. What there is
  // no measure of is left out.
  std::string text() const;

 private:
  std::string prompt_text() const;

  using Clock = std::chrono::steady_clock;
  const Clock::time_point start_ = Clock::now();
  std::optional<Clock::time_point> first_;  // new token
  std::vector<v1::SampleFinish> finishes_;
};

// A sign of life while the server has nothing to show yet, on terminals only.

// "the prompt's 65536 tokens are being read, 12 s", redrawn on standard error once in `period`
// from the end of the first one on, and erased by stop(). The server does not tell how far it is.
// Where standard error is no terminal nothing is printed and no thread is made.
//
// Threads: one at a time; a thread of its own draws.
class Waiting {
 public:
  // The text of the moment, asked for before each drawing, on the thread that draws. A call that it
  // makes ends with the cancellation.
  using What = std::function<std::string(Cancellation&)>;

  Waiting(Console& console, std::string what,
          std::chrono::milliseconds period = std::chrono::seconds(1));
  Waiting(Console& console, What what, std::chrono::milliseconds period = std::chrono::seconds(1));
  ~Waiting() { stop(); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  void stop();  // idempotent

 private:
  void draw_until_stopped();

  Console& console_;
  const What what_;
  const std::chrono::milliseconds period_;
  Cancellation cancellation_;  // of what_
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

struct PrintOptions {
  std::string format;     // text, tokens or jsonl
  bool is_bytes = false;  // the model's tokens: jsonl has them as text, too
};

// "length" for FINISH_REASON_LENGTH.
std::string finish_reason_name(v1::FinishReason reason);
double seconds_of(const google::protobuf::Duration& duration);

// A Generate call as people watch it.

struct ViewOptions {
  PrintOptions print;
  std::chrono::milliseconds patience{0};  // Client::Repeat::patience
  bool shows_speed = false;               // says at the end how fast it was, on standard error
  bool quiet = false;                     // no sign of life while there is nothing to show
};

// Prints the tokens as they come; on a terminal something stirs while the server is silent or
// away. Returns how the samples ended. What a call that fails had brought is printed before
// CallError is thrown.
std::vector<v1::SampleFinish> generate_in_view(const Client& client,
                                               const v1::GenerateRequest& request,
                                               const ViewOptions& options, Console& console,
                                               Cancellation& cancellation);

}  // namespace lintel::cli

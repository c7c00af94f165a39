// SPDX-License-Identifier: Apache-2.0
// ChatClient: asks turns of conversations over each of the APIs that a server may have, and notes
// the times, texts and usage of their answers.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/event_stream.h"
#include "client/lib/client.h"

namespace lintel::bench {

enum class ChatApi { kOpenAi, kAnthropic, kGrpc, kGenerate };

std::string_view name_of(ChatApi api);  // "openai", as --api has it

struct ChatTarget {
  ChatApi api = ChatApi::kOpenAi;
  std::string url;      // of HttpBase; over HTTP
  std::string address;  // of full_address(); over gRPC
  Tls tls;
  std::string token;  // empty: none
  std::string model;
  std::string members;  // more members of a body: a JSON object; not of kGenerate
  bool ignore_eos = false;
  std::chrono::milliseconds timeout{300'000};  // of a request
};

struct ChatTurn {
  std::string user;
  std::string answer;
};

struct ChatQuestion {
  std::string system;           // empty: none
  std::vector<ChatTurn> past;   // turns before this one
  std::string text;             // of the user
  std::int64_t max_tokens = 1;  // of the answer
  std::uint64_t seed = 0;
};

// The outcome of one turn.
struct ChatAnswer {
  using Clock = std::chrono::steady_clock;
  enum class Outcome {
    kAnswered,
    kRefused,     // by 429, 503, 529 or RESOURCE_EXHAUSTED: the server has no room
    kFailed,      // for any other reason
    kUnfinished,  // cancelled by this side
  };

  Outcome outcome = Outcome::kFailed;
  // Reason why the turn was refused or failed: "429", "RESOURCE_EXHAUSTED", "connection" (none came
  // about), "broken" (the answer did not end), "timeout", "stream" (the answer is none), or the
  // type of an error within a stream. Empty: it was neither.
  std::string status;
  std::string error;  // for people, one line
  std::string text;   // without reasoning
  // Times of the messages that had text or reasoning.
  std::vector<Clock::time_point> arrivals;
  // Counts of the server; absent: it does not say.
  std::optional<std::int64_t> prompt_tokens;  // cached ones included
  std::optional<std::int64_t> cached_tokens;
  std::optional<std::int64_t> generated_tokens;
};

// Reads an answer from a stream of OpenAI's chat completions, also in the dialects of other
// servers: reasoning as reasoning_content or reasoning, llama.cpp's timings where the usage has no
// cached tokens.
class OpenAiStream {
 public:
  explicit OpenAiStream(ChatAnswer& answer) : answer_(answer) {}
  void add(const ServerEvent& event, ChatAnswer::Clock::time_point now);
  // Sets the outcome when the stream has ended.
  void finish();

 private:
  ChatAnswer& answer_;
  bool is_done_ = false;
  bool has_error_ = false;
};

// Reads an answer from a stream of Anthropic's Messages.
class AnthropicStream {
 public:
  explicit AnthropicStream(ChatAnswer& answer) : answer_(answer) {}
  void add(const ServerEvent& event, ChatAnswer::Clock::time_point now);
  void finish();

 private:
  ChatAnswer& answer_;
  // Tokens of the prompt: input_tokens, cache_creation_input_tokens, cache_read_input_tokens.
  std::optional<std::int64_t> read_, written_, cached_;
  bool is_done_ = false;
  bool has_error_ = false;
};

// Opens a channel with a connection of its own: channels to one address share theirs by default.
// Throws as make_channel.
std::shared_ptr<grpc::Channel> unshared_channel(const std::string& address, const Tls& tls,
                                                const std::string& token);

// One user's connection. One thread at a time.
class ChatClient {
 public:
  // Throws std::invalid_argument and TlsFileError as make_channel, std::runtime_error where libcurl
  // cannot be set up.
  explicit ChatClient(const ChatTarget& target);
  ~ChatClient();

  // Asks the server for its model where `target` names none, and fails where the target cannot be
  // used: CallError where no server answers or it refuses, cli::Failure for a model without what
  // the API needs. Returns the model's name.
  std::string find_model();

  // Waits a second at most for a connection over gRPC, whose first attempt may fail though the
  // server listens (see kConnectTime). Over HTTP the first request connects.
  void connect();

  ChatAnswer ask(const ChatQuestion& question, Cancellation& cancellation);

 private:
  std::string body_of(const ChatQuestion& question) const;
  std::vector<std::string> headers() const;
  void ask_over_http(const ChatQuestion& question, Cancellation& cancellation, ChatAnswer& answer);
  void ask_over_grpc(const ChatQuestion& question, Cancellation& cancellation, ChatAnswer& answer);
  void generate(const ChatQuestion& question, Cancellation& cancellation, ChatAnswer& answer);

  const ChatTarget target_;
  std::unique_ptr<HttpStream> http_;  // null: over gRPC
  // Null: over HTTP.
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Client> client_;
};

}  // namespace lintel::bench

// SPDX-License-Identifier: Apache-2.0
// Client of a Lintel server.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/lib/call_error.h"
#include "client/lib/channel.h"
#include "lintel/v1/admin.grpc.pb.h"
#include "lintel/v1/chat.grpc.pb.h"
#include "lintel/v1/generation.grpc.pb.h"
#include "lintel/v1/model.grpc.pb.h"
#include "lintel/v1/response.grpc.pb.h"
#include "lintel/v1/session.grpc.pb.h"
#include "model/core/utf8.h"

namespace lintel {

// The text of one sample's chunks as they come. Whole characters, so that the pieces can be shown
// one by one; what is no UTF-8 is U+FFFD. REQUIRES: the request asks for token_bytes.
class ChunkText {
 public:
  // The characters that end within the chunk's tokens.
  std::string add(const v1::Chunk& chunk) {
    std::string text;
    for (const std::string& bytes : chunk.token_bytes()) characters_.push(bytes, text);
    return text;
  }
  // The sample is over: U+FFFD for a character that is not complete, else nothing.
  std::string finish() {
    std::string text;
    characters_.finish(text);
    return text;
  }

 private:
  Utf8Stream characters_;
};

// One sample of a Generate call, its chunks joined.
struct Sample {
  // Generated tokens, sampled and given alike, in the order of their positions.
  std::vector<std::int32_t> tokens;
  std::vector<std::optional<float>> log2_probs;  // parallel to tokens; absent: none was asked for,
                                                 // or the token is the first of its sequence
  std::vector<bool> given;                       // parallel to tokens: fed rather than sampled
  std::vector<v1::TopValues> top;   // parallel to tokens; empty entries where there is none
  std::int64_t first_position = 0;  // of tokens[0] in the sequence
  std::string text;                 // of the tokens, when the request asked for token_bytes

  // The prompt, when the request asked for echo_prompt.
  std::vector<std::int32_t> prompt;
  std::vector<std::optional<float>> prompt_log2_probs;  // parallel to prompt

  v1::SampleFinish finish;
};

// Joins the chunks of a stream into samples, for callers that watch it and want it whole as well.
class SampleCollector {
 public:
  void add(const v1::Chunk& chunk);
  void finish(const v1::SampleFinish& finish);
  const std::vector<Sample>& samples() const { return samples_; }  // by sample index
  std::vector<Sample> take() { return std::move(samples_); }

 private:
  Sample& sample(std::uint32_t index);
  std::vector<Sample> samples_;
  std::vector<ChunkText> texts_;  // of samples_
};

// Calls one server, or one of several with the same sessions. Requests are the messages of
// proto/lintel/v1, which document every field.
//
//   lintel::Client client({.address = "127.0.0.1:50051"});
//   lintel::v1::GenerateRequest request;
//   *request.mutable_prompt() = lintel::text_values("Once upon");
//   request.set_max_new_tokens(100);
//   request.set_token_bytes(true);
//   lintel::ChunkText text;
//   client.generate(request, [&](const lintel::v1::Chunk& chunk) { show(text.add(chunk)); });
//
// Every call has a deadline. A call that does not end with OK throws CallError. Calls take an
// optional Cancellation, through which another thread ends them. A connection that fails for no
// reason that connections fail for (see connect_failure.h) is tried once more, within the deadline.
//
// A client with several servers calls the first that answers, and stays there. A call that was not
// sent moves to the next. So does, after UNAVAILABLE and before anything of it came, a call that
// changes nothing, or leaves only what expires (a session with an unknown id). A call on a session
// that outlives the server resumes there at the first token that was not seen (see Repeat).
//
// Threads: const and stateless but for the channel; any number of threads may call.
class Client {
 public:
  static constexpr std::chrono::milliseconds kRetry{30'000};  // the default

  struct Options {
    // HOST:PORT, HOST (then the port is 50051) or unix:PATH; several of these with commas between
    // them, of servers with the same sessions. A name with several addresses stands for all of
    // them.
    std::string address = "127.0.0.1:50051";
    std::chrono::milliseconds deadline{5 * 60 * 1000};  // of each call; > 0
    Tls tls;
    // Sent with every call as "authorization: Bearer TOKEN"; empty: none. Never in plain text to
    // another machine.
    std::string token;
    // HOST:PORT of an HTTP proxy to go through; empty: none, regardless of http_proxy and its like
    // in the environment. Never used for loopback addresses and unix sockets; for other machines
    // no_proxy in the environment is heeded. What is not encrypted, the proxy can read.
    std::string proxy;
    // Time from the last message of a call within which it is repeated where it was cut off, on a
    // session that outlives the server (Session.durability); 0: never. See Repeat.
    std::chrono::milliseconds retry = kRetry;
  };
  // Throws std::invalid_argument for options that make no sense together, std::runtime_error for a
  // file that cannot be read. Does not connect yet.
  explicit Client(const Options& options);
  // Over a channel the caller made, for example an in-process server's.
  Client(std::shared_ptr<grpc::ChannelInterface> channel, std::chrono::milliseconds deadline,
         std::string token = "");
  ~Client();
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;

  // Called on the thread that made the call, in stream order; the chunk is valid during the call
  // only. What it throws ends the call on the server and leaves generate().
  using OnChunk = std::function<void(const v1::Chunk&)>;
  // Streams. Returns how each sample ended, by sample index, once all have.
  std::vector<v1::SampleFinish> generate(const v1::GenerateRequest& request,
                                         const OnChunk& on_chunk,
                                         Cancellation* cancellation = nullptr) const;
  // The same for callers that keep results from before a call failed: on_finish receives a sample's
  // end as it comes.
  using OnFinish = std::function<void(const v1::SampleFinish&)>;
  void generate(const v1::GenerateRequest& request, const OnChunk& on_chunk,
                const OnFinish& on_finish, Cancellation* cancellation) const;
  // A call on a session that outlives the server is repeated when the server is away or the
  // connection is lost: under a random call_id, and from the first position that was not seen, so
  // that the caller receives each one once, and one finish. The deadline bounds all of it. A
  // request that has a call_id keeps it, and its seed or the lack of one: the server knows the seed
  // of an earlier try, but where it forgot the call (the level `call`) it draws another. Other
  // calls are never repeated; with a patience a call on a session that this client knows nothing of
  // asks get_session() first, once for each session.
  struct Pause {
    const CallError& error;          // the error that cut the call off
    std::chrono::milliseconds left;  // of patience
  };
  struct Repeat {
    std::optional<std::chrono::milliseconds> patience;  // absent: Options::retry
    std::optional<bool> durable;  // true: the session is durable; absent: the server knows
    std::function<void(const Pause&)>
        on_pause;  // before each pause; what it throws leaves generate()
  };
  void generate(const v1::GenerateRequest& request, const OnChunk& on_chunk,
                const OnFinish& on_finish, const Repeat& repeat,
                Cancellation* cancellation = nullptr) const;
  // Collects the whole stream.
  std::vector<Sample> generate(const v1::GenerateRequest& request,
                               Cancellation* cancellation = nullptr) const;

  // The body of OpenAI's POST /v1/chat/completions, as JSON (docs/chat.md).
  v1::RenderChatResponse render_chat(const std::string& body,
                                     Cancellation* cancellation = nullptr) const;
  // Streams. As OnChunk; the last message has the usage.
  using OnChat = std::function<void(const v1::ChatResponse&)>;
  void complete_chat(const std::string& body, const OnChat& on_message,
                     Cancellation* cancellation = nullptr) const;

  // The body of OpenAI's POST /v1/responses with `stream`, as JSON. The last message has the
  // response.
  using OnResponse = std::function<void(const v1::ResponseEvents&)>;
  void create_response(const std::string& body, const OnResponse& on_message,
                       Cancellation* cancellation = nullptr) const;
  // A stored response, as JSON.
  std::string get_response(const std::string& id, Cancellation* cancellation = nullptr) const;

  // Called in the order of the request, once per sequence; else as OnChunk.
  using OnScore = std::function<void(const v1::ScoreResponse&)>;
  void score(const v1::ScoreRequest& request, const OnScore& on_score,
             Cancellation* cancellation = nullptr) const;

  v1::Session create_session(const std::string& model, std::int64_t max_tokens = 0,
                             Cancellation* cancellation = nullptr) const;
  v1::Session create_session(const v1::CreateSessionRequest& request,
                             Cancellation* cancellation = nullptr) const;
  v1::Session get_session(const std::string& id, Cancellation* cancellation = nullptr) const;
  // Every page. `model` empty: sessions of all models.
  std::vector<v1::Session> list_sessions(const std::string& model = "",
                                         Cancellation* cancellation = nullptr) const;
  void delete_session(const std::string& id, Cancellation* cancellation = nullptr) const;

  // Sessions with the past of this one; all of `count` or none.
  std::vector<v1::Session> fork_session(const v1::ForkSessionRequest& request,
                                        Cancellation* cancellation = nullptr) const;
  v1::Session rewind_session(const v1::RewindSessionRequest& request,
                             Cancellation* cancellation = nullptr) const;
  // Called for the pieces of a snapshot in their order, with the bytes of all of them together;
  // else as OnChunk.
  using OnPiece = std::function<void(std::string_view piece, std::int64_t total_bytes)>;
  void snapshot_session(const v1::SnapshotSessionRequest& request, const OnPiece& on_piece,
                        Cancellation* cancellation = nullptr) const;
  // Collects them.
  std::string snapshot_session(const v1::SnapshotSessionRequest& request,
                               Cancellation* cancellation = nullptr) const;
  // A new session out of a snapshot. The header's total_bytes are filled in; `on_sent` (or null)
  // receives the size of each piece when it went out.
  using OnSent = std::function<void(std::int64_t bytes)>;
  v1::Session restore_session(v1::RestoreHeader header, std::string_view snapshot,
                              const OnSent& on_sent = nullptr,
                              Cancellation* cancellation = nullptr) const;
  // The session's tokens, in order; `on_chunk` as of generate().
  void read_history(const v1::ReadHistoryRequest& request, const OnChunk& on_chunk,
                    Cancellation* cancellation = nullptr) const;

  // States under a name, for sessions and one-shot calls to begin with.
  v1::NamedState save_state(const v1::SaveStateRequest& request,
                            Cancellation* cancellation = nullptr) const;
  // Every page: the caller's and public ones. `model` empty: of all models.
  std::vector<v1::NamedState> list_states(const std::string& model = "",
                                          Cancellation* cancellation = nullptr) const;
  void delete_state(const std::string& name, bool is_public = false,
                    Cancellation* cancellation = nullptr) const;

  std::vector<v1::Model> list_models(Cancellation* cancellation = nullptr) const;
  // All models; those that take no requests have name, version, state and reason only.
  std::vector<v1::Model> list_all_models(Cancellation* cancellation = nullptr) const;
  // `name` may be empty when one model is loaded.
  v1::Model get_model(const std::string& name = "", Cancellation* cancellation = nullptr) const;

  // For models with a tokenizer (v1::Model.tokenizer).
  std::vector<std::int32_t> tokenize(const v1::TokenizeRequest& request,
                                     Cancellation* cancellation = nullptr) const;
  std::string detokenize(const v1::DetokenizeRequest& request,
                         Cancellation* cancellation = nullptr) const;

  // Loads a model of the server's model repository. `version` empty: the newest, in place of what
  // is loaded; else beside it. Returns when it is ready.
  v1::Model load_model(const std::string& name, const std::string& version = "",
                       Cancellation* cancellation = nullptr) const;
  // `version` empty: all. Returns when it is drained and gone.
  void unload_model(const std::string& name, const std::string& version = "",
                    Cancellation* cancellation = nullptr) const;

  // A LoRA adapter of the model, from adapters/NAME/ in its directory or where the server's
  // --adapter says. `model` may be empty when one is loaded; `model_version` empty: the highest.
  // Returns when requests can name it.
  v1::Adapter load_adapter(const std::string& name, const std::string& model = "",
                           const std::string& model_version = "",
                           Cancellation* cancellation = nullptr) const;
  // Returns when nothing uses it any more.
  void unload_adapter(const std::string& name, const std::string& model = "",
                      const std::string& model_version = "",
                      Cancellation* cancellation = nullptr) const;

  // The level of the server's log, until its next start. Both return the current one.
  std::string log_level(Cancellation* cancellation = nullptr) const;
  std::string set_log_level(const std::string& level, Cancellation* cancellation = nullptr) const;

  // Calls grpc.health.v1. `service` empty: the server as a whole. An unknown service is NOT_FOUND.
  bool serving(const std::string& service = "", Cancellation* cancellation = nullptr) const;

 private:
  struct Stubs;
  struct Known;
  enum class Again;  // client_call.h
  class Call;
  std::vector<v1::Model> list_models(const v1::ListModelsRequest& request,
                                     Cancellation* cancellation) const;
  void read_samples(Call& call, const v1::GenerateRequest& request, const OnChunk& on_chunk,
                    const OnFinish& on_finish, Again again) const;
  bool ask_durable(Call& call, const std::string& session_id) const;
  Client(std::chrono::milliseconds deadline, std::string token);
  std::unique_ptr<Known> known_;
  std::chrono::milliseconds deadline_;
  std::string token_;
  std::string address_;  // empty over the caller's own channel
  bool encrypted_ = false;
  std::chrono::milliseconds retry_ = kRetry;
};

// The three ways to write tokens.
v1::Values token_values(std::span<const std::int32_t> ids);
v1::Values text_values(std::string_view bytes);                 // models with a tokenizer
v1::Values pixel_tokens(std::span<const std::uint8_t> pixels);  // models with modality "image"

}  // namespace lintel

// SPDX-License-Identifier: Apache-2.0
// ChatGeneration: what the services of conversations share, from a request to its tokens.
#pragma once

#include <grpcpp/support/status.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lintel/v1/chat.pb.h"
#include "server/api/lintel_v1/answer_grammars.h"
#include "server/api/prepare_generation.h"
#include "server/api/service_context.h"
#include "server/api/token_stream.h"
#include "server/chat/chat_output.h"
#include "server/chat/chat_prompt.h"
#include "server/core/request_memory.h"
#include "server/core/threads.h"
#include "server/engine/request.h"
#include "server/openai/chat_request.h"
#include "server/rpc/call_scope.h"
#include "server/rpc/ignored_members.h"
#include "server/rpc/rpc.h"

namespace lintel {

// A request with the model that it names, and the prompt that it becomes.
struct ReadChat {
  // Takes a request that was read.
  void take(ChatRequest& read) {
    memory = std::move(read.charge);
    request = std::move(read.params);
    text_bytes = read.bytes;
  }

  RequestMemory::Charge memory;  // of request and prompt, which go before it
  api::ChatParams request;
  std::size_t text_bytes = 0;          // of the text that it was read from
  std::function<bool()> is_cancelled;  // ends the making of the prompt; empty: never
  SharedModel model;
  SharedAdapter adapter;  // null: none
  LocalTime now;
  ChatPrompt prompt;
};

// Names the members that the request goes without in the answer's headers, or refuses them.
grpc::Status report_ignored(const IgnoredMembers& ignored, bool refuses, RpcCall& rpc);

// Fills in what follows from the request and its model, and charges chat.memory with the texts of
// the prompt. kNextTurn: where states are kept for one, or where it is shown.
grpc::Status make_prompt(const ServiceContext& context, const CallScope& scope, ReadChat& chat,
                         PromptUse use, bool is_shown = false);

// A turn of a conversation, from its prompt to its answer: enough to say which of the states that
// were kept on the way the next turn may begin with. Its messages are kept as text, and of its
// answer the tokens alone.
struct ChatTurn {
  RequestMemory::Charge memory;  // of all this, which goes before it
  SharedModel model;
  SharedAdapter adapter;
  Owner owner;
  api::ChatParams request;  // without its trees
  std::string trees;        // of the request, as JSON
  LocalTime now;
  GenerationRequest::Turn kept;
  bool is_stored_at_once = false;     // its state, with a session store
  std::int64_t boundary = 0;          // of the turn: tokens of the prompt
  std::vector<std::int32_t> tokens;   // of the prompt
  std::deque<std::int32_t> answer;    // of the one choice; else empty
  std::optional<bool> is_ended_well;  // by the model; nothing: it was ended in its middle
  bool ended_by_token = false;
  std::int32_t stop_token = 0;  // where one ended it
  bool has_calls = false;       // any choice
  std::shared_ptr<const ChatOutput> output;
};

struct PreparedChat {
  ChatOutput output;
  std::int64_t prompt_tokens = 0;
  PreparedGeneration prepared;
  std::unique_ptr<ChatTurn> turn;  // null: nothing depends on its answer
  // Called with the turn, once its answer is whole.
  std::function<void(std::unique_ptr<ChatTurn>)> on_turn;
};

// The tokens of an answer as deltas. Used by one thread at a time.
class ChatAnswerWriter {
 public:
  // Takes the turn and the output. REQUIRES: chat.prepared is not submitted yet.
  void begin(PreparedChat& chat);
  // Appends what the entries add; is_last: and the usage, as where it ends early.
  void fill(std::span<const OutboxEntry> entries, bool is_last, v1::ChatResponse& message);
  // True if every choice has ended before its sample did, see ChatChoice::is_over().
  bool ends_early() const;
  // Completes the usage in the last message of an answer that ended before its samples: their
  // results, which have the cached tokens and the times, were cut off.
  void add_use(TokenUse used, const SampleTimes& times, v1::ChatResponse& message) const;

 private:
  // Ends the choice of a sample that has ended.
  void finish(const SampleResult& result, v1::ChatResponse& message);
  void add_usage(v1::ChatResponse& message) const;

  std::shared_ptr<const ChatOutput> output_;
  std::vector<ChatChoice> choices_;
  std::int64_t prompt_tokens_ = 0;
  std::int64_t cached_tokens_ = 0;
  bool has_begun_ = false;                // the first message was filled
  std::vector<std::int32_t> prompt_ids_;  // until then, where they are asked for
  std::unique_ptr<ChatTurn> turn_;        // null: not needed, or given away
  std::function<void(std::unique_ptr<ChatTurn>)> on_turn_;
};

// Thread-safe.
class ChatGeneration {
 public:
  // `grammars` outlive it.
  ChatGeneration(const ServiceContext& context, AnswerGrammars& grammars);
  ~ChatGeneration();  // ends what is made of turns that are over

  // Checks the request and makes what is to be run of it. Not OK: nothing is held. Takes the
  // request and the tokens of the prompt.
  grpc::Status prepare(RpcCall& rpc, StreamCall& call, ReadChat& chat, bool is_stored_at_once,
                       PreparedChat& prepared);
  // True if restore() would help.
  bool has_stored(const CallScope& scope, const ReadChat& chat) const;
  // Brings the stored states of the conversation into memory. Waits for the session store.
  void restore(const CallScope& scope, const ReadChat& chat) const;

 private:
  // Charges what is kept of the answer. Not OK: as request_memory_refusal().
  static grpc::Status charge_output(RpcCall& rpc, const CallScope& scope, PreparedChat& chat);
  // Takes memory for the call and its answer, which is shortened to the memory there is if the
  // request permits.
  grpc::Status admit(RpcCall& rpc, StreamCall& call, const ReadChat& chat,
                     PreparedChat& prepared) const;
  // Drops states of the turn that the next turn cannot begin with.
  void end_turn(const ChatTurn& turn) const;
  // Reads the answer as the next turn begins, while the model has nothing else to do.
  void read_ahead(const ChatTurn& turn, api::ChatParams& request, JsonBudget& budget) const;
  // A turn for what depends on the answer; takes the request and the prompt's tokens. Not OK: as
  // request_memory_refusal().
  grpc::Status make_turn(ReadChat& chat, const Owner& owner, std::int64_t max_new_tokens,
                         std::unique_ptr<ChatTurn>& turn) const;
  // The turn's request with its trees; nothing: there is no memory for them.
  std::optional<api::ChatParams> request_of(const ChatTurn& turn, JsonBudget& budget) const;

  const ServiceContext context_;
  AnswerGrammars& grammars_;
  std::atomic<bool> is_stopping_{false};
  WorkThreads turns_;  // last: ends turns while the rest is there
};

}  // namespace lintel

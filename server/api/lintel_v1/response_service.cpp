// SPDX-License-Identifier: Apache-2.0
#include "server/api/lintel_v1/response_service.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "server/api/lintel_v1/model_service.h"
#include "server/api/refusals.h"
#include "server/chat/template/request_json.h"
#include "server/openai/json.h"
#include "server/openai/response_items.h"
#include "server/openai/response_output.h"
#include "server/rpc/detached_call.h"
#include "server/rpc/request_budget.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostKeyBytes = 256;
constexpr int kReplayedEvents = 512;  // of a message
// Copies of an output that are there at a time: the output, its item, and its last events.
constexpr std::size_t kOutputCopies = 6;
constexpr std::size_t kEscapedBytes = 6;  // of a byte in JSON
constexpr std::size_t kPieceBytes = 24;   // of a delta
// Copies in memory of a response whose events are made again: itself, and the last events.
constexpr std::size_t kRepeatedCopies = 4;
// Bytes of a tree of log-probabilities for each byte of their text, and of an item without its
// text.
constexpr std::size_t kLogprobTreeBytes = 8, kItemBytes = 640;
// Bytes of the number that a delta has in a tree.
constexpr std::size_t kNumberBytes = 64;
// Copies of a conversation that is compacted: its items, their text, sealed, in letters, the
// answer.
constexpr std::size_t kCompactedCopies = 6;
constexpr std::uint32_t kListedItems = 20, kMostListedItems = 100;
constexpr std::chrono::milliseconds kRunningRetry{1000};
constexpr std::chrono::milliseconds kStoredRetry{60'000};  // until some are deleted, or expire
const std::function<bool()> kNever;                        // what reads one response is not ended

std::int64_t seconds_of(const Clock& clock) {
  return std::chrono::duration_cast<std::chrono::seconds>(clock.wall_time().time_since_epoch())
      .count();
}

grpc::Status no_response(const std::string& id) {
  return not_found("response", id, "no response " + clip(id) + ": unknown, deleted or expired");
}

grpc::Status response_in_progress(const std::string& id) {
  return response_running(id, kRunningRetry);
}

grpc::Status response_refusal(SessionError error, const std::string& id) {
  switch (error) {
    case SessionError::kNone:
      return grpc::Status::OK;
    case SessionError::kNotFound:
      return no_response(id);
    case SessionError::kDamaged:
      return data_loss("RESPONSE_DAMAGED",
                       "response " + clip(id) + ", or one before it, is damaged in the store");
    default:
      return stored_refusal({error}, "");
  }
}

grpc::Status previous_refusal(SessionError error, const std::string& id) {
  switch (error) {
    case SessionError::kNotFound:
      return invalid_argument(
          {{"previous_response_id", "is " + clip(id) + ": unknown, deleted or expired"}},
          "PREVIOUS_RESPONSE_NOT_FOUND");
    case SessionError::kBusy:
      return invalid_argument(
          {{"previous_response_id", "is in progress or has failed: what has ended is continued"}});
    case SessionError::kOutOfRange:
      return invalid_argument(
          {{"previous_response_id",
            "has more than " + std::to_string(kMostChain) + " responses before it"}});
    case SessionError::kTooLarge:
      return invalid_argument(
          {{"previous_response_id",
            "is " + clip(id) + ": its conversation, with this input, has more than " +
                std::to_string(kMostChainBytes) + " bytes as JSON or takes more than " +
                std::to_string(kMostItemBytes >> 20) +
                " MiB of memory; /v1/responses/compact makes one item of it"}});
    default:
      return response_refusal(error, id);
  }
}

// A response and its pieces whose events are made again.
std::size_t repeated_bytes_of(const ResponseRecord& record) {
  return kRepeatedCopies * tree_memory(record.response) + tree_memory(record.pieces);
}

// Returns true where a state needs more than all the memory for states.
bool can_never_fit(const grpc::Status& refused) {
  return refused.error_code() == grpc::StatusCode::FAILED_PRECONDITION &&
         read_status_details(refused).precondition == "SESSION_MEMORY";
}

// True if a request that was refused so will be refused again.
bool is_final(const grpc::Status& refused) {
  return refused.error_code() == grpc::StatusCode::INVALID_ARGUMENT ||
         refused.error_code() == grpc::StatusCode::OUT_OF_RANGE ||
         refused.error_code() == grpc::StatusCode::DATA_LOSS || can_never_fit(refused);
}

}  // namespace

// One call that is answered by a response or its events.
class ResponseCall final : public TokenReactor<v1::ResponseEvents> {
 public:
  using TokenReactor::TokenReactor;

  // Submits the request; as run(). is_background: its client has the response as it begins, and
  // may leave. `context` outlives the call.
  grpc::Status begin(PreparedChat chat, ResponseOutput output, bool streams, bool is_background,
                     const ServiceContext& context) {
    writer_.begin(chat);
    output_.emplace(std::move(output));
    streams_ = streams;
    context_ = &context;
    is_background_ = is_background;
    grpc::Status started = catch_exceptions(
        [&] { return run(std::move(chat.prepared), context_->streaming, context_->clock); });
    if (!started.ok()) drop_record(started);
    return started;
  }
  // Stores the response in `store` as it runs. REQUIRES: called before begin().
  void keep(ResponseStore& store, ResponseRecord record, std::shared_ptr<RunningResponse> running) {
    store_ = &store;
    record_ = std::move(record);
    running_ = std::move(running);
  }

  // Holds the memory of the running response. REQUIRES: called before begin().
  void charge(RequestMemory::Charge memory) { memory_ = std::move(memory); }

  // Adds these items and the output to the last message, unless the call fails. Before begin().
  void keep_items(Json items) { kept_ = std::move(items); }

  // Repeats the answer of a response that is over, in place of begin().
  void replay(const ResponseRecord& record, bool streams, std::int64_t starting_after) {
    is_replayed_ = true;
    if (streams) {
      repeated_ = std::make_unique<RepeatedEvents>(record.response, record.pieces,
                                                   record.digits + "_", starting_after);
    } else {
      replay_piece_.set_response(json_text(record.response));
    }
    write_replayed();
  }
  void OnWriteDone(bool ok) override {
    if (is_replayed_) return ok ? write_replayed() : finish(nullptr, cancelled(), {});
    TokenReactor::OnWriteDone(ok || is_background_);  // its client may be gone
  }
  void OnCancel() override {
    if (!is_background_) TokenReactor::OnCancel();
  }

 private:
  // The request was refused: those that follow its events have none, and it may be run again.
  void drop_record(const grpc::Status& refused) {
    if (!record_) return;
    close_log("");
    const std::string digits = record_->digits;
    const bool is_kept = catch_exceptions(
        [&] {
          // The client that began it has been answered: the server tries again.
          if (record_->version > 1 && is_background_ && !is_final(refused)) return false;
          output_->fail("server_error", refused.error_message(), nullptr);
          end_record(/*is_interrupted=*/true, [](SessionError) {});
          return true;
        },
        [] { return false; });
    if (!is_kept) store_->abandon(digits);
  }

  // The message that takes the events; null: none are wanted.
  v1::ResponseEvents* events_of(v1::ResponseEvents& message) {
    if (streams_) return &message;
    return is_background_ ? &unsent_ : nullptr;
  }
  void log(const v1::ResponseEvents& events, int first) const {
    if (running_ != nullptr && running_->log() != nullptr) running_->log()->append(events, first);
  }

  void close_log(const std::string& response) const noexcept {
    if (running_ == nullptr || running_->log() == nullptr) return;
    catch_exceptions([&] { running_->log()->close(response); }, [] {});
  }

  void write_replayed() {
    if (repeated_ != nullptr) {
      replay_piece_.Clear();
      if (!repeated_->read(kReplayedEvents, replay_piece_)) return StartWrite(&replay_piece_);
    }
    finish(&replay_piece_, grpc::Status::OK, {});
  }

  void fill(std::span<const OutboxEntry> entries, bool is_last,
            v1::ResponseEvents& message) override {
    is_cancelled_ = running_ != nullptr && running_->is_cancelled();
    is_full_ = output_->is_full();
    chat_.Clear();
    unsent_.Clear();
    writer_.fill(entries, is_last || is_cancelled_ || is_full_, chat_);
    v1::ResponseEvents* const events = events_of(message);
    if (!output_->has_begun()) {
      output_->begin(events);
      if (is_background_ && !streams_) message.set_response(json_text(output_->response()));
    }
    output_->push(chat_, events);
    if (is_full_) output_->cut();
    logged_ = events == nullptr ? 0 : events->events_size();
    if (events != nullptr) log(*events, 0);
  }
  bool has_first_message() const override { return streams_ || is_background_; }
  bool ends_early() const override { return is_cancelled_ || is_full_ || writer_.ends_early(); }
  void add_use(TokenUse used, v1::ResponseEvents&) noexcept override {
    catch_exceptions(
        [&] {
          writer_.add_use(used, times(), chat_);
          v1::ChatResponse usage;
          *usage.mutable_usage() = chat_.usage();
          output_->push(usage, nullptr);
        },
        [] {});
  }

  void conclude(v1::ResponseEvents* last, grpc::Status status, TokenUse used) noexcept override {
    const bool is_over = last != nullptr && status.ok();  // as the model or its limit has it
    // The server ends, and with it the response; the next one runs it again.
    const bool is_left =
        is_background_ && record_ && !is_over && !is_cancelled_ && calls().closed();
    grpc::Status ended = catch_exceptions([&] {
      if (is_left) return status.ok() ? shutting_down() : copy_of(status);
      v1::ResponseEvents* const events = last == nullptr ? nullptr : events_of(*last);
      // An error before the first event is the call's, a later one the response's.
      const bool shows_error = events != nullptr && output_->has_begun();
      if (events != nullptr) logged_ = std::min(logged_, events->events_size());
      if (last == nullptr) {  // the client is gone
        output_->cancel(nullptr);
        return status.ok() ? cancelled() : copy_of(status);
      }
      if (is_cancelled_) {
        output_->cancel(events);
      } else if (is_over) {
        output_->finish(seconds_of(context_->clock), events);
      } else {
        output_->fail("server_error", status.error_message(), shows_error ? events : nullptr);
        if (!shows_error) return copy_of(status);
      }
      return grpc::Status::OK;
    });
    const auto answer = [this, last, ended, used, is_over](SessionError error) {
      grpc::Status answered = catch_exceptions([&] {
        if (!ended.ok()) return copy_of(ended);
        // kFenced: the response was deleted meanwhile.
        if (error != SessionError::kNone && error != SessionError::kFenced) {
          grpc::Status refused = response_refusal(error, "");
          if (!streams_) return refused;
          output_->fail("server_error", refused.error_message(), last);
        }
        if (v1::ResponseEvents* const events = events_of(*last); events != nullptr) {
          log(*events, logged_);
        }
        last->set_response(json_text(output_->response()));
        if (kept_ && is_over) add_kept(*last);
        return grpc::Status::OK;
      });
      close_log(last == nullptr ? std::string() : last->response());
      finish(answered.ok() ? last : nullptr, std::move(answered), used);
    };
    if (!record_) return answer(SessionError::kNone);
    const std::string digits = record_->digits;
    const bool is_kept = catch_exceptions(
        [&] {
          if (is_left) return false;
          end_record(!is_over && !is_cancelled_, answer);
          return true;
        },
        [] { return false; });
    if (is_kept) return;
    store_->abandon(digits);
    answer(SessionError::kStoreAway);
  }

  void add_kept(v1::ResponseEvents& last) {
    const Json& response = output_->response();
    for (const Json& item : response["output"]) kept_->push_back(item);
    last.mutable_kept()->set_response_id(response["id"]);
    last.mutable_kept()->set_items(json_text(*kept_));
  }

  void end_record(bool is_interrupted, std::function<void(SessionError)> then) {
    record_->response = output_->response();
    record_->pieces = output_->pieces();
    record_->is_interrupted = is_interrupted;
    record_->request.clear();
    // One in the background has its id from the beginning, and is run again.
    store_->end(*std::exchange(record_, std::nullopt), /*is_refused_when_full=*/!is_background_,
                std::move(then));
  }

  ChatAnswerWriter writer_;
  std::optional<ResponseOutput> output_;
  std::optional<Json> kept_;  // items of a turn that its connection keeps
  bool streams_ = false;
  bool is_cancelled_ = false;
  bool is_full_ = false;  // it has kMostOutputBytes
  const ServiceContext* context_ = nullptr;
  v1::ChatResponse chat_;  // what the entries of one message make
  // State of a response that is stored; null: it is not.
  ResponseStore* store_ = nullptr;
  std::optional<ResponseRecord> record_;
  std::shared_ptr<RunningResponse> running_;
  // State of a response in the background.
  bool is_background_ = false;
  v1::ResponseEvents unsent_;  // events that its own client does not want
  int logged_ = 0;             // events of the message that are in its log
  // State of an answer that is repeated.
  bool is_replayed_ = false;
  std::unique_ptr<RepeatedEvents> repeated_;  // as events
  v1::ResponseEvents replay_piece_;
  RequestMemory::Charge memory_;  // of the response, until its end
};

// A call that follows the events of a response, from one of them on: of its log while it runs, of
// what is stored where the log has them no more. Threads: as ResponseStream.
class FollowedEvents final : public ResponseStream<v1::ResponseEvents>, public EventLog::Follower {
 public:
  // log: null: the events come from what is stored. when_over: has repeat() or fail() called when
  // the response is over; called once at most. memory: of the response when it is over.
  FollowedEvents(std::shared_ptr<const EventLog> log, std::int64_t first,
                 RequestMemory::Charge memory,
                 std::function<void(const std::shared_ptr<FollowedEvents>&)> when_over)
      : when_over_(std::move(when_over)),
        log_(std::move(log)),
        memory_(std::move(memory)),
        next_(first) {}

  // waits: for the response's end, without its log. REQUIRES: a reactor runs the stream.
  void begin(bool waits) {
    if (waits) when_over_(std::static_pointer_cast<FollowedEvents>(shared_from_this()));
    on_more();
  }
  void on_more() override {
    if (leave_log()) when_over_(std::static_pointer_cast<FollowedEvents>(shared_from_this()));
    pump();
  }
  // The rest is that of a response that is over.
  void repeat(ResponseRecord record) EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      if (failure_) return;
      const std::size_t bytes = repeated_bytes_of(record);
      repeated_ = std::make_unique<RepeatedEvents>(
          std::move(record.response), std::move(record.pieces), record.digits + "_", next_ - 1);
      record = ResponseRecord();
      memory_.shrink_to(bytes);
    }
    pump();
  }
  void fail(grpc::Status status) EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      if (!failure_) failure_ = std::move(status);
      // The follower may still wait for the end of the response.
      if (repeated_ == nullptr) memory_.shrink_to(0);
    }
    pump();
  }
  bool has_failed() const EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return failure_.has_value();
  }

 private:
  // Returns whether the log had the next event, and has it no more.
  bool leave_log() EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (log_ == nullptr || !log_->has_dropped(next_)) return false;
    log_ = nullptr;
    return true;
  }
  Next next(v1::ResponseEvents& message, grpc::Status& status) override REQUIRES(mutex_) {
    if (failure_) {
      status = *std::move(failure_);
      return Next::kFinish;
    }
    const Next without_events = std::exchange(has_begun_, true) ? Next::kNothing : Next::kBegin;
    if (log_ == nullptr && repeated_ == nullptr) return without_events;
    const bool is_last = repeated_ != nullptr ? repeated_->read(kReplayedEvents, message)
                                              : log_->read(next_, kReplayedEvents, message);
    next_ += message.events_size();
    if (is_last) return Next::kWriteAndFinish;
    return message.events_size() > 0 ? Next::kWrite : without_events;
  }
  void on_written() override { on_more(); }
  void on_gone() override { fail(cancelled()); }
  void on_lost() override { fail(out_of_memory()); }
  TokenUse tokens_used() const override REQUIRES(mutex_) { return {}; }

  const std::function<void(const std::shared_ptr<FollowedEvents>&)> when_over_;
  std::shared_ptr<const EventLog> log_ GUARDED_BY(mutex_);
  std::unique_ptr<RepeatedEvents> repeated_ GUARDED_BY(mutex_);
  RequestMemory::Charge memory_ GUARDED_BY(mutex_);  // of what is, or may be, repeated
  std::int64_t next_ GUARDED_BY(mutex_);
  bool has_begun_ GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> failure_ GUARDED_BY(mutex_);
};

ResponseService::ResponseService(const ServiceContext& context, ChatGeneration& generation,
                                 ResponseStore& store)
    : HandlerService(context), generation_(generation), store_(store) {
  using Self = ResponseService;
  serve_stream<v1::ResponseEvents>(Method::kCreateResponse, &Self::create);
  serve(Method::kGetResponse, &Self::get);
  serve_stream<v1::ResponseEvents>(Method::kReplayResponse, &Self::replay);
  serve(Method::kDeleteResponse, &Self::remove);
  serve(Method::kCancelResponse, &Self::cancel);
  serve(Method::kListInputItems, &Self::list_input_items);
  serve(Method::kCountInputTokens, &Self::count_input_tokens);
  serve(Method::kCompactResponse, &Self::compact);
  store_.run_interrupted_by([this](const ResponseRecord& record) { run_again(record); });
}

ResponseService::~ResponseService() { store_.run_interrupted_by(nullptr); }

grpc::Status ResponseService::find(const std::string& id, const std::string& owner,
                                   RequestMemory::Charge& memory, ResponseRecord& record) {
  const std::string digits = digits_of_response(id);
  if (digits.empty()) return no_response(id);
  RequestBudget tree(memory, /*copies=*/1, kNever);
  const SessionError error = store_.find(digits, owner, record, &tree);
  if (tree.refusal()) return request_memory_refusal(tree.refusal(), owner, "id");
  return response_refusal(error, id);
}

grpc::Status ResponseService::show(const Call& call, const std::string& id,
                                   v1::ResponseJson& response) {
  RequestMemory::Charge memory = call.scope.charge();
  {
    ResponseRecord record;
    grpc::Status status = find(id, call.scope.caller().name, memory, record);
    if (!status.ok()) return status;
    response.set_body(json_text(record.response));
  }
  memory.shrink_to(response.body().capacity());
  call.rpc.keep(std::move(memory));
  return grpc::Status::OK;
}

grpc::Status ResponseService::resolve_references(const std::string& owner,
                                                 const std::function<bool()>& is_cancelled,
                                                 Json& items, JsonBudget& budget) {
  References references = references_of(items);
  if (references.empty()) return grpc::Status::OK;
  std::size_t bytes = tree_memory(items);
  for (auto& [digits, wanted] : references) {
    if (is_cancelled && is_cancelled()) return cancelled();
    const auto refuse = [&wanted = wanted](const std::string& why) {
      const auto& [id, places] = *wanted.begin();
      return invalid_argument(
          {{"input[" + std::to_string(places.front()) + "].id", "is " + clip(id) + why}});
    };
    Json found;
    CountedBudget counted(&budget);
    const SessionError error = digits_of_response(response_id(digits)).empty()
                                   ? SessionError::kNotFound
                                   : store_.find_items(digits, owner, found, &counted);
    if (error == SessionError::kNotFound) return refuse(", which no stored response has");
    if (error != SessionError::kNone) return response_refusal(error, response_id(digits));
    if (!put_in_place(found, wanted, items, bytes, &budget)) {
      return refuse(
          ": with the items that it and other references name, the input takes more than " +
          std::to_string(kMostItemBytes >> 20) + " MiB of memory");
    }
    if (!wanted.empty()) return refuse(", which no stored response has");
    found = nullptr;
    counted.shrink_to(0);
  }
  return grpc::Status::OK;
}

grpc::Status ResponseService::open_sealed(const std::string& owner, JsonBudget& budget, Json& items,
                                          std::ptrdiff_t& first_input) {
  if (!has_sealed_items(items)) return grpc::Status::OK;
  std::optional<Sealer> sealer;
  if (const SessionError error = store_.sealer(owner, sealer); error != SessionError::kNone) {
    return response_refusal(error, "");
  }
  return open_items(*sealer, items, first_input, &budget);
}

grpc::Status ResponseService::read_earlier(const std::string& owner, JsonBudget& budget,
                                           Conversation& read) {
  const std::string& id = read.request.previous_response_id;
  read.items = Json::array();
  if (read.earlier) {
    if (read.request.store || id.empty()) {
      return invalid_argument({{"previous_response_id",
                                "is a response that its connection keeps: what continues it has "
                                "\"store\": false"}});
    }
    JsonFailure failure;
    const std::optional<Json> list = read_request_json(*read.earlier, {.budget = &budget}, failure);
    if (!list) return invalid_argument({{"earlier_items", "is no list of items"}});
    grpc::Status status = read_items(*list, "", read.items);
    return status.ok() ? resolve_references(owner, read.chat.is_cancelled, read.items, budget)
                       : status;
  }
  if (id.empty()) return grpc::Status::OK;
  read.parent = digits_of_response(id);
  const ChainBounds bounds{
      .json_bytes = read.is_compacted ? std::numeric_limits<std::size_t>::max() : kMostChainBytes,
      // A conversation to compact is bounded as text, and in memory by the request's account.
      .memory_bytes = read.is_compacted ? std::numeric_limits<std::size_t>::max() : kMostItemBytes,
      .budget = &budget,
      .is_cancelled = read.chat.is_cancelled};
  const SessionError error = read.parent.empty() ? SessionError::kNotFound
                                                 : store_.read_chain(read.parent, owner, bounds,
                                                                     read.items, read.chain_bytes);
  if (error == SessionError::kUnloaded) return cancelled();
  return error == SessionError::kNone ? grpc::Status::OK : previous_refusal(error, id);
}

grpc::Status ResponseService::check_chain(const Conversation& read) const {
  if (read.parent.empty() || read.is_compacted) return grpc::Status::OK;
  const bool is_too_long = read.chain_bytes + json_text(read.input).size() > kMostChainBytes ||
                           tree_memory(read.items) + tree_memory(read.input) > kMostItemBytes;
  return is_too_long ? previous_refusal(SessionError::kTooLarge, read.request.previous_response_id)
                     : grpc::Status::OK;
}

grpc::Status ResponseService::read_conversation(const std::string& owner, const std::string& suffix,
                                                Conversation& read) {
  const ResponseRequest& request = read.request;
  Json& items = read.items;
  RequestMemory::Charge& memory = read.chat.memory;
  // Charged once for the earlier items while they are read, then for their other copies.
  RequestBudget earlier(memory, /*copies=*/1, read.chat.is_cancelled);
  grpc::Status status = read_earlier(owner, earlier, read);
  RequestRefusal refusal = earlier.refusal();
  if (!refusal && status.ok()) refusal = memory.add((kItemCopies - 1) * tree_memory(items));
  if (refusal) return request_memory_refusal(refusal, owner, "previous_response_id");
  if (!status.ok()) return status;
  status = read_items(request.input, suffix, read.input);
  read.request.input = nullptr;
  // Items that stand for references, or for what was sealed.
  RequestBudget found(memory, /*copies=*/1, read.chat.is_cancelled);
  std::size_t charged = tree_memory(read.input);
  const auto charge_copies = [&](std::size_t bytes) {
    if (!refusal) refusal = found.refusal();
    if (!refusal && status.ok() && bytes > charged) {
      refusal = memory.add((kItemCopies - 1) * (bytes - charged));
    }
    charged = bytes;
    return refusal ? request_memory_refusal(refusal, owner, "input") : status;
  };
  if (status.ok()) status = resolve_references(owner, read.chat.is_cancelled, read.input, found);
  status = charge_copies(tree_memory(read.input));
  if (!status.ok()) return status;
  status = check_chain(read);
  if (!status.ok()) return status;
  if (read.is_kept) {
    read.kept = read.earlier ? Json::array() : items;
    for (const Json& item : read.input) read.kept.push_back(item);
  }
  auto first_input = static_cast<std::ptrdiff_t>(items.size());
  for (const Json& item : read.input) items.push_back(item);
  charged = tree_memory(items);
  status = open_sealed(owner, found, items, first_input);
  status = charge_copies(tree_memory(items));
  if (!status.ok()) return status;
  Json messages;
  status = messages_of(request.instructions, items, first_input, messages);
  if (!read.is_compacted) items = nullptr;
  read.chat.request = std::move(read.request.chat);
  if (status.ok()) status = take_messages(std::move(messages), read.chat.request);
  return with_response_members(status);
}

grpc::Status ResponseService::find_repeated(const Call& call, const ReceivedResponse& received,
                                            const ResponseRequest& request, ResponseRecord& record,
                                            ResponseCall& stream, bool& is_answered) {
  const std::string& owner = call.scope.caller().name;
  constexpr const char* kField = "Idempotency-Key";
  const std::string& key = received.idempotency_key;
  if (key.size() > kMostKeyBytes) {
    return invalid_argument({{kField, "has " + std::to_string(key.size()) + " bytes, at most " +
                                          std::to_string(kMostKeyBytes) + " are taken"}});
  }
  std::string digits;
  SessionError error = store_.digits_of_key(owner, key, digits);
  bool is_hidden = false;
  RequestMemory::Charge memory = call.scope.charge();
  if (error == SessionError::kNone) {
    RequestBudget tree(memory, /*copies=*/1, kNever);
    error = store_.find_stored(digits, owner, record, is_hidden, &tree);
    if (tree.refusal()) return request_memory_refusal(tree.refusal(), owner, kField);
  }
  if (error == SessionError::kNotFound) {
    record.digits = digits;
    record.request_digest = received.digest;
    return grpc::Status::OK;
  }
  if (error != SessionError::kNone) return response_refusal(error, response_id(digits));
  if (is_hidden) {
    return invalid_argument({{kField, "names a response that was deleted"}},
                            "IDEMPOTENCY_KEY_REUSED");
  }
  if (record.request_digest != received.digest) {
    return invalid_argument({{kField, "was another request's: a repeat has the same body"}},
                            "IDEMPOTENCY_KEY_REUSED");
  }
  const bool is_in_progress = record.status() == "in_progress";
  if (is_in_progress &&
      (store_.running(digits, owner) != nullptr || store_.may_run_elsewhere(record))) {
    if (!request.is_background || request.streams) return response_in_progress(response_id(digits));
    is_answered = true;
    stream.charge(std::move(memory));
    stream.replay(record, /*streams=*/false, -1);
    return grpc::Status::OK;
  }
  if (is_in_progress || record.is_interrupted) return grpc::Status::OK;  // it runs again
  if (const RequestRefusal refusal = memory.add(repeated_bytes_of(record))) {
    return request_memory_refusal(refusal, owner, kField);
  }
  stream.charge(std::move(memory));
  is_answered = true;
  stream.replay(record, request.streams, -1);
  return grpc::Status::OK;
}

void ResponseService::run_again(const ResponseRecord& record) {
  auto received = std::make_unique<ReceivedResponse>();
  received->charge = RequestMemory::Charge(context_.gate.memory, record.owner);
  read_response_request(record.request, ResponseUse::kCreate, record.owner, kNever, *received);
  received->interrupted = record;
  const RequestMessage request(std::move(received));
  const auto on_end = [this, record](const grpc::Status& status) {
    if (status.ok()) return;
    catch_exceptions(
        [&] {
          is_final(status) ? fail_interrupted(record, status) : store_.note_refused(record.digits);
        },
        [] {});
  };
  DetachedCall::run({record.owner, {Role::kGenerate}}, on_end, [&](RpcCall& rpc) {
    constexpr Method kMethod = Method::kCreateResponse;
    return run(&ResponseService::create, kMethod, rpc,
               LazyMessage<v1::CreateResponseRequest>(request),
               new ResponseCall(context_.gate, context_.calls, rpc, kMethod));
  });
}

void ResponseService::fail_interrupted(ResponseRecord record, const grpc::Status& refused) {
  record.request.clear();
  record.is_interrupted = true;
  record.response["status"] = "failed";
  record.response["error"] = {{"code", "server_error"}, {"message", refused.error_message()}};
  store_.end(std::move(record), /*is_refused_when_full=*/false,
             [](SessionError) {});  // where it has ended already, it is fenced
}

template <typename Message>
grpc::Status ResponseService::read_received(const Call& call,
                                            ObjectOr<Message, ReceivedResponse> asked,
                                            ResponseUse use, Conversation& read) const {
  if (asked.object == nullptr) {
    asked.object = std::make_unique<ReceivedResponse>();
    asked.object->charge = call.scope.charge();
    read_response_request(asked.message.body(), use, call.scope.caller().name,
                          read.chat.is_cancelled, *asked.object);
  }
  read.take(*asked.object);
  if (!asked.object->status.ok()) return asked.object->status;
  return report_ignored(read.request.ignored, context_.refuses_unknown_members, call.rpc);
}

grpc::Status ResponseService::charge_running(const CallScope& scope, const ResponseRecord& record,
                                             const PreparedChat& prepared, bool is_background,
                                             bool has_summaries, ResponseCall& stream,
                                             std::size_t& repeated_bytes) {
  const GenerationRequest& request = prepared.prepared.checked.request;
  const auto tokens = static_cast<std::size_t>(request.max_new_tokens);
  const std::size_t longest = prepared.output.tokenizer->longest();
  // Bytes of a token's values as JSON.
  constexpr std::size_t kTokenBytes = 64;
  const std::size_t values =
      request.log2_probs ? 1 + static_cast<std::size_t>(request.top_log2_probs) : 0;
  const std::size_t texts = has_summaries ? 2 : 1;  // of reasoning, the content and the summary
  const std::size_t each = texts * longest + values * (kTokenBytes + kEscapedBytes * longest);
  const std::size_t output = std::min(tokens * each, kMostOutputBytes);
  std::size_t bytes = kOutputCopies * output + std::min(tokens, kMostOutputBytes) * kPieceBytes +
                      record.request.size() + tree_memory(record.input) +
                      tree_memory(record.response);
  if (is_background) bytes += 2 * EventLog::kMostBytes;
  repeated_bytes = kRepeatedCopies * (tree_memory(record.response) +
                                      output * (values == 0 ? 1 : kLogprobTreeBytes) +
                                      std::min(tokens, kMostOutputItems) * kItemBytes) +
                   std::min(tokens, kMostOutputBytes) * kNumberBytes;
  RequestMemory::Charge memory = scope.charge();
  const RequestRefusal refusal = memory.add(bytes);
  if (refusal) return request_memory_refusal(refusal, scope.caller().name, "max_output_tokens");
  stream.charge(std::move(memory));
  return grpc::Status::OK;
}

namespace {

// The request of a message of gRPC, which is charged.
std::unique_ptr<ReceivedResponse> receive(const Call& call, v1::CreateResponseRequest wire,
                                          const std::function<bool()>& is_cancelled) {
  const std::string& caller = call.scope.caller().name;
  auto received = std::make_unique<ReceivedResponse>();
  received->charge = call.scope.charge();
  received->is_turn = wire.has_connection();
  received->idempotency_key = std::move(*wire.mutable_idempotency_key());
  const ResponseUse use = received->is_turn ? ResponseUse::kTurn : ResponseUse::kCreate;
  read_response_request(wire.body(), use, caller, is_cancelled, *received);
  if (!wire.connection().earlier_items().empty()) {
    received->continue_turn(std::move(*wire.mutable_connection()->mutable_earlier_items()), caller);
  }
  return received;
}

}  // namespace

Task<grpc::Status> ResponseService::create(Call call, Asked asked, ResponseCall& stream) {
  grpc::Status status = stream.call().quota.check_tokens();
  if (!status.ok()) co_return status;
  Conversation read;
  read.chat.is_cancelled = [&rpc = call.rpc] { return rpc.is_cancelled(); };
  if (asked.object == nullptr) {
    asked.object = receive(call, std::move(asked.message), read.chat.is_cancelled);
  }
  ReceivedResponse& received = *asked.object;
  status = received.status;
  if (status.ok()) {
    status = report_ignored(received.request.ignored, context_.refuses_unknown_members, call.rpc);
  }
  if (!status.ok()) co_return status;
  status = co_await store_thread(call);
  if (!status.ok()) co_return status;

  const std::string& owner = call.scope.caller().name;
  const bool is_stored = received.request.store;
  if (is_stored && !store_.waits()) call.rpc.add_header("lintel-durability", "none");
  ResponseRecord record;
  if (received.interrupted) {
    record = *std::move(received.interrupted);
    if (record.owner != owner) co_return no_response(response_id(record.digits));
  }
  const bool has_key = is_stored && !received.idempotency_key.empty();
  bool is_answered = false;
  if (has_key) {
    status = find_repeated(call, received, received.request, record, stream, is_answered);
    if (!status.ok() || is_answered) co_return status;
  }
  record.owner = owner;
  if (record.digits.empty()) record.digits = random_digits();
  read.is_kept = received.is_turn && !is_stored;
  read.take(received);
  status = read_conversation(owner, record.digits + "_in", read);
  if (!status.ok()) co_return status;
  read.chat.model = co_await chat_model_use(call, read.chat.request.base.model, status);
  if (read.chat.model == nullptr) co_return with_response_members(status);
  if (has_key) {  // another call may have run it while this one waited for its model
    status = find_repeated(call, received, read.request, record, stream, is_answered);
    if (!status.ok() || is_answered) co_return status;
  }
  status = make_prompt(context_, call.scope, read.chat, PromptUse::kNextTurn);
  if (!status.ok()) co_return with_response_members(status);
  if (record.version > 0) read.chat.request.base.sampling.seed = record.seed;
  if (generation_.has_stored(call.scope, read.chat)) generation_.restore(call.scope, read.chat);
  PreparedChat prepared;
  status = generation_.prepare(call.rpc, stream.call(), read.chat, is_stored, prepared);
  if (!status.ok()) co_return with_response_members(status);
  co_return begin(call, received, read, std::move(record), std::move(prepared), stream);
}

grpc::Status ResponseService::begin(const Call& call, const ReceivedResponse& received,
                                    Conversation& read, ResponseRecord record,
                                    PreparedChat prepared, ResponseCall& stream) {
  const ResponseRequest& request = read.request;
  const bool runs_again = record.version > 0;
  const api::SamplingParams sampling =
      with_defaults(read.chat.request.base.sampling, read.chat.model->chat->defaults());
  Json response = std::move(read.request.response);
  response["id"] = response_id(record.digits);
  response["created_at"] =
      runs_again ? record.response["created_at"] : Json(seconds_of(context_.clock));
  if (response["model"] == "") response["model"] = read.chat.model->name;
  if (!received.has_temperature && sampling.temperature) {
    response["temperature"] = decimal(*sampling.temperature);
  }
  if (!received.has_top_p && sampling.top_p) response["top_p"] = decimal(*sampling.top_p);
  ResponseOutput output(response, record.digits + "_");
  if (request.has_timings) output.show_timings();
  const bool has_summaries = !response["reasoning"]["summary"].is_null();
  if (request.seals_reasoning) {
    std::optional<Sealer> sealer;
    if (const SessionError error = store_.sealer(record.owner, sealer);
        error != SessionError::kNone) {
      return response_refusal(error, "");
    }
    output.seal_reasoning(
        [sealer = *sealer](const std::string& text) { return seal_reasoning(sealer, text); });
  }
  if (request.store) {
    record.parent = read.parent;
    record.response = std::move(response);
    record.input = std::move(read.input);
    record.pieces = Json::array();
    record.seed = prepared.prepared.checked.request.seed;
    record.is_interrupted = false;
    record.request = received.text;
  }
  std::size_t repeated_bytes = 0;
  grpc::Status status = charge_running(call.scope, record, prepared, request.is_background,
                                       has_summaries, stream, repeated_bytes);
  if (!status.ok()) return status;
  if (request.store) {
    std::shared_ptr<RunningResponse> running;
    switch (const SessionError error =
                store_.begin(record, request.is_background, running, repeated_bytes)) {
      case SessionError::kNone:
        break;
      case SessionError::kFenced:
        return response_in_progress(response_id(record.digits));
      case SessionError::kNotFound:
        return previous_refusal(error, request.previous_response_id);
      case SessionError::kOwnerOutOfMemory:
        return quota_exceeded(
            record.owner,
            std::to_string(store_.owner_bytes()) + " bytes of stored responses (--identity-stored)",
            kStoredRetry);
      default:
        return response_refusal(error, response_id(record.digits));
    }
    stream.keep(store_, std::move(record), std::move(running));
  }
  if (read.is_kept) stream.keep_items(std::move(read.kept));
  // The client's deadline is of its own call alone.
  if (request.is_background) prepared.prepared.checked.request.deadline = std::nullopt;
  return stream.begin(std::move(prepared), std::move(output), request.streams,
                      request.is_background, context_);
}

Task<grpc::Status> ResponseService::get(Call call, v1::GetResponseRequest wire,
                                        v1::ResponseJson& response) {
  grpc::Status status = co_await store_thread(call);
  if (!status.ok()) co_return status;
  co_return show(call, wire.id(), response);
}

Task<grpc::Status> ResponseService::replay(Call call, v1::ReplayResponseRequest wire,
                                           ResponseStream<v1::ResponseEvents>::Reactor& reactor) {
  grpc::Status status = co_await store_thread(call);
  if (!status.ok()) co_return status;
  const std::string owner = call.scope.caller().name;
  const auto running = store_.running(digits_of_response(wire.id()), owner);
  RequestMemory::Charge memory = call.scope.charge();
  ResponseRecord record;
  status = find(wire.id(), owner, memory, record);
  if (!status.ok()) co_return status;
  const bool is_over = running == nullptr && record.status() != "in_progress";
  if (!is_over && running == nullptr) co_return response_in_progress(wire.id());
  // The record, and the events of its whole texts, which are made again: also of one that
  // runs, whose log may drop them, so that it is not refused in its middle.
  const std::size_t bytes = is_over ? repeated_bytes_of(record) : running->repeated_bytes();
  if (const RequestRefusal refusal = memory.add(bytes)) {
    co_return request_memory_refusal(refusal, owner, "id");
  }
  if (!is_over) {
    record = ResponseRecord();
    memory.shrink_to(bytes);
  }
  // The server does not go before it has been looked for.
  context_.calls.hold();
  const std::shared_ptr<ActiveCalls> held(&context_.calls,
                                          [](ActiveCalls* calls) { calls->release(); });
  const auto when_over = [this, held, owner, id = wire.id(),
                          digits = digits_of_response(wire.id())](
                             const std::shared_ptr<FollowedEvents>& stream) {
    store_.when_over(digits, owner, [this, held, owner, id, digits, stream] {
      if (stream->has_failed()) return;  // its client is gone
      ResponseRecord ended;
      grpc::Status found =
          catch_exceptions([&] { return response_refusal(store_.find(digits, owner, ended), id); });
      // A response in progress is left to the next server, or its end could not be stored.
      if (found.ok() && ended.status() == "in_progress") found = response_in_progress(id);
      if (found.ok())
        found = catch_exceptions([&] {
          stream->repeat(std::move(ended));
          return grpc::Status::OK;
        });
      if (!found.ok()) stream->fail(std::move(found));
    });
  };
  std::shared_ptr<EventLog> log = is_over ? nullptr : running->log();
  const auto stream = std::make_shared<FollowedEvents>(
      log, wire.has_starting_after() ? wire.starting_after() + 1 : 0, std::move(memory), when_over);
  reactor.run(stream);  // before the log can call it
  if (log != nullptr) log->follow(stream);
  if (is_over) stream->repeat(std::move(record));
  stream->begin(/*waits=*/!is_over && log == nullptr);
  co_return status;
}

Task<grpc::Status> ResponseService::remove(Call call, v1::DeleteResponseRequest wire,
                                           v1::DeleteResponseResponse&) {
  grpc::Status status = co_await store_thread(call);
  if (!status.ok()) co_return status;
  const std::string digits = digits_of_response(wire.id());
  if (digits.empty()) co_return no_response(wire.id());
  co_return response_refusal(store_.remove(digits, call.scope.caller().name), wire.id());
}

Task<grpc::Status> ResponseService::cancel(Call call, v1::CancelResponseRequest wire,
                                           v1::ResponseJson& response) {
  grpc::Status status = co_await store_thread(call);
  if (!status.ok()) co_return status;
  const std::string& owner = call.scope.caller().name;
  const auto running = store_.running(digits_of_response(wire.id()), owner);
  if (running != nullptr) running->cancel();
  co_return show(call, wire.id(), response);
}

Task<grpc::Status> ResponseService::list_input_items(Call call, v1::ListInputItemsRequest wire,
                                                     v1::ResponseJson& response) {
  grpc::Status status = co_await store_thread(call);
  if (!status.ok()) co_return status;
  const std::uint32_t limit = wire.limit() == 0 ? kListedItems : wire.limit();
  if (limit > kMostListedItems) {
    co_return invalid_argument({{"limit", "is " + std::to_string(limit) + ", at most " +
                                              std::to_string(kMostListedItems) + " is taken"}});
  }
  RequestMemory::Charge memory = call.scope.charge();
  ResponseRecord record;
  status = find(wire.id(), call.scope.caller().name, memory, record);
  if (!status.ok()) co_return status;
  Json& items = record.input;
  if (!wire.ascending()) std::reverse(items.begin(), items.end());
  auto from = items.begin();
  if (!wire.after_id().empty()) {
    from = std::ranges::find_if(items,
                                [&](const Json& item) { return item["id"] == wire.after_id(); });
    if (from == items.end()) {
      co_return invalid_argument({{"after", "is no item of this response's input"}});
    }
    ++from;
  }
  Json data = Json::array();
  for (; from != items.end() && data.size() < limit; ++from) {
    data.push_back(std::move(*from));
  }
  const auto id_at = [&](bool is_first) {
    return data.empty() ? Json() : (is_first ? data.front() : data.back())["id"];
  };
  Json list = {{"object", "list"}, {"data", nullptr}};
  list["first_id"] = id_at(true);
  list["last_id"] = id_at(false);
  list["has_more"] = from != items.end();
  list["data"] = std::move(data);
  response.set_body(json_text(list));
  list = nullptr;
  record = ResponseRecord();
  memory.shrink_to(response.body().capacity());
  call.rpc.keep(std::move(memory));
  co_return status;
}

Task<grpc::Status> ResponseService::count_input_tokens(
    Call call, ObjectOr<v1::CountInputTokensRequest, ReceivedResponse> asked,
    v1::CountInputTokensResponse& response) {
  grpc::Status status = co_await store_thread(call);
  if (!status.ok()) co_return status;
  Conversation read;
  read.chat.is_cancelled = [&rpc = call.rpc] { return rpc.is_cancelled(); };
  status = read_received(call, std::move(asked), ResponseUse::kCount, read);
  if (status.ok()) status = read_conversation(call.scope.caller().name, "", read);
  if (!status.ok()) co_return status;
  read.chat.model = co_await chat_model_use(call, read.chat.request.base.model, status);
  if (read.chat.model != nullptr) {
    status = make_prompt(context_, call.scope, read.chat, PromptUse::kCount);
  }
  if (!status.ok()) co_return with_response_members(status);
  response.set_input_tokens(static_cast<std::int64_t>(read.chat.prompt.tokens.ids.size()));
  co_return status;
}

Task<grpc::Status> ResponseService::compact(
    Call call, ObjectOr<v1::CompactResponseRequest, ReceivedResponse> asked,
    v1::ResponseJson& response) {
  grpc::Status status = co_await store_thread(call);
  if (!status.ok()) co_return status;
  Conversation read;
  read.chat.is_cancelled = [&rpc = call.rpc] { return rpc.is_cancelled(); };
  read.is_compacted = true;
  status = read_received(call, std::move(asked), ResponseUse::kCompact, read);
  const std::string digits = random_digits();
  if (status.ok()) status = read_conversation(call.scope.caller().name, digits + "_in", read);
  if (!status.ok()) co_return status;
  read.chat.model = co_await chat_model_use(call, read.chat.request.base.model, status);
  if (read.chat.model != nullptr) {
    status = make_prompt(context_, call.scope, read.chat, PromptUse::kCount);
  }
  if (!status.ok()) co_return with_response_members(status);
  Json item;
  std::optional<Sealer> sealer;
  const SessionError error = store_.sealer(call.scope.caller().name, sealer);
  if (error != SessionError::kNone) co_return response_refusal(error, "");
  join_reasoning(read.items);
  v1::ChatUsage usage;
  usage.set_prompt_tokens(static_cast<std::int64_t>(read.chat.prompt.tokens.ids.size()));
  read.chat.request = api::ChatParams();
  read.chat.prompt = ChatPrompt();
  RequestMemory::Charge& memory = read.chat.memory;
  const RequestRefusal refusal =
      memory.add((kCompactedCopies - kItemCopies) * tree_memory(read.items));
  if (refusal) {
    co_return request_memory_refusal(refusal, call.scope.caller().name, "previous_response_id");
  }
  status = compact_items(read.items, *sealer, "cmp_" + digits, item);
  if (!status.ok()) co_return status;
  read.items = nullptr;
  response.set_body(json_text({{"id", response_id(digits)},
                               {"object", "response.compaction"},
                               {"created_at", seconds_of(context_.clock)},
                               {"output", Json::array({std::move(item)})},
                               {"usage", usage_json(usage, UsageForm::kResponse)}}));
  memory.shrink_to(response.body().capacity());
  call.rpc.keep(std::move(memory));
  co_return status;
}

}  // namespace lintel

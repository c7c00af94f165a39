// SPDX-License-Identifier: Apache-2.0
#include "server/api/lintel_v1/restore_call.h"

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "model/core/errors.h"
#include "model/ops/kv_type.h"
#include "server/api/lintel_v1/session_calls.h"
#include "server/api/lintel_v1/session_service.h"
#include "server/api/lintel_v1/snapshot_bytes.h"
#include "server/api/lookup.h"
#include "server/api/prepare_generation.h"
#include "server/api/refusals.h"
#include "server/api/request_checks.h"
#include "server/api/service_context.h"
#include "server/api/session_checks.h"
#include "server/engine/token_sink.h"
#include "server/rpc/call_scope.h"
#include "server/rpc/rpc.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

constexpr std::int64_t kFarthestPosition = std::int64_t{1} << 53;

std::size_t most_bytes_of(const Transformer& model, std::int64_t history_tokens) {
  const ModelConfig& config = model.config();
  const std::int64_t values = config.max_tokens() == 0 ? kFarthestPosition : config.max_tokens();
  // Windows let text continue past the model's length.
  const bool ends = config.modality == ModalityKind::kImage;
  const std::size_t most =
      most_snapshot_bytes(model, values, ends ? std::min(values, history_tokens) : history_tokens);
  // One of another KV type is at most four times as large.
  const bool may_be_wider = model.kv_type().value_or(KvType::kF32) != KvType::kF32;
  return !may_be_wider                                        ? most
         : most > std::numeric_limits<std::size_t>::max() / 4 ? most
                                                              : 4 * most;
}

}  // namespace

std::size_t most_restored_bytes(const ModelRegistry& models, const ServedModel* model,
                                const SessionManager::Options& store) {
  std::size_t most = 0;
  if (model != nullptr) {
    most = most_bytes_of(*model->transformer, store.history_tokens);
  } else {
    for (const SharedModel& ready : models.ready()) {
      most = std::max(most, most_bytes_of(*ready->transformer, store.history_tokens));
    }
  }
  return std::min(most, store.session_memory_bytes);
}

grpc::Status snapshot_refused(const SnapshotError& error) {
  if (error.kind() == SnapshotError::Kind::kInvalid) {
    // "snapshot: FIELD: ...": "snapshot" is the violation's field already.
    std::string_view text = error.what();
    text.remove_prefix(std::min(text.size(), text.find(' ') + 1));
    return invalid_argument({{"snapshot", std::string(text)}});
  }
  return data_loss("SNAPSHOT_DAMAGED", error.what());
}

grpc::Status check_restored(const SnapshotOf& snapshot, const ServedModel& model,
                            bool accept_other_numerics) {
  const Transformer& transformer = *model.transformer;
  const SnapshotOf here = snapshot_of({}, model);
  const auto differs = [&](const char* what, const std::string& theirs, const std::string& ours) {
    return wrong_state("MODEL_MISMATCH",
                       "the snapshot is of another " + std::string(what) + " than model " +
                           clip(model.name) + " here: " + clip(theirs) + ", not " + clip(ours),
                       {{"what", what}, {"snapshot", theirs}, {"model", ours}});
  };
  if (snapshot.model_fingerprint != here.model_fingerprint) {
    return differs("fingerprint", snapshot.model_fingerprint, here.model_fingerprint);
  }
  if (snapshot.attention != here.attention) {
    return differs("attention", snapshot.attention, here.attention);
  }
  if (snapshot.weight_type != here.weight_type) {
    return differs("weight type", snapshot.weight_type, here.weight_type);
  }
  // Pages of another type are converted (KvCache::load).
  const bool is_convertible =
      !here.kv_type.empty() && std::ranges::any_of(kKvTypes, [&](KvType type) {
        return snapshot.kv_type == to_string(type);
      });
  if (snapshot.kv_type != here.kv_type && !is_convertible) {
    const auto name = [](const std::string& type) { return type.empty() ? "none" : type; };
    return differs("KV type", name(snapshot.kv_type), name(here.kv_type));
  }
  const bool is_same = snapshot.numerics == here.numerics && snapshot.kv_type == here.kv_type;
  if (!is_same && !accept_other_numerics) {
    return wrong_state("NUMERICS_CHANGED",
                       "this machine computes other bits than the one that made the snapshot (" +
                           clip(snapshot.numerics_text) + " there, " + here.numerics_text +
                           " here): accept_other_numerics restores it all the same",
                       {{"snapshot", snapshot.numerics}, {"model", here.numerics}});
  }
  const SessionImage& image = snapshot.image;
  const ModelConfig& config = transformer.config();
  Violations violations;
  check_window(image.window, config, violations);
  const std::int64_t limit = image.window > 0 ? 0 : config.max_tokens();
  check_session_length(image.max_tokens, "snapshot.max_values", limit, violations);
  const std::int64_t most = image.max_tokens == 0 ? limit : image.max_tokens;
  if (most != 0 && image.position > most) {
    violations.add("snapshot.position",
                   std::to_string(image.position) + " is more than " + std::to_string(most));
  }
  for (std::size_t i = 0; i < image.tokens.size() && violations.empty(); ++i) {
    check_token(image.tokens[i], indexed("snapshot.values", i), config.vocab_size, violations);
  }
  if (!violations.empty()) return violations.status();
  return check_window_of_state(image.window, image);
}

namespace {

constexpr std::size_t kMostPieceBytes = 1 << 20;

grpc::Status unproven(const std::string& why) {
  return wrong_state("STATE_NOT_PROVEN", "the snapshot's state cannot be proven: " + why, {});
}

}  // namespace

// Finishes the call when the tokens have been read.
class RestoreCall::ProofSink final : public TokenSink {
 public:
  explicit ProofSink(RestoreCall& call) : call_(call) {}
  bool on_token(const TokenEvent&) override { return true; }
  void on_sample_finish(const SampleResult& result) override {
    call_.used_.prompt += result.prompt_tokens + result.replayed_tokens;
  }
  void on_step_end() override {}
  void on_finish(RequestOutcome outcome) override { call_.proof_ended(outcome); }

 private:
  RestoreCall& call_;  // lives until it has finished, which on_finish does
};

RestoreCall::RestoreCall(const ServiceContext& context, Semaphore& places, RpcCall& rpc,
                         v1::Session& session)
    : context_(context),
      places_(places),
      rpc_(rpc),
      session_(session),
      call_(context.gate, rpc, Method::kRestoreSession) {
  grpc::Status status = catch_exceptions([&]() -> grpc::Status {
    if (!call_.scope.admitted().ok()) return call_.scope.admitted();
    active_ = ActiveCall(context_.calls);
    if (!active_) return shutting_down();
    return call_.quota.enter();
  });
  if (status.ok()) {
    StartRead(&request_);
  } else {
    finish(std::move(status));
  }
}

void RestoreCall::OnReadDone(bool ok) {
  const LogScope log(call_.scope.log_fields());
  if (ok) {
    grpc::Status taken = catch_exceptions([&]() -> grpc::Status {
      v1::RestoreSessionRequest wire;
      grpc::Status read = request_.read(bounds_of(context_.gate, Method::kRestoreSession), wire);
      return read.ok() ? start(take(this->call(), std::move(wire))) : read;
    });
    if (!taken.ok()) finish(std::move(taken));
    return;
  }
  const bool is_gone = [&] {
    MutexLock lock(mutex_);
    return cancelled_;
  }();
  if (is_gone) return finish(cancelled());
  grpc::Status started = catch_exceptions([&] { return start(complete(this->call())); });
  if (!started.ok()) finish(std::move(started));
}

Call RestoreCall::call() { return {context_, rpc_, *this, call_.scope}; }

grpc::Status RestoreCall::start(Task<grpc::Status> task) {
  return start_task(std::move(task), call_.scope, call_.scope.charge(),
                    std::make_shared<const LoggedRuns>(call_.scope), [this](grpc::Status status) {
                      if (!status.ok()) finish(std::move(status));
                    });
}

Task<grpc::Status> RestoreCall::take(Call call, v1::RestoreSessionRequest wire) {
  if (wire.has_header() == header_.has_value()) {
    co_return invalid_argument({{"header", header_ ? "came twice" : "has to come first"}});
  }
  grpc::Status status;
  if (!wire.header().model().empty()) {
    model_ = co_await model_use(call, wire.header().model(), status, "header.model");
    if (model_ == nullptr) co_return status;
  }
  status = wire.has_header() ? take_header(wire.header()) : take_data(wire.data());
  if (status.ok()) StartRead(&request_);
  co_return status;
}

grpc::Status RestoreCall::take_data(const std::string& data) {
  if (data.size() > kMostPieceBytes) {
    return invalid_argument(
        {{"data", std::to_string(data.size()) + " bytes in a message are more than " +
                      std::to_string(kMostPieceBytes)}});
  }
  try {
    reader_->add(std::as_bytes(std::span(data)));
  } catch (const SnapshotError& error) {
    return snapshot_refused(error);
  }
  return grpc::Status::OK;
}

grpc::Status RestoreCall::take_header(const v1::RestoreHeader& header) {
  grpc::Status status;
  // The size is checked before anything else is read or held.
  const SessionManager::Options& sessions = context_.sessions.options();
  // Nothing is known yet of a model that is not in memory.
  const bool is_any = model_ == nullptr && context_.manager.loads_on_request();
  const std::size_t most = is_any ? sessions.session_memory_bytes
                                  : most_restored_bytes(context_.models, model_.get(), sessions);
  if (header.total_bytes() <= 0 || static_cast<std::size_t>(header.total_bytes()) > most) {
    return invalid_argument(
        {{"header.total_bytes", std::to_string(header.total_bytes()) + " is not from 1 to " +
                                    std::to_string(most) + ", the most a session can have"}});
  }
  status = check_durability(header.durability(), "header.durability", context_.persistent_sessions,
                            default_durability(context_.persistent_sessions), &options_.durability);
  if (!status.ok()) return status;
  const auto total = static_cast<std::size_t>(header.total_bytes());
  place_ = places_.take();
  if (place_ == nullptr) {
    return resource_exhausted("too many snapshots are on their way",
                              std::chrono::milliseconds(200));
  }
  // The bytes, and what becomes of them: a token of a byte takes four.
  SessionMemory::Result admitted =
      context_.sessions.admit_bytes(call_.scope.caller().name, 5 * total);
  if (admitted.refusal) {
    return store_refusal(admitted.refusal, context_.sessions.options(), /*session_id=*/"",
                         call_.scope.caller().name);
  }
  memory_.emplace(std::move(admitted.reservation));
  reader_.emplace(total);
  header_ = header;
  return grpc::Status::OK;
}

Task<grpc::Status> RestoreCall::complete(Call call) {
  if (!header_) co_return invalid_argument({{"header", "is missing"}});
  SnapshotOf snapshot;
  try {
    snapshot = reader_->view();
  } catch (const SnapshotError& error) {
    co_return snapshot_refused(error);
  }
  grpc::Status status;
  if (model_ == nullptr) {
    model_ = co_await model_use(call, snapshot.image.model, status);
    if (model_ == nullptr) co_return status;
  }
  status = check_restored(snapshot, *model_, header_->accept_other_numerics());
  if (!status.ok()) co_return status;
  status = resolve_adapter(snapshot.image, *model_, &adapter_);
  if (!status.ok()) co_return status;
  take_numerics(snapshot, *model_, options_);
  image_ = std::move(snapshot.image);
  image_.model = model_->name;
  const bool proves = header_->verify() && !image_.state_bytes().empty();
  co_return proves ? begin_proof() : end();
}

grpc::Status RestoreCall::end() {
  SessionInfo made;
  grpc::Status status = restore(image_, options_, made);
  if (!status.ok()) return status;
  if (context_.persistent_sessions == nullptr || options_.durability == Durability::kNone) {
    answer(made);
    return status;
  }
  const Owner& owner = call_.scope.caller().name;
  status = catch_exceptions([&] {
    return run_by_store(context_, call_.scope.log_fields(), [this, made]() mutable {
      grpc::Status kept =
          catch_exceptions([&] { return keep_session(context_, call_.scope.caller().name, made); });
      kept.ok() ? answer(made) : finish(std::move(kept));
    });
  });
  if (!status.ok()) context_.sessions.remove(made.id, owner);
  return status;
}

void RestoreCall::answer(const SessionInfo& made) {
  finish(catch_exceptions([&] {
    write_session(context_, made, session_);
    return grpc::Status::OK;
  }));
}

grpc::Status RestoreCall::begin_proof() {
  if (image_.base != 0 || image_.tokens.empty() || image_.state_position == 0) {
    return unproven("it does not have the tokens from the first on");
  }
  if (grpc::Status begins = call_.quota.check_tokens(); !begins.ok()) return begins;
  // A session of the tokens that the state is of, with their digest.
  if (grpc::Status made = restore_proof(image_); !made.ok()) return made;
  const Owner& owner = call_.scope.caller().name;
  const auto values = context_.sessions.image(proof_id_, owner, image_.state_position,
                                              /*with_history=*/true, /*with_state=*/false);
  context_.sessions.remove(std::exchange(proof_id_, {}), owner);
  if (values.refusal) {
    return store_refusal(values.refusal, context_.sessions.options(), /*session_id=*/"", owner);
  }
  if (grpc::Status made = restore_proof(values.image); !made.ok()) return made;
  SessionManager::LeaseResult leased = context_.sessions.lease(proof_id_, owner);
  if (leased.refusal) {
    return store_refusal(leased.refusal, context_.sessions.options(), proof_id_, owner);
  }
  GenerationRequest request;
  auto replay = leased.lease.replay();
  request.replay = std::move(replay.tokens);
  request.replay_tail = std::move(replay.tail);
  request.window = leased.lease.window();
  request.deadline = call_deadline(rpc_, context_.clock);
  request.allowance = call_.quota.allowance();
  request.caller = call_.scope.turn_name();
  {
    MutexLock lock(mutex_);
    if (cancelled_) return cancelled();
    proving_ = model_;
  }
  return submit_status(model_->scheduler->submit(std::move(request), std::move(leased.lease),
                                                 std::make_shared<ProofSink>(*this), proof_),
                       *model_);
}

void RestoreCall::proof_ended(RequestOutcome outcome) {
  grpc::Status ended = catch_exceptions([&]() -> grpc::Status {
    grpc::Status proven = outcome_status(outcome, *model_);
    if (proven.ok()) proven = check_proof();
    return proven.ok() ? end() : proven;
  });
  if (!ended.ok()) finish(std::move(ended));
}

grpc::Status RestoreCall::check_proof() {
  const Owner& owner = call_.scope.caller().name;
  const SessionManager::ImageResult proof =
      context_.sessions.image(proof_id_, owner, image_.state_position,
                              /*with_history=*/false, /*with_state=*/true);
  if (proof.refusal) {
    return store_refusal(proof.refusal, context_.sessions.options(), proof_id_, owner);
  }
  context_.sessions.remove(std::exchange(proof_id_, {}), owner);
  if (std::ranges::equal(proof.image.state, image_.state_bytes())) return grpc::Status::OK;
  return unproven("its tokens lead to another one here");
}

grpc::Status RestoreCall::restore(const SessionImage& image, const SessionOptions& options,
                                  SessionInfo& made) {
  const Owner& owner = call_.scope.caller().name;
  try {
    auto restored = context_.sessions.restore(model_->name, model_->transformer, image, owner,
                                              adapter_, options);
    made = std::move(restored.info);
    return store_refusal(restored.refusal, context_.sessions.options(), /*session_id=*/"", owner);
  } catch (const ModelError& error) {
    return invalid_argument({{"state", error.what()}});
  }
}

grpc::Status RestoreCall::restore_proof(const SessionImage& image) {
  SessionInfo made;
  grpc::Status status = restore(image, SessionOptions(), made);
  if (status.ok()) proof_id_ = std::move(made.id);
  return status;
}

void RestoreCall::OnCancel() {
  SharedModel proving;
  {
    MutexLock lock(mutex_);
    cancelled_ = true;
    proving = proving_;
  }
  if (proving != nullptr) proving->scheduler->cancel(proof_);
}

void RestoreCall::finish(grpc::Status status) {
  // Frees what the call holds before its client can know the end.
  if (!proof_id_.empty()) {
    context_.sessions.remove(std::exchange(proof_id_, {}), call_.scope.caller().name);
  }
  zero(image_);
  reader_.reset();
  memory_.reset();
  place_.reset();
  {
    MutexLock lock(mutex_);
    proving_.reset();
  }
  model_.reset();
  adapter_.reset();
  status_ = copy_of(status);
  call_.finish(used_);
  Finish(std::move(status));
}

void RestoreCall::OnDone() {
  const ActiveCall active = std::move(active_);  // counted out when the call is gone
  call_.end(status_);
  delete this;
}

}  // namespace lintel

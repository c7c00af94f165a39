// SPDX-License-Identifier: Apache-2.0
#include "server/api/prepare_generation.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <span>
#include <utility>

#include "model/core/state_bytes.h"
#include "server/api/lookup.h"
#include "server/api/refusals.h"
#include "server/api/request_checks.h"
#include "server/core/random_bytes.h"
#include "server/core/token_record.h"
#include "server/engine/drafter.h"
#include "server/engine/particle_set.h"
#include "server/engine/request.h"
#include "server/rpc/rpc.h"
#include "server/rpc/status.h"
#include "server/sessions/persistence/persistent_request.h"
#include "server/sessions/persistence/persistent_sessions.h"
#include "server/sessions/session_history.h"

namespace lintel {
namespace {

// Bytes of a token in an outbox: its entry and the allocator's share of what it points at.
constexpr std::size_t kOutboxTokenBytes = 64;

// Bytes that a transport keeps for a token: where its text begins.
constexpr std::size_t kKeptTokenBytes = sizeof(std::size_t);

// Bytes of a call and its stream: their objects, and the message under way.
constexpr std::size_t kRequestBytes = 64 << 10;

std::uint64_t random_seed() {
  std::uint64_t seed = 0;
  fill_with_random(std::as_writable_bytes(std::span(&seed, 1)));
  return seed;
}

// Moves a lease into the target, with the model that it continues with.
SessionRefusal take_lease(const ServiceContext& context, SessionManager::LeaseResult leased,
                          GenerationTarget& target) {
  if (leased.refusal) return leased.refusal;
  const Transformer& transformer = leased.lease.transformer();
  if (target.model == nullptr || target.model->transformer.get() != &transformer) {
    target.model = context.models.use(leased.lease.model(), &transformer);
  }
  if (target.model == nullptr) {
    // The model is being unloaded; if it is loaded again, a stored session continues.
    const std::string& name = leased.lease.model();
    if (leased.lease.durability() != Durability::kNone &&
        context.manager.loads_on_request(name, std::nullopt)) {
      target.absent.name = name;
    }
    return {SessionError::kUnloaded};
  }
  target.lease = std::move(leased.lease);
  return {};
}

// Tokens of particles, and those that are reported together at the end.
std::size_t particle_bytes(const ModelConfig& config, const GenerationRequest& request) {
  if (!request.uses_particles()) return 0;
  std::int64_t most = request.max_new_tokens;
  if (config.max_tokens() != 0) most = std::min(most, config.max_tokens());
  return ParticleSet::bytes(request.particles, most) +
         static_cast<std::size_t>(request.num_samples) * static_cast<std::size_t>(most) *
             kOutboxTokenBytes;
}

// Bytes that a call holds in addition to its sequences: tables of draft tokens, tokens that its
// session's sequence lacks, that a window restarts from or that penalties count, draws of
// particles, and the tokens that wait for a slow client.
std::size_t call_bytes(const ServiceContext& context, const ServedModel& model,
                       const GenerationRequest& request) {
  const Transformer& transformer = *model.transformer;
  const auto samples = static_cast<std::size_t>(request.num_sequences());
  const bool drafts = request.max_new_tokens > 0 && !request.uses_particles() &&
                      uses_drafts(model.scheduler->options().speculation, transformer.recomputes());
  const std::size_t drafter_bytes = drafts ? samples * SampleDrafts::bytes(transformer) : 0;
  const auto outbox = static_cast<std::size_t>(context.streaming.outbox_tokens);
  const std::size_t values = samples * (static_cast<std::size_t>(request.max_new_tokens) +
                                        (request.echo_prompt ? request.prompt.size() : 0));
  const std::size_t tops = static_cast<std::size_t>(request.top_log2_probs) * sizeof(TopToken);
  const std::size_t replayed =
      (request.replay.size() + request.drawn.size()) * sizeof(request.replay.front());
  const std::size_t windows = samples * RecentTokens::bytes(request.window) +
                              request.recent.size() * sizeof(request.recent.front());
  const std::int64_t counted = request.sampling.penalty_window;
  const std::size_t counts =
      counted == 0 ? 0 : samples * RecentCounts::bytes(counted, transformer.config().vocab_size);
  return drafter_bytes + replayed + windows + counts +
         particle_bytes(transformer.config(), request) +
         std::min(values, outbox) * (kOutboxTokenBytes + tops);
}

// Bytes that the request itself holds until it is over.
std::size_t request_bytes(const GenerationRequest& request) {
  std::size_t bytes =
      request.prompt.size() * sizeof(request.prompt.front()) +
      request.given.size() * sizeof(request.given.front()) +
      request.sampling.logit_bias.size() * sizeof(request.sampling.logit_bias.front());
  for (const std::string& text : request.stop.strings) bytes += text.size();
  return kRequestBytes + bytes;
}

// The first position of its sequence whose token is known.
std::int64_t base_of(const GenerationTarget& target) {
  if (target.initial != nullptr) return target.initial->image.base;
  const SessionHistory* const history = target.lease ? target.lease.history() : nullptr;
  return history == nullptr ? 0 : history->base();
}

// The position of the target's sequence.
SequencePosition position_of(GenerationTarget& target, const GenerationRequest& request) {
  if (!target.lease) {
    const ModelConfig& config = target.model->transformer->config();
    const std::int64_t seen = target.initial == nullptr ? 0 : target.initial->image.position;
    return {seen, /*has_pending=*/seen > 0, request.window > 0 ? 0 : config.max_tokens()};
  }
  const std::int64_t num_tokens = target.lease.num_tokens();
  return {num_tokens, /*has_pending=*/num_tokens > 0, target.lease.max_tokens()};
}

// An empty sequence takes the image's state, if it has one; the rest of its tokens has to be read
// again.
void begin_with(const SessionImage& image, const Transformer& model, SequenceState& sequence,
                GenerationRequest& request) {
  if (!image.state.empty()) {
    StateByteReader reader(image.state);
    sequence.load(reader);
  }
  const auto end = image.tokens.end() - (image.position - sequence.next_position());
  if (const std::int64_t recent = request.recent_wanted(); recent > 0) {
    request.recent.assign(end - std::min<std::int64_t>(end - image.tokens.begin(), recent), end);
  }
  if (end == image.tokens.end()) return;
  request.replay.assign(end, image.tokens.end());
  SessionHistory history({.vocab_size = model.config().vocab_size,
                          .tokenizer = model.tokenizer(),
                          .max_tokens = image.position});
  if (image.base > 0) {
    history.begin_at(image.base, image.base_digest, sequence.generated_tail);
  }
  history.append(image);
  request.replay_tail = history.tail_at(image.position);
}

// The steps from a target to a request that the scheduler takes; each fills more of `out`.
class Preparation {
 public:
  // All outlive it. prompt: that of `params`, or another.
  Preparation(const ServiceContext& context, const Owner& caller, const api::GenerateParams& params,
              const api::Values& prompt, GenerationTarget target, PreparedGeneration& out)
      : context_(context),
        caller_(caller),
        params_(params),
        prompt_(prompt),
        target_(std::move(target)),
        model_(*target_.model),
        out_(out),
        request_(out.checked.request) {
    out_.model = target_.model;  // also of a request that is refused
  }

  // Prepares the request. REQUIRES: called once.
  grpc::Status run(std::optional<TimePoint> deadline) {
    grpc::Status status = validate();
    if (status.ok()) status = open();
    if (!status.ok() || out_.past != nullptr) return status;
    status = place();
    SharedAdapter adapter;
    if (status.ok()) status = find_adapter(adapter);
    if (!status.ok()) return status;
    add_replay();
    status = admit(adapter);
    if (status.ok()) status = begin();
    if (!status.ok()) return status;
    set_deadline(deadline);
    out_.lease = std::move(target_.lease);
    return status;
  }

 private:
  // The fields, and what the session or the initial state allows.
  grpc::Status validate() {
    Violations violations;
    std::optional<std::int64_t> session_window;
    if (target_.lease) session_window = target_.lease.window();
    const SessionImage* const initial =
        target_.initial == nullptr ? nullptr : &target_.initial->image;
    begins_ = target_.lease ? target_.lease.num_tokens() == 0 : initial == nullptr;
    out_.checked =
        check_generate(params_, prompt_, model_, session_window, initial, begins_, violations);
    terms_ = check_call_terms(params_, &prompt_ == &params_.prompt ? nullptr : &prompt_,
                              target_.lease, violations);
    if (!violations.empty()) return violations.status();
    return initial == nullptr ? grpc::Status::OK : check_window_of_state(request_.window, *initial);
  }

  // Opens the call on a session that outlives the process: new, resumed, or one that has ended.
  grpc::Status open() {
    if (!target_.lease) return grpc::Status::OK;
    const std::string id = target_.lease.session_id();
    const SessionRefusal refusal = target_.lease.durability() == Durability::kNone
                                       ? check_expected_position(terms_, target_.lease.num_tokens())
                                       : context_.persistent_sessions->open_call(
                                             target_.lease, target_.model, terms_, opened_);
    out_.past = std::move(opened_.past);
    return store_refusal(refusal, context_.sessions.options(), id, caller_);
  }

  // The prompt and the given tokens at the position where the sequence stands.
  grpc::Status place() {
    at_ = position_of(target_, request_);
    stands_at_ = at_.num_tokens;
    if (opened_.call != nullptr) {
      at_ = {opened_.start, /*has_pending=*/opened_.start > 0, at_.max_tokens};
      // A call that is run again begins where it began.
      if (prompt_.has_text() && begins_ != (opened_.start == 0)) {
        request_.prompt = encode_prompt(params_, prompt_.bytes, *model_.transformer->tokenizer(),
                                        /*begins=*/opened_.start == 0);
      }
    }
    const std::string& subject = target_.lease ? target_.lease.session_id() : model_.name;
    grpc::Status placed = check_position(at_, model_, subject, out_.checked);
    if (!placed.ok()) return placed;
    return check_penalty_window(request_.sampling.penalty_window, base_of(target_), stands_at_);
  }

  grpc::Status find_adapter(SharedAdapter& adapter) const {
    if (target_.lease) return check_session_adapter(params_.adapter, target_.lease, model_);
    return target_.initial == nullptr ? resolve_adapter(params_.adapter, model_, &adapter)
                                      : resolve_adapter(target_.initial->image, model_, &adapter);
  }

  // Tokens that the sequence lacks, and those that a resumed call had after its prompt.
  void add_replay() {
    if (target_.lease) {
      Replay replay = target_.lease.replay(request_.recent_wanted());
      request_.replay = std::move(replay.tokens);
      request_.replay_tail = std::move(replay.tail);
      request_.recent = std::move(replay.recent);
      request_.numerics_changed = target_.lease.is_foreign();
    }
    prompt_tokens_ = prompt_tokens_of(at_, model_, request_);
    const auto prompt_left =
        std::max<std::int64_t>(at_.num_tokens + prompt_tokens_ - stands_at_, 0);
    const std::vector<std::int32_t>& had = opened_.tokens;
    if (static_cast<std::int64_t>(had.size()) > prompt_left) {
      request_.drawn.assign(had.begin() + prompt_left, had.end());
    }
    opened_.tokens = {};
  }

  // Admits the memory of the request, and of its call on a session or one-shot sequences.
  grpc::Status admit(const SharedAdapter& adapter) {
    grpc::Status charged =
        request_memory_refusal(out_.memory.add(request_bytes(request_)), caller_, "prompt");
    if (!charged.ok()) return charged;
    if (target_.lease) {
      std::size_t extra_bytes = call_bytes(context_, model_, request_);
      if (opened_.call != nullptr) extra_bytes += opened_.call->checkpoint_bytes(request_);
      target_.lease.hold(extra_bytes);
      return grpc::Status::OK;
    }
    SessionManager::LeaseResult leased = lease_one_shot(adapter);
    if (shorten(leased.refusal)) leased = lease_one_shot(adapter);
    if (leased.refusal) {
      return store_refusal(leased.refusal, context_.sessions.options(), /*session_id=*/"", caller_);
    }
    target_.lease = std::move(leased.lease);
    if (target_.lease.waits_for_memory()) {
      spdlog::info(
          "a request for model {} waits for memory: {} bytes of --session-memory are free, "
          "{} wait before it",
          model_.name, context_.sessions.free_bytes(), context_.sessions.waiting().waiting);
      if (target_.initial == nullptr) return grpc::Status::OK;
      request_.begin_with = [initial = target_.initial, model = model_.transformer](
                                SequenceState& sequence, GenerationRequest& request) {
        begin_with(initial->image, *model, sequence, request);
      };
    } else if (target_.initial != nullptr) {
      begin_with(target_.initial->image, *model_.transformer, target_.lease.sequence(), request_);
    }
    return grpc::Status::OK;
  }

  SessionManager::LeaseResult lease_one_shot(const SharedAdapter& adapter) {
    return context_.sessions.lease_one_shot(
        model_.name, model_.transformer, tokens_needed(at_, out_.checked), request_.num_sequences(),
        caller_, call_bytes(context_, model_, request_), adapter, /*may_wait=*/true);
  }

  // Asks for as many new tokens as there is memory for, where their number is a default and more
  // never fit. Returns whether that are fewer.
  bool shorten(const SessionRefusal& refusal) {
    const bool is_default = !out_.checked.max_new || params_.shortens_answer;
    if (refusal.error != SessionError::kTooLarge || !is_default) return false;
    const std::int64_t known = tokens_needed(at_, out_.checked) - request_.max_new_tokens;
    const std::int64_t fit = refusal.highest - known;
    const auto least = std::max<std::int64_t>(request_.stop.min_tokens, 1);
    if (fit < least || fit >= request_.max_new_tokens) return false;
    request_.max_new_tokens = fit;
    return true;
  }

  // The seed is known, and a durable call begins with it.
  grpc::Status begin() {
    if (!out_.checked.has_seed) request_.seed = opened_.seed.value_or(random_seed());
    if (opened_.call == nullptr) return grpc::Status::OK;
    const SessionRefusal refusal = opened_.call->begin(target_.lease, request_, prompt_tokens_);
    if (!refusal) out_.durable = std::move(opened_.call);
    return store_refusal(refusal, context_.sessions.options(), target_.lease.session_id(), caller_);
  }

  void set_deadline(std::optional<TimePoint> deadline) {
    request_.deadline = deadline;
    out_.deadline_is_calls = deadline.has_value();
    if (!out_.checked.time_limit) return;
    const TimePoint limit =
        context_.clock.now() + std::chrono::duration_cast<Duration>(*out_.checked.time_limit);
    if (deadline && *deadline <= limit) return;
    request_.deadline = limit;
    out_.deadline_is_calls = false;
  }

  const ServiceContext& context_;
  const Owner& caller_;
  const api::GenerateParams& params_;
  const api::Values& prompt_;
  GenerationTarget target_;
  const ServedModel& model_;
  PreparedGeneration& out_;
  GenerationRequest& request_;
  bool begins_ = false;  // the sequence has no tokens yet
  IdempotencyKey terms_;
  PersistentSessions::OpenedCall opened_;
  SequencePosition at_;         // where the call begins
  std::int64_t stands_at_ = 0;  // tokens that the sequence has; more where the call is resumed
  std::int64_t prompt_tokens_ = 0;
};

}  // namespace

grpc::Status charge_kept_answer(RpcCall& call, const CallScope& scope,
                                const PreparedGeneration& prepared, const char* field) {
  KeptAnswer* const kept = call.kept_answer();
  if (kept == nullptr) return grpc::Status::OK;
  const GenerationRequest& request = prepared.checked.request;
  const Transformer& transformer = *prepared.model->transformer;
  // An id as text, and a blank.
  constexpr std::size_t kIdBytes = 12;
  const std::size_t longest = transformer.tokenizer() == nullptr
                                  ? kIdBytes
                                  : std::max(transformer.tokenizer()->longest(), kIdBytes);
  const std::size_t echoed =
      request.echo_prompt ? std::max(request.prompt.size(), kept->prompt_tokens) : 0;
  // Each of them is within 10^6, and so are their products within 64 bits.
  const std::size_t tokens = static_cast<std::size_t>(kept->answers) *
                             static_cast<std::size_t>(request.num_samples) *
                             (static_cast<std::size_t>(request.max_new_tokens) + echoed);
  // A text grows by doubling; an answer that reaches kMaxMessageBytes ends.
  std::size_t bytes = tokens * 2 * longest;
  if (request.log2_probs) {
    bytes += tokens * kKeptTokenBytes +
             TokenRecord::most_bytes(tokens, static_cast<std::size_t>(request.top_log2_probs),
                                     static_cast<std::size_t>(transformer.config().vocab_size));
  }
  bytes = std::min(bytes, 2 * kMaxMessageBytes);
  kept->memory = scope.charge();
  return request_memory_refusal(kept->memory.add(bytes), scope.caller().name, field);
}

std::optional<TimePoint> call_deadline(const RpcCall& call, const Clock& clock) {
  const auto deadline = call.deadline();
  if (!deadline) return std::nullopt;
  const auto left = *deadline - std::chrono::system_clock::now();
  return clock.now() + std::chrono::duration_cast<Duration>(left);
}

SessionRefusal lease_session(const ServiceContext& context, const std::string& session_id,
                             const Owner& caller, GenerationTarget& target) {
  const SessionRefusal refusal =
      take_lease(context,
                 context.persistent_sessions == nullptr
                     ? context.sessions.lease(session_id, caller)
                     : context.persistent_sessions->load_and_lease(session_id, caller),
                 target);
  if (!target.absent) find_absent_model(refusal, session_id, caller, context, target.absent);
  return refusal;
}

grpc::Status find_target(const ServiceContext& context, const Owner& caller,
                         const api::GenerateParams& params, GenerationTarget& target) {
  grpc::Status status;
  if (params.session_id.empty()) {
    if (!params.initial_state.empty()) {
      status = resolve_state(params.initial_state, caller, meant_model(params.model, context),
                             context.states, &target.initial);
      if (!status.ok()) return status;
    }
    target.model = use_model(target.initial == nullptr ? params.model : target.initial->image.model,
                             context, target.absent, &status);
    if (target.model == nullptr || target.initial == nullptr) return status;
    return check_state(*target.initial, *target.model, params.adapter);
  }
  if (!params.initial_state.empty()) {
    return invalid_argument(
        {{"initial_state", "is for calls without a session: a session has its own state"}});
  }
  if (const auto refusal = lease_session(context, params.session_id, caller, target)) {
    return store_refusal(refusal, context.sessions.options(), params.session_id, caller);
  }
  const std::string& name = target.model->name;
  const std::string meant = meant_model(params.model, context);
  if (meant.empty() || meant == name) return status;
  if (status = check_model_known(meant, context); !status.ok()) return status;
  return invalid_argument(
      {{"model", "'" + clip(params.model) + "' is not the session's model, '" + clip(name) + "'"}});
}

grpc::Status prepare_generation(const ServiceContext& context, const Owner& caller,
                                const api::GenerateParams& params, const api::Values& prompt,
                                std::optional<TimePoint> deadline, GenerationTarget target,
                                PreparedGeneration& out) {
  return Preparation(context, caller, params, prompt, std::move(target), out).run(deadline);
}

}  // namespace lintel

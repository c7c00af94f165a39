// SPDX-License-Identifier: Apache-2.0
#include "server/api/prepare_generation.h"

#include <algorithm>
#include <span>
#include <utility>

#include "model/core/state_bytes.h"
#include "server/api/lookup.h"
#include "server/api/refusals.h"
#include "server/api/request_checks.h"
#include "server/core/random_bytes.h"
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

// Of a token in an outbox, its entry and the allocator's share of what it points at.
constexpr std::size_t kOutboxTokenBytes = 64;

std::uint64_t random_seed() {
  std::uint64_t seed = 0;
  fill_with_random(std::as_writable_bytes(std::span(&seed, 1)));
  return seed;
}

// What was leased, and the model that it continues with.
SessionRefusal take_lease(const ServiceContext& context, SessionManager::LeaseResult leased,
                          GenerationTarget& target) {
  if (leased.refusal) return leased.refusal;
  const Transformer& transformer = leased.lease.transformer();
  if (target.model == nullptr || target.model->transformer.get() != &transformer) {
    target.model = context.models.find(leased.lease.model(), &transformer);
  }
  if (target.model == nullptr) return {SessionError::kUnloaded};
  target.lease = std::move(leased.lease);
  return {};
}

// The session that a request names, whose model has to be the one it names, or that model.
grpc::Status find_target(const ServiceContext& context, const Owner& caller,
                         const v1::GenerateRequest& wire, GenerationTarget& target) {
  grpc::Status status;
  if (wire.session_id().empty()) {
    if (!wire.initial_state().empty()) {
      status = resolve_state(wire.initial_state(), caller, wire.model(), context.states,
                             &target.initial);
      if (!status.ok()) return status;
    }
    target.model =
        resolve_model(target.initial == nullptr ? wire.model() : target.initial->image.model,
                      context.models, &status);
    if (target.model == nullptr || target.initial == nullptr) return status;
    return check_state(*target.initial, *target.model, wire.adapter());
  }
  if (!wire.initial_state().empty()) {
    return invalid_argument(
        {{"initial_state", "is for calls without a session: a session has its own state"}});
  }
  if (const auto refusal = lease_session(context, wire.session_id(), caller, target)) {
    return store_refusal(refusal, context.store.options(), wire.session_id(), caller);
  }
  const std::string& name = target.model->name;
  if (wire.model().empty() || wire.model() == name) return status;
  if (resolve_model(wire.model(), context.models, &status) == nullptr) return status;
  return invalid_argument(
      {{"model", "'" + clip(wire.model()) + "' is not the session's model, '" + clip(name) + "'"}});
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

// What a call holds in addition to its sequences: tables of draft tokens, what its session's
// sequence lacks, what a window restarts from, what penalties count, what particles have drawn, and
// the tokens that wait for a slow client.
std::size_t call_bytes(const ServiceContext& context, const ServedModel& model,
                       const GenerationRequest& request) {
  const Transformer& transformer = *model.transformer;
  const auto samples = static_cast<std::size_t>(request.num_sequences());
  const bool drafts = request.max_new_tokens > 0 && !request.uses_particles() &&
                      uses_drafts(model.scheduler->options().speculation, transformer.recomputes());
  const std::size_t drafter_bytes = drafts ? samples * Drafter::bytes(transformer.config()) : 0;
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

// The first position of its sequence whose token is known.
std::int64_t base_of(const GenerationTarget& target) {
  if (target.initial != nullptr) return target.initial->image.base;
  const SessionHistory* const history = target.lease ? target.lease.history() : nullptr;
  return history == nullptr ? 0 : history->base();
}

// Where the sequence stands that the target is about.
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
void begin_with(const SessionImage& image, const ModelConfig& config, SequenceState& sequence,
                GenerationRequest& request) {
  if (!image.state.empty()) {
    StateByteReader reader(image.state);
    sequence.load(reader);
  }
  const auto end = image.values.end() - (image.position - sequence.next_position());
  if (const std::int64_t recent = request.recent_wanted(); recent > 0) {
    request.recent.assign(end - std::min<std::int64_t>(end - image.values.begin(), recent), end);
  }
  if (end == image.values.end()) return;
  request.replay.assign(end, image.values.end());
  SessionHistory history({.vocab_size = config.vocab_size,
                          .is_bytes = config.modality == ModalityKind::kBytes,
                          .max_tokens = image.position});
  if (image.base > 0) {
    history.begin_at(image.base, image.base_digest, sequence.generated_tail);
  }
  history.append(image);
  request.replay_tail = history.tail_at(image.position);
}

// What a call on a session that outlives the process is to it: new, or run again.
grpc::Status open_call(const ServiceContext& context, const Owner& caller,
                       const IdempotencyKey& terms, GenerationTarget& target,
                       PersistentSessions::OpenedCall& opened) {
  const std::string id = target.lease.session_id();
  const SessionRefusal refusal =
      target.lease.durability() == Durability::kNone
          ? check_expected_position(terms, target.lease.num_tokens())
          : context.durable->open_call(target.lease, target.model, terms, opened);
  return store_refusal(refusal, context.store.options(), id, caller);
}

// The tokens that a call had when it was run, but for its prompt's, of which so many are left.
void take_drawn(std::vector<std::int32_t> values, std::int64_t prompt_tokens,
                GenerationRequest& request) {
  prompt_tokens = std::max<std::int64_t>(prompt_tokens, 0);
  if (static_cast<std::int64_t>(values.size()) <= prompt_tokens) return;
  request.drawn.assign(values.begin() + prompt_tokens, values.end());
}

grpc::Status prepare(const ServiceContext& context, const Owner& caller,
                     const v1::GenerateRequest& wire,
                     std::optional<std::vector<std::int32_t>> prompt,
                     std::optional<TimePoint> deadline, GenerationTarget target,
                     PreparedGeneration& out) {
  const ServedModel& model = *target.model;
  out.model = target.model;  // also of a request that is refused for something else
  Violations violations;
  std::optional<std::int64_t> session_window;
  if (target.lease) session_window = target.lease.window();
  const bool has_other_prompt = prompt.has_value();
  CheckedGenerate checked =
      check_generate(wire, std::move(prompt), model, session_window,
                     target.initial == nullptr ? nullptr : &target.initial->image, violations);
  const IdempotencyKey terms = check_call_terms(
      wire, has_other_prompt ? &checked.request.prompt : nullptr, target.lease, violations);
  if (!violations.empty()) return violations.status();
  GenerationRequest& request = checked.request;

  if (target.initial != nullptr) {
    grpc::Status whole = check_window_of_state(request.window, target.initial->image);
    if (!whole.ok()) return whole;
  }
  PersistentSessions::OpenedCall opened;
  if (target.lease) {
    grpc::Status is_open = open_call(context, caller, terms, target, opened);
    if (!is_open.ok()) return is_open;
    if (opened.past) {
      out.past = std::move(opened.past);
      out.checked = std::move(checked);
      return grpc::Status::OK;
    }
  }
  SequencePosition at = position_of(target, request);
  const std::int64_t stands_at = at.num_tokens;
  if (opened.call != nullptr) at = {opened.start, /*has_pending=*/opened.start > 0, at.max_tokens};
  const std::string& subject = target.lease ? target.lease.session_id() : model.name;
  if (grpc::Status placed = check_position(at, model, subject, checked); !placed.ok()) {
    return placed;
  }
  if (grpc::Status counted =
          check_penalty_window(request.sampling.penalty_window, base_of(target), stands_at);
      !counted.ok()) {
    return counted;
  }
  SharedAdapter adapter;
  const grpc::Status named =
      target.lease                ? check_session_adapter(wire.adapter(), target.lease, model)
      : target.initial == nullptr ? resolve_adapter(wire.adapter(), model, &adapter)
                                  : resolve_adapter(target.initial->image, model, &adapter);
  if (!named.ok()) return named;
  if (target.lease) {
    Replay replay = target.lease.replay(request.recent_wanted());
    request.replay = std::move(replay.values);
    request.replay_tail = std::move(replay.tail);
    request.recent = std::move(replay.recent);
    request.numerics_changed = target.lease.is_foreign();
  }
  const std::int64_t prompt_tokens = prompt_tokens_of(at, model, request);
  take_drawn(std::move(opened.values), at.num_tokens + prompt_tokens - stands_at, request);
  std::size_t extra_bytes = call_bytes(context, model, request);
  if (opened.call != nullptr) extra_bytes += opened.call->checkpoint_bytes(request);
  if (target.lease) {
    target.lease.hold(extra_bytes);
  } else {
    SessionManager::LeaseResult leased = context.store.lease_one_shot(
        model.name, model.transformer, tokens_needed(at, checked), request.num_sequences(), caller,
        extra_bytes, std::move(adapter));
    if (leased.refusal) {
      return store_refusal(leased.refusal, context.store.options(), /*session_id=*/"", caller);
    }
    target.lease = std::move(leased.lease);
    if (target.initial != nullptr) {
      begin_with(target.initial->image, model.transformer->config(), target.lease.sequence(),
                 request);
    }
  }

  if (!checked.has_seed) request.seed = opened.seed.value_or(random_seed());
  if (opened.call != nullptr) {
    const SessionRefusal refusal = opened.call->begin(target.lease, request, prompt_tokens);
    if (refusal) {
      return store_refusal(refusal, context.store.options(), target.lease.session_id(), caller);
    }
    out.durable = std::move(opened.call);
  }
  request.deadline = deadline;
  out.deadline_is_calls = request.deadline.has_value();
  if (checked.time_limit) {
    const TimePoint limit =
        context.clock.now() + std::chrono::duration_cast<Duration>(*checked.time_limit);
    if (!request.deadline || limit < *request.deadline) {
      request.deadline = limit;
      out.deadline_is_calls = false;
    }
  }

  out.checked = std::move(checked);
  out.lease = std::move(target.lease);
  return grpc::Status::OK;
}

}  // namespace

std::optional<TimePoint> call_deadline(const RpcCall& call, const Clock& clock) {
  const auto deadline = call.deadline();
  if (!deadline) return std::nullopt;
  const auto left = *deadline - std::chrono::system_clock::now();
  return clock.now() + std::chrono::duration_cast<Duration>(left);
}

SessionRefusal lease_session(const ServiceContext& context, const std::string& session_id,
                             const Owner& caller, GenerationTarget& target) {
  return take_lease(context,
                    context.durable == nullptr
                        ? context.store.lease(session_id, caller)
                        : context.durable->load_and_lease(session_id, caller),
                    target);
}

grpc::Status prepare_generation(const ServiceContext& context, const Owner& caller,
                                const v1::GenerateRequest& wire, std::optional<TimePoint> deadline,
                                PreparedGeneration& out) {
  GenerationTarget target;
  if (grpc::Status found = find_target(context, caller, wire, target); !found.ok()) return found;
  return prepare(context, caller, wire, std::nullopt, deadline, std::move(target), out);
}

grpc::Status prepare_generation(const ServiceContext& context, const Owner& caller,
                                const v1::GenerateRequest& wire, std::vector<std::int32_t> prompt,
                                std::optional<TimePoint> deadline, GenerationTarget target,
                                PreparedGeneration& out) {
  return prepare(context, caller, wire, std::move(prompt), deadline, std::move(target), out);
}

}  // namespace lintel

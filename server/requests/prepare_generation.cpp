#include "server/requests/prepare_generation.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "server/call/status.h"
#include "server/generation/drafter.h"
#include "server/generation/speculation.h"
#include "server/requests/resolve_model.h"
#include "server/stream/refusals.h"

namespace lintel {
namespace {

// Of a value in an outbox, its entry and the allocator's share of what it points at.
constexpr std::size_t kOutboxValueBytes = 64;

std::uint64_t random_seed() {
  std::uint64_t seed = 0;
  ssize_t n = 0;
  do {
    n = getrandom(&seed, sizeof(seed), 0);
  } while (n < 0 && errno == EINTR);
  if (n != sizeof(seed)) throw std::system_error(errno, std::generic_category(), "getrandom");
  return seed;
}

// The model a request means: the session's, which a named one has to agree with.
grpc::Status find_model(const ServiceContext& context, const v1::GenerateRequest& wire,
                        const Owner& caller, SharedModel& model) {
  grpc::Status status;
  if (wire.session_id().empty()) {
    if (model == nullptr) model = resolve_model(wire.model(), context.models, &status);
    return status;
  }
  const std::optional<SessionInfo> session = context.store.get(wire.session_id(), caller);
  if (!session) {
    return store_refusal(context.store.absence(wire.session_id(), caller), 0, 0,
                         context.store.options(), wire.session_id(), caller);
  }
  if (!wire.model().empty() && wire.model() != session->model) {
    if (resolve_model(wire.model(), context.models, &status) == nullptr) return status;
    return invalid_argument(
        {{"model", "'" + clip(wire.model()) + "' is not the session's model, '" +
                       clip(session->model) + "'"}});
  }
  model = context.models.find(session->model, session->transformer.get());
  if (model == nullptr) {  // it went between the two questions
    return store_refusal(SessionStore::Error::kUnloaded, 0, 0, context.store.options(),
                         wire.session_id(), caller);
  }
  return status;
}

// What a call holds beside its sequences: what its samples guess from, and the values that wait for
// a client that is slow.
std::size_t call_bytes(const ServiceContext& context, const ServedModel& model,
                       const GenerationRequest& request) {
  const Transformer& transformer = *model.transformer;
  const auto samples = static_cast<std::size_t>(request.num_samples);
  const bool drafts = request.max_new_tokens > 0 &&
                      guesses(model.scheduler->options().speculation, transformer.recomputes());
  const std::size_t guessing = drafts ? samples * Drafter::bytes(transformer.config()) : 0;
  const auto outbox = static_cast<std::size_t>(context.streaming.outbox_tokens);
  const std::size_t values = samples * (static_cast<std::size_t>(request.max_new_tokens) +
                                        (request.echo_prompt ? request.prompt.size() : 0));
  const std::size_t tops = static_cast<std::size_t>(request.top_log2_probs) * sizeof(TopValue);
  return guessing + std::min(values, outbox) * (kOutboxValueBytes + tops);
}

}  // namespace

// The call's deadline on the scheduler's clock; none when it is too far to matter.
std::optional<TimePoint> call_deadline(const grpc::CallbackServerContext& call,
                                       const Clock& clock) {
  // In seconds first: gRPC's own conversion overflows for a deadline after 2262, which is then
  // past.
  const gpr_timespec deadline = gpr_convert_clock_type(call.raw_deadline(), GPR_CLOCK_REALTIME);
  const std::int64_t now = std::chrono::duration_cast<std::chrono::seconds>(
                               std::chrono::system_clock::now().time_since_epoch())
                               .count();
  constexpr std::int64_t kYear = 365 * 24 * 3600;
  if (deadline.tv_sec > now + kYear) return std::nullopt;
  const auto left = call.deadline() - std::chrono::system_clock::now();
  return clock.now() + std::chrono::duration_cast<Duration>(left);
}

grpc::Status prepare_generation(const ServiceContext& context, const Owner& caller,
                                const v1::GenerateRequest& wire, std::optional<TimePoint> deadline,
                                PreparedGeneration& out, const SharedModel& chosen) {
  SharedModel model = chosen;
  if (grpc::Status found = find_model(context, wire, caller, model); !found.ok()) return found;
  out.model = model;  // also of a request that is refused for something else
  const ModelConfig& config = model->transformer->config();

  Violations violations;
  CheckedGenerate checked =
      check_generate(wire, config, model->transformer->head(), model->limits, violations);
  if (!violations.empty()) return violations.status();
  GenerationRequest& request = checked.request;

  SequencePosition at;
  SessionStore::LeaseResult leased;
  const std::string& session_id = wire.session_id();
  if (session_id.empty()) {
    grpc::Status placed = check_position(at, config, model->limits, model->name, checked);
    if (!placed.ok()) return placed;
    leased = context.store.lease_one_shot(model->name, model->transformer,
                                          values_needed(at, checked), request.num_samples, caller,
                                          call_bytes(context, *model, request));
  } else {
    leased = context.store.lease(session_id, caller, call_bytes(context, *model, request));
  }
  if (leased.error != SessionStore::Error::kNone) {
    return store_refusal(leased.error, leased.bytes_needed, leased.bytes_free,
                         context.store.options(), session_id, caller);
  }
  if (!session_id.empty()) {
    const SequenceState& sequence = leased.lease.sequence();
    at = {sequence.num_values(), sequence.pending.has_value(), leased.lease.max_values()};
    grpc::Status placed = check_position(at, config, model->limits, session_id, checked);
    if (!placed.ok()) return placed;
  }

  if (!checked.has_seed) request.seed = random_seed();
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
  out.lease = std::move(leased.lease);
  return grpc::Status::OK;
}

}  // namespace lintel

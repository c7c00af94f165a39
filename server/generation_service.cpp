#include "server/generation_service.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "server/generate_stream.h"
#include "server/request_checks.h"
#include "server/score_stream.h"
#include "server/service_call.h"
#include "server/status.h"

namespace lintel {
namespace {

std::uint64_t random_seed() {
  std::uint64_t seed = 0;
  ssize_t n = 0;
  do {
    n = getrandom(&seed, sizeof(seed), 0);
  } while (n < 0 && errno == EINTR);
  if (n != sizeof(seed)) throw std::system_error(errno, std::generic_category(), "getrandom");
  return seed;
}

// A call that is over before it began.
template <typename Response>
class RefusedCall final : public grpc::ServerWriteReactor<Response> {
 public:
  explicit RefusedCall(const grpc::Status& status) { this->Finish(status); }
  void OnDone() override { delete this; }
};

// The call's deadline on the scheduler's clock; none when it is too far to matter.
std::optional<TimePoint> call_deadline(const grpc::CallbackServerContext& call,
                                       const Clock& clock) {
  const auto left = call.deadline() - std::chrono::system_clock::now();
  if (left > std::chrono::hours(24 * 365)) return std::nullopt;
  return clock.now() + std::chrono::duration_cast<Duration>(left);
}

}  // namespace

grpc::Status GenerationService::find_model(const v1::GenerateRequest& wire, const Owner& caller,
                                           const ServedModel** model) const {
  grpc::Status status;
  if (wire.session_id().empty()) {
    *model = resolve_model(wire.model(), context_.models, &status);
    return status;
  }
  const std::optional<SessionInfo> session = context_.store.get(wire.session_id(), caller);
  if (!session) {
    return store_refusal(SessionStore::Error::kNotFound, 0, 0, context_.store.options(),
                         wire.session_id(), caller);
  }
  if (!wire.model().empty() && wire.model() != session->model) {
    if (resolve_model(wire.model(), context_.models, &status) == nullptr) return status;
    return invalid_argument(
        {{"model", "'" + clip(wire.model()) + "' is not the session's model, '" +
                       clip(session->model) + "'"}});
  }
  *model = context_.models.find(session->model);
  return status;
}

grpc::Status GenerationService::generate(const grpc::CallbackServerContext& call,
                                         const v1::GenerateRequest& wire,
                                         std::unique_ptr<CallScope>& scope,
                                         grpc::ServerWriteReactor<v1::GenerateResponse>** reactor) {
  const Owner& caller = scope->caller().name;
  const ServedModel* model = nullptr;
  if (grpc::Status found = find_model(wire, caller, &model); !found.ok()) return found;
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
    leased = context_.store.lease_one_shot(model->name, model->transformer,
                                           values_needed(at, checked), request.num_samples, caller);
  } else {
    leased = context_.store.lease(session_id, caller);
  }
  if (leased.error != SessionStore::Error::kNone) {
    return store_refusal(leased.error, leased.bytes_needed, leased.bytes_free,
                         context_.store.options(), session_id, caller);
  }
  if (!session_id.empty()) {
    const SequenceState& sequence = leased.lease.sequence();
    at = {sequence.num_values(), sequence.pending.has_value(), leased.lease.max_values()};
    grpc::Status placed = check_position(at, config, model->limits, session_id, checked);
    if (!placed.ok()) return placed;
  }

  const grpc::Status charged =
      scope->charge_tokens(static_cast<std::int64_t>(request.prompt.size()) +
                           request.max_new_tokens * request.num_samples);
  if (!charged.ok()) return charged;

  if (!checked.has_seed) request.seed = random_seed();
  request.deadline = call_deadline(call, context_.clock);
  bool deadline_is_calls = request.deadline.has_value();
  if (checked.time_limit) {
    const TimePoint limit =
        context_.clock.now() + std::chrono::duration_cast<Duration>(*checked.time_limit);
    if (!request.deadline || limit < *request.deadline) {
      request.deadline = limit;
      deadline_is_calls = false;
    }
  }

  GenerateStream::Options options;
  options.chunk_interval = context_.options.streaming.chunk_interval_ms;
  options.outbox_tokens = context_.options.streaming.outbox_tokens;
  options.max_tokens_per_message = checked.max_tokens_per_message;
  options.num_samples = request.num_samples;
  options.top_log2_probs = request.top_log2_probs;
  options.deadline_is_calls = deadline_is_calls;
  options.model = model->name;
  options.session_id = session_id;
  const auto stream = std::make_shared<GenerateStream>(*model->scheduler, context_.clock,
                                                       context_.calls, std::move(options));
  if (!context_.calls.enter()) return shutting_down();
  *reactor = stream->start(context_.calls, std::move(scope));
  // From here on the call is the stream's to finish.
  const grpc::Status submitted = guarded([&]() -> grpc::Status {
    const Scheduler::SubmitResult result =
        model->scheduler->submit(std::move(request), std::move(leased.lease), stream);
    if (result.error == Scheduler::SubmitError::kDraining) return shutting_down();
    if (result.error == Scheduler::SubmitError::kQueueFull) {
      return queue_full(context_.options.scheduling.max_queued_requests);
    }
    stream->attach(result.handle);
    return grpc::Status::OK;
  });
  if (!submitted.ok()) stream->refuse(submitted);
  return grpc::Status::OK;
}

grpc::Status GenerationService::score(const grpc::CallbackServerContext& call,
                                      const v1::ScoreRequest& wire,
                                      std::unique_ptr<CallScope>& scope,
                                      grpc::ServerWriteReactor<v1::ScoreResponse>** reactor) {
  grpc::Status status;
  const ServedModel* const model = resolve_model(wire.model(), context_.models, &status);
  if (model == nullptr) return status;
  Violations violations;
  std::vector<GenerationRequest> sequences =
      check_score(wire, model->transformer->config(), model->limits, violations);
  if (!violations.empty()) return violations.status();
  const std::optional<TimePoint> deadline = call_deadline(call, context_.clock);
  std::int64_t num_tokens = 0;
  for (GenerationRequest& sequence : sequences) {
    sequence.deadline = deadline;
    num_tokens += static_cast<std::int64_t>(sequence.prompt.size());
  }
  if (grpc::Status charged = scope->charge_tokens(num_tokens); !charged.ok()) return charged;

  const Scheduler::Options& scheduling = model->scheduler->options();
  ScoreStream::Options options;
  // Enough to fill every worker twice, and never more than half of the queue.
  const int window = std::min(2 * scheduling.max_batch_rows * std::max(scheduling.workers, 1),
                              scheduling.max_queued_requests / 2);
  options.window = static_cast<std::size_t>(std::max(window, 1));
  options.max_queued_requests = scheduling.max_queued_requests;
  options.owner = scope->caller().name;
  const auto stream =
      std::make_shared<ScoreStream>(*model, context_.store, std::move(sequences), options);
  if (!context_.calls.enter()) return shutting_down();
  *reactor = stream->start(context_.calls, std::move(scope));
  const grpc::Status begun = guarded([&] { return stream->begin(); });
  if (!begun.ok()) stream->refuse(begun);
  return grpc::Status::OK;
}

template <typename Response, typename Body>
grpc::ServerWriteReactor<Response>* GenerationService::stream(grpc::CallbackServerContext& call,
                                                              Method method, Body body) {
  auto scope = std::make_unique<CallScope>(context_.gate, call, method);
  const LogFields log_fields = scope->log_fields();  // a copy: the body may give the scope away
  const LogScope log(log_fields);
  grpc::ServerWriteReactor<Response>* reactor = nullptr;
  grpc::Status status = scope->admitted();
  if (status.ok()) {
    status = guarded([&]() -> grpc::Status {
      if (context_.calls.closed()) return shutting_down();
      if (grpc::Status entered = scope->enter_stream(); !entered.ok()) return entered;
      return body(scope, &reactor);
    });
  }
  if (reactor != nullptr) return reactor;
  scope->end(status);
  return new RefusedCall<Response>(status);
}

grpc::ServerWriteReactor<v1::GenerateResponse>* GenerationService::Generate(
    grpc::CallbackServerContext* call, const v1::GenerateRequest* request) {
  return stream<v1::GenerateResponse>(*call, Method::kGenerate, [&](auto& scope, auto** reactor) {
    return generate(*call, *request, scope, reactor);
  });
}

grpc::ServerWriteReactor<v1::ScoreResponse>* GenerationService::Score(
    grpc::CallbackServerContext* call, const v1::ScoreRequest* request) {
  return stream<v1::ScoreResponse>(*call, Method::kScore, [&](auto& scope, auto** reactor) {
    return score(*call, *request, scope, reactor);
  });
}

}  // namespace lintel

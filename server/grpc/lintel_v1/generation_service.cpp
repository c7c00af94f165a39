#include "server/grpc/lintel_v1/generation_service.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "server/api/prepare_generation.h"
#include "server/api/resolve_adapter.h"
#include "server/api/resolve_model.h"
#include "server/api/score_checks.h"
#include "server/grpc/lintel_v1/open_stream.h"

namespace lintel {

GenerationService::GenerationService(const ServiceContext& context) : context_(context) {
  serve(info_of(Method::kGenerate).name, this, &GenerationService::Generate);
  serve(info_of(Method::kScore).name, this, &GenerationService::Score);
}

grpc::Status GenerationService::generate(const grpc::CallbackServerContext& context,
                                         const v1::GenerateRequest& wire, GenerateStream& stream) {
  StreamCall& call = stream.call();
  if (grpc::Status begins = call.quota.check_tokens(); !begins.ok()) return begins;
  PreparedGeneration prepared;
  grpc::Status checked = prepare_generation(context_, call.scope.caller().name, wire,
                                            call_deadline(context, context_.clock), prepared);
  if (prepared.model != nullptr) call.scope.set_model(prepared.model->name);
  if (!checked.ok()) return checked;
  prepared.checked.request.allowance = call.quota.allowance();
  prepared.checked.request.caller = call.scope.turn_name();
  return stream.begin(std::move(prepared), context_.streaming, context_.clock);
}

grpc::Status GenerationService::score(const grpc::CallbackServerContext& context,
                                      const v1::ScoreRequest& wire, ScoreStream::Reactor& reactor) {
  StreamCall& call = reactor.call();
  grpc::Status status = call.quota.check_tokens();
  if (!status.ok()) return status;
  const SharedModel model = resolve_model(wire.model(), context_.models, &status);
  if (model == nullptr) return status;
  call.scope.set_model(model->name);
  Violations violations;
  ScoreSequences sequences =
      check_score(wire, model->transformer->config(), model->limits, violations);
  if (!violations.empty()) return violations.status();
  ScoreStream::Options options;
  status = resolve_adapter(wire.adapter(), *model, &options.adapter);
  if (!status.ok()) return status;

  const Scheduler::Options& scheduling = model->scheduler->options();
  // Enough to fill every worker twice, and never more than half of the queue.
  const int window = std::min(2 * scheduling.max_batch_rows * std::max(scheduling.workers, 1),
                              scheduling.max_queued_requests / 2);
  options.window = static_cast<std::size_t>(std::max(window, 1));
  options.held_bytes =
      sequences.values.size() * sizeof(std::int32_t) / std::max<std::size_t>(sequences.size(), 1);
  options.allowance = call.quota.allowance();
  options.owner = call.scope.caller().name;
  options.caller = call.scope.turn_name();
  options.deadline = call_deadline(context, context_.clock);
  const auto stream =
      std::make_shared<ScoreStream>(model, context_.store, std::move(sequences), options);
  reactor.run(stream);
  grpc::Status started = stream->begin();
  if (!started.ok()) reactor.run(nullptr);
  return started;
}

grpc::ServerWriteReactor<v1::GenerateResponse>* GenerationService::Generate(
    grpc::CallbackServerContext* context, const Received<v1::GenerateRequest>* request) {
  return open_stream<GenerateStream>(
      context_, *context, Method::kGenerate, *request,
      [this, context](GenerateStream& stream, const v1::GenerateRequest& wire) {
        return generate(*context, wire, stream);
      },
      [](const v1::GenerateRequest& wire) { return !wire.session_id().empty(); });
}

grpc::ServerWriteReactor<v1::ScoreResponse>* GenerationService::Score(
    grpc::CallbackServerContext* context, const Received<v1::ScoreRequest>* request) {
  return open_stream<ScoreStream::Reactor>(
      context_, *context, Method::kScore, *request,
      [&](ScoreStream::Reactor& reactor, const v1::ScoreRequest& wire) {
        return score(*context, wire, reactor);
      });
}

}  // namespace lintel

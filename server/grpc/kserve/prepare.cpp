#include "server/grpc/kserve/prepare.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "model/config/names.h"
#include "server/api/resolve_model.h"
#include "server/grpc/kserve/streamed_response.h"
#include "server/grpc/transport/status.h"
#include "server/grpc/transport/unary_call.h"

namespace lintel {
namespace {

grpc::Status prepare_rows(const ServiceContext& context, const grpc::CallbackServerContext& call,
                          GenerationTarget target, TensorRequest& request, StreamCall& stream,
                          std::vector<PreparedGeneration>& prepared) {
  if (grpc::Status begins = stream.quota.check_tokens(); !begins.ok()) return begins;
  const std::optional<TimePoint> deadline = call_deadline(call, context.clock);
  const std::shared_ptr<TokenAllowance> allowance = stream.quota.allowance();
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < request.prompts.size(); ++i) {
    PreparedGeneration& row = prepared.emplace_back();
    grpc::Status status = prepare_generation(context, stream.scope.caller().name, request.settings,
                                             std::move(request.prompts[i]), deadline,
                                             // A request that has a lease has one row.
                                             {target.model, std::move(target.lease)}, row);
    if (!status.ok()) return status;
    GenerationRequest& ready = row.checked.request;
    request.window = std::max(request.window, ready.window);
    if (row.checked.has_seed) ready.seed += i * request.num_samples;
    ready.allowance = allowance;
    ready.caller = stream.scope.turn_name();
    const auto echoed = static_cast<std::int64_t>(ready.echo_prompt ? ready.prompt.size() : 0);
    const auto answered =
        row.past ? row.past->end() - row.past->first() : echoed + ready.max_new_tokens;
    longest = std::max(longest, answered);
  }
  if (!request.streams) {
    const std::size_t bytes = most_response_bytes(request, longest);
    if (bytes > kMaxMessageBytes) {
      return invalid_argument(
          {{"parameters[max_new_tokens]",
            std::to_string(request.prompts.size() * request.num_samples) + " rows may need " +
                std::to_string(bytes) + " bytes, more than the " +
                std::to_string(kMaxMessageBytes) + " of one response"}});
    }
  }
  return grpc::Status::OK;
}

// Whether a call was refused since its sequence holds all its values.
bool is_complete(const grpc::Status& status) {
  google::rpc::Status details;
  if (status.error_code() != grpc::StatusCode::FAILED_PRECONDITION ||
      !details.ParseFromString(status.error_details())) {
    return false;
  }
  return std::ranges::any_of(details.details(), [](const auto& detail) {
    google::rpc::PreconditionFailure failure;
    return detail.UnpackTo(&failure) && failure.violations_size() > 0 &&
           failure.violations(0).type() == "SEQUENCE_COMPLETE";
  });
}

// Text is of models whose tokens are bytes.
void check_text(const TensorRequest& request, const ModelConfig& config, Violations& violations) {
  if (config.modality == ModalityKind::kBytes) return;
  const std::string why =
      std::string(" applies to models of modality bytes only; this one is of ") +
      to_string(config.modality);
  if (request.from_text) {
    violations.add("inputs", "text_input" + why);
  } else if (request.text) {
    violations.add("outputs", "text_output" + why);
  }
}

void write_head(const ServedModel& model, const inference::ModelInferRequest& wire,
                inference::ModelInferResponse& head) {
  head.set_model_name(model.name);
  head.set_model_version(std::to_string(model.version));
  head.set_id(wire.id());
}

}  // namespace

grpc::Status prepare_inference(const ServiceContext& context, ClientSequences& sequences,
                               const grpc::CallbackServerContext& call,
                               const inference::ModelInferRequest& wire, StreamCall& stream,
                               bool may_stream, PreparedInference& infer) {
  grpc::Status status;
  const SharedModel model =
      resolve_version(wire.model_name(), wire.model_version(), "model_", context.models, &status);
  if (model == nullptr) return status;
  stream.scope.set_model(model->name);
  Violations violations;
  const auto request = std::make_shared<TensorRequest>(
      read_tensor_request(wire, model->limits.max_samples, violations));
  infer.request = request;
  const bool is_text = model->transformer->config().modality == ModalityKind::kBytes;
  if (request->has_no_input && wire.outputs_size() == 0) choose_outputs(is_text, *request);
  check_text(*request, model->transformer->config(), violations);
  if (request->streams && !may_stream) {
    violations.add("parameters[stream]", "is for ModelStreamInfer: here is one response");
  }
  if (!violations.empty()) return violations.status();

  GenerationTarget target{model, {}};
  status = sequences.find(stream.scope.caller().name, *request, target, infer.sequence);
  if (!status.ok()) return status;
  request->tells_position = infer.sequence.is_stored;
  if (request->only_ends) {
    write_head(*target.model, wire, infer.head);
    infer.position = target.lease.num_values();
    target.lease = SessionLease();
    sequences.end(infer.sequence);
    return status;
  }
  status = prepare_rows(context, call, std::move(target), *request, stream, infer.rows);
  request->settings.Clear();
  request->prompts = {};  // they are in infer.rows
  if (!status.ok()) {
    infer.rows.clear();  // gives the session back
    // A sequence that is complete takes no value, but the request that ends it ends it.
    const bool is_over = is_complete(status);
    if (infer.sequence.is_new) {
      sequences.end(infer.sequence);
    } else if (is_over) {
      sequences.end_if_last(infer.sequence);
    }
    return status;
  }
  // A sequence continues with the model version that it began with.
  write_head(*infer.rows.front().model, wire, infer.head);
  return grpc::Status::OK;
}

void write_end(const PreparedInference& infer, inference::ModelInferResponse& response) {
  const TensorRequest& request = *infer.request;
  response = infer.head;
  RowValues none;
  none.position = infer.position;
  write_tensor_response(request, {none}, response);
  if (request.streams || request.marks_final) mark_final(response, true);
}

std::shared_ptr<RowGatherer> new_row_gatherer(
    ClientSequences& sequences, const PreparedInference& infer,
    inference::ModelInferResponse& response,
    std::function<void(const grpc::Status&, ValueUse used)> on_done) {
  response = infer.head;
  return std::make_shared<RowGatherer>(
      infer.request, [&sequences, request = infer.request, sequence = infer.sequence, &response,
                      on_done = std::move(on_done)](const grpc::Status& ended,
                                                    std::vector<RowValues> rows, ValueUse used) {
        sequences.end_if_last(sequence, ended.ok());
        const grpc::Status written = guarded([&] {
          if (ended.ok()) write_tensor_response(*request, rows, response);
          if (request->marks_final) mark_final(response, true);
          return ended;
        });
        on_done(written, used);
      });
}

}  // namespace lintel

// SPDX-License-Identifier: Apache-2.0
#include "server/api/kserve/service.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/status.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "inference/grpc_service.pb.h"
#include "model/config/config.h"
#include "proto/fields/field_names.h"
#include "server/api/kserve/sequences.h"
#include "server/api/kserve/unary_call.h"
#include "server/api/lookup.h"
#include "server/api/prepare_generation.h"
#include "server/api/refusals.h"
#include "server/api/request_checks.h"
#include "server/api/service_context.h"
#include "server/api/token_stream.h"
#include "server/core/mutex.h"
#include "server/models/model_registry.h"
#include "server/rpc/call_scope.h"
#include "server/rpc/rpc.h"
#include "server/rpc/status.h"
#include "server/sessions/persistence/replayed_response.h"

namespace lintel {

namespace {

// A request that is ready to run.
struct PreparedInference {
  std::shared_ptr<const TensorRequest> request;
  ClientSequence sequence;
  std::vector<PreparedGeneration> rows;  // none: the request only ended its sequence, which is done
  inference::ModelInferResponse head;    // what every response begins with
  std::int64_t position = 0;             // of a sequence that was only ended
};

grpc::Status prepare_rows(const ServiceContext& context, const RpcCall& call,
                          GenerationTarget target, TensorRequest& request, StreamCall& stream,
                          std::vector<PreparedGeneration>& prepared) {
  if (grpc::Status begins = stream.quota.check_tokens(); !begins.ok()) return begins;
  const std::optional<TimePoint> deadline = call_deadline(call, context.clock);
  const std::shared_ptr<TokenAllowance> allowance = stream.quota.allowance();
  const std::string& caller = stream.scope.caller().name;
  request.memory = std::make_shared<RequestMemory::Charge>(stream.scope.charge());
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < request.prompts.size(); ++i) {
    PreparedGeneration& row = prepared.emplace_back();
    row.memory = stream.scope.charge();
    const api::Values prompt = std::move(request.prompts[i]);
    grpc::Status status =
        prepare_generation(context, stream.scope.caller().name, request.settings, prompt, deadline,
                           // A request that has a lease has one row.
                           {target.model, std::move(target.lease)}, row);
    if (!status.ok()) return status;
    // The request's charge takes over from the row's: rows end one by one.
    const std::size_t bytes = row.memory.bytes();
    row.memory = {};
    status = request_memory_refusal(request.memory->add(bytes), caller, "inputs");
    if (!status.ok()) return status;
    GenerationRequest& ready = row.checked.request;
    request.window = std::max(request.window, ready.window);
    if (row.checked.has_seed) ready.seed += i * request.num_samples;
    ready.stop.reports_token = request.details;
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
    // Its rows, and the tensors that are made of them.
    return request_memory_refusal(request.memory->add(2 * bytes), caller,
                                  "parameters[max_new_tokens]");
  }
  return grpc::Status::OK;
}

// True if a call was refused because its sequence has all its tokens.
bool is_complete(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::FAILED_PRECONDITION &&
         read_status_details(status).precondition == "SEQUENCE_COMPLETE";
}

// A field of lintel.v1 as the request has it: a parameter, or an input of another name.
std::string member_of_inference(const std::string& field, const TensorRequest& request) {
  std::string name = api_field(&RequestField::kserve, field);
  if (name == field && !find_field(&RequestField::kserve, field)) return field;
  if (request.names_max_tokens && field == "max_new_tokens") name = "max_tokens";
  // Stop strings are an input.
  return is_of_field(field, "stop.strings") ? name : "parameters[" + name + "]";
}

bool has_text(const ServedModel& model) { return model.transformer->tokenizer() != nullptr; }

void check_text(const TensorRequest& request, Violations& violations) {
  if (request.tokenizer != nullptr) return;
  if (request.from_text) {
    violations.add("inputs", "text_input applies to models with a tokenizer only");
  } else if (request.text) {
    violations.add("outputs", "text_output applies to models with a tokenizer only");
  } else if (request.details) {
    violations.add("parameters[details]", "applies to models with a tokenizer only");
  }
}

void write_head(const ServedModel& model, const inference::ModelInferRequest& wire,
                inference::ModelInferResponse& head) {
  head.set_model_name(model.name);
  head.set_model_version(std::to_string(model.version));
  head.set_id(wire.id());
}

// Checks the request, leases the session of its sequence and fills `infer`, or says what model is
// `absent`. Only where it `may_stream` can it ask for more than one response.
grpc::Status prepare_inference(const ServiceContext& context, ClientSequences& sequences,
                               const RpcCall& call, const inference::ModelInferRequest& wire,
                               StreamCall& stream, bool may_stream, AbsentModel& absent,
                               PreparedInference& infer) {
  std::optional<std::int64_t> version;
  grpc::Status status = read_model_version(wire.model_version(), "model_version", &version);
  if (!status.ok()) return status;
  const SharedModel model =
      use_model(wire.model_name(), context, absent, &status, "model_name", version);
  if (model == nullptr) return status;
  stream.scope.set_model(model->name);
  Violations violations;
  const auto request = std::make_shared<TensorRequest>(
      read_tensor_request(wire, model->limits.max_samples, violations));
  infer.request = request;
  if (request->has_no_input && wire.outputs_size() == 0) choose_outputs(has_text(*model), *request);
  request->tokenizer = model->transformer->tokenizer();
  check_text(*request, violations);
  if (request->streams && !may_stream) {
    violations.add("parameters[stream]", "is for ModelStreamInfer: here is one response");
  }
  if (!violations.empty()) return violations.status();

  GenerationTarget target{model, {}};
  status = sequences.find(stream.scope.caller().name, *request, target, infer.sequence);
  if (target.absent) absent.name = target.absent.name;
  if (!status.ok()) return status;
  request->tells_position = infer.sequence.is_stored;
  if (request->only_ends) {
    write_head(*target.model, wire, infer.head);
    infer.position = target.lease.num_tokens();
    target.lease = SessionLease();
    sequences.end(infer.sequence);
    return status;
  }
  status = prepare_rows(context, call, std::move(target), *request, stream, infer.rows);
  request->settings = {};
  request->prompts = {};  // they are in infer.rows
  if (!status.ok()) {
    status = with_fields(
        status, [&](const std::string& field) { return member_of_inference(field, *request); });
    infer.rows.clear();  // gives the session back
    // A sequence that is complete takes no token, but the request that ends it ends it.
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

// The one response of a request without rows.
void write_end(const PreparedInference& infer, inference::ModelInferResponse& response) {
  const TensorRequest& request = *infer.request;
  response = infer.head;
  RowTokens none;
  none.position = infer.position;
  write_tensor_response(request, {none}, response);
  if (request.streams || request.marks_final) mark_final(response, true);
}

// Gathers the rows of a request for one response, which is written when they are done, before
// `on_done`; `sequences`, the response and what `on_done` needs outlive it.
std::shared_ptr<RowGatherer> new_row_gatherer(
    ClientSequences& sequences, const PreparedInference& infer,
    inference::ModelInferResponse& response,
    std::function<void(const grpc::Status&, TokenUse used)> on_done) {
  response = infer.head;
  return std::make_shared<RowGatherer>(
      infer.request, [&sequences, request = infer.request, sequence = infer.sequence, &response,
                      on_done = std::move(on_done)](const grpc::Status& ended,
                                                    std::vector<RowTokens> rows, TokenUse used) {
        sequences.end_if_last(sequence, ended.ok());
        const grpc::Status written = catch_exceptions([&] {
          if (ended.ok()) write_tensor_response(*request, rows, response);
          if (request->marks_final) mark_final(response, true);
          return ended;
        });
        on_done(written, used);
      });
}

// One ModelStreamInfer call. Reads a request, runs it, writes its response, or its tokens as they
// come, reads the next: one operation at a time, so that its members need no lock but for what a
// cancellation looks at. Between requests a drain does not wait for it. Lives from the method until
// gRPC has done with it.
class ModelStreamInferCall final : public RpcReactor, private ResponseWriter {
 public:
  // context, sequences: outlive the call.
  ModelStreamInferCall(const ServiceContext& context, ClientSequences& sequences, RpcCall& rpc)
      : context_(context),
        sequences_(sequences),
        calls_(context.calls),
        rpc_(rpc),
        call_(context.gate, rpc, Method::kModelStreamInfer),
        errors_are_statuses_(rpc.header("triton_grpc_error") == "true") {
    calls_.hold();
    grpc::Status status = catch_exceptions([&]() -> grpc::Status {
      if (!call_.scope.admitted().ok()) return call_.scope.admitted();
      if (calls_.closed()) return shutting_down();
      return call_.quota.enter();
    });
    if (status.ok()) {
      StartRead(&request_);
    } else {
      finish(std::move(status));
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) return finish(is_cancelled() ? cancelled() : grpc::Status::OK);
    active_ = ActiveCall(calls_);
    if (!active_) return finish(catch_exceptions([] { return shutting_down(); }));
    const LogScope log(call_.scope.log_fields());
    grpc::Status started = catch_exceptions([&] {
      // The task's, which ends once it runs: between its requests a stream holds nothing of them.
      inference::ModelInferRequest wire;
      id_.clear();
      asks_for_stream_ = false;
      grpc::Status read = request_.read(bounds_of(context_.gate, Method::kModelStreamInfer), wire);
      if (!read.ok()) return read;
      id_ = wire.id();
      asks_for_stream_ = wire.parameters().contains("stream");
      return start_task(serve({context_, rpc_, *this, call_.scope}, std::move(wire)), call_.scope,
                        call_.scope.charge(), std::make_shared<const LoggedRuns>(call_.scope),
                        [this](grpc::Status refused) {
                          if (!refused.ok()) respond(std::move(refused), {});
                        });
    });
    if (!started.ok()) respond(std::move(started), {});
  }

  void OnWriteDone(bool ok) override EXCLUDES(mutex_) {
    if (streamed_ && !writes_last_) {
      const std::shared_ptr<TokenStream> outbox = [&] {
        MutexLock lock(mutex_);
        return running_.outbox;
      }();
      return outbox->written(ok);
    }
    forget();
    response_ = {};  // clearing it would keep its memory
    active_.leave();
    if (!ok) return finish(cancelled());
    StartRead(&request_);
  }

  void OnCancel() override EXCLUDES(mutex_) {
    Running running;
    {
      MutexLock lock(mutex_);
      cancelled_ = true;
      running = running_;
    }
    if (running.rows != nullptr) running.rows->cancel();
    if (running.outbox != nullptr) running.outbox->gone();
  }

  void OnDone() override {
    ActiveCalls& calls = calls_;
    call_.end(status_);
    delete this;
    calls.release();
  }

 private:
  // The running part of the request: its rows, or its tokens as they come.
  struct Running {
    std::shared_ptr<RowGatherer> rows;
    std::shared_ptr<TokenStream> outbox;
  };

  // Prepares the request and begins it. Not OK, or an exception: it does not run. Else the call may
  // be gone when this returns.
  Task<grpc::Status> serve(Call call, inference::ModelInferRequest wire) {
    grpc::Status status;
    if (names_sequence(wire)) status = co_await store_thread(call);
    if (!status.ok()) co_return status;
    PreparedInference infer;
    AbsentModel absent;
    do {
      infer = {};
      status = prepare_inference(context_, sequences_, rpc_, wire, call_, /*may_stream=*/true,
                                 absent, infer);
    } while (co_await model_load(call, absent, status));
    if (!status.ok()) co_return status;
    if (infer.rows.empty()) {
      write_end(infer, *response_.mutable_infer_response());
      respond(grpc::Status::OK, {});
      co_return status;
    }
    status =
        catch_exceptions([&] { return infer.request->streams ? run_streamed(infer) : run(infer); });
    if (status.ok()) co_return status;
    infer.rows.clear();  // gives its session back
    sequences_.end_if_last(infer.sequence, /*ended_well=*/false);
    forget();
    co_return status;
  }

  // Begins what was prepared, for one response. Not OK: nothing runs.
  grpc::Status run(PreparedInference& infer) {
    const std::shared_ptr<RowGatherer> rows = new_row_gatherer(
        sequences_, infer, *response_.mutable_infer_response(),
        [this](grpc::Status ended, TokenUse used) { respond(std::move(ended), used); });
    if (!take_on({rows, nullptr})) return cancelled();
    rows->begin(std::move(infer.rows));
    return grpc::Status::OK;
  }

  // The same, with its tokens written as they come.
  grpc::Status run_streamed(PreparedInference& infer) {
    PreparedGeneration& row = infer.rows.front();
    TokenStream::Options options;
    options.chunk_interval = context_.streaming.chunk_interval_ms;
    options.outbox_tokens = context_.streaming.outbox_tokens;
    options.top_log2_probs = static_cast<int>(infer.request->top_log2_probs);
    // A message with details is of one token.
    options.max_tokens_per_message =
        infer.request->details ? 1 : row.checked.max_tokens_per_message;
    options.tells_sample_ends = infer.request->log2_evidence || infer.request->tells_position ||
                                infer.request->window > 0 || infer.request->details;
    if (row.durable != nullptr) options.session_id = row.lease.session_id();
    options.session_is_stored = row.durable != nullptr;
    options.begins_at_once = !has_answered_;
    const auto outbox = std::make_shared<TokenStream>(
        static_cast<ResponseWriter&>(*this), row.model, context_.clock, calls_, std::move(options));
    streamed_.emplace(infer.request, infer.head);
    sequence_ = infer.sequence;
    if (!take_on({nullptr, outbox})) return cancelled();
    if (row.past) {  // it has been run
      outbox->tell(std::move(row.past));
      return grpc::Status::OK;
    }
    return outbox->submit(std::move(row.checked.request), std::move(row.lease), row.durable);
  }

  // Implements ResponseWriter for a request whose tokens are written as they come.
  void accepted() override {
    has_answered_ = true;
    StartSendInitialMetadata();
  }
  void write(std::span<const OutboxEntry> entries) override {
    has_answered_ = true;
    streamed_->fill(entries, /*is_last=*/false);
    StartWrite(&streamed_->message());
  }
  void end(std::span<const OutboxEntry> entries, grpc::Status status, TokenUse used) override {
    if (!status.ok() && errors_are_statuses_) return gone(std::move(status), used);
    if (sequence_.is_stored) sequences_.end_if_last(sequence_, status.ok());
    status.ok() ? streamed_->fill(entries, /*is_last=*/true) : streamed_->fill(status);
    call_.scope.note_use(used);
    writes_last_ = true;
    has_answered_ = true;
    StartWrite(&streamed_->message());
  }
  void gone(grpc::Status status, TokenUse used) noexcept override {
    if (streamed_ && sequence_.is_stored) sequences_.end_if_last(sequence_, /*ended_well=*/false);
    call_.scope.note_use(used);
    active_.leave();
    finish(std::move(status));
  }
  // Ends an unstored sequence. For a stored one, end() or gone() knows how the request ended.
  void over() noexcept override {
    if (!sequence_.is_stored) sequences_.end_if_last(sequence_);
  }

  // Writes the one response, or the error in its place.
  void respond(grpc::Status status, TokenUse used) {
    if (!status.ok() && errors_are_statuses_) return gone(std::move(status), used);
    call_.scope.note_use(used);
    if (!status.ok()) {
      grpc::Status written = catch_exceptions([&] {
        response_.Clear();
        response_.set_error_message(status.error_message());
        response_.mutable_infer_response()->set_id(std::exchange(id_, {}));
        // A client that waits for the last response of this request has it.
        if (asks_for_stream_) mark_final(*response_.mutable_infer_response(), true);
        return grpc::Status::OK;
      });
      if (!written.ok()) {  // no memory to say so in a message: the stream says it by its end
        active_.leave();
        return finish(std::move(written));
      }
    }
    has_answered_ = true;
    StartWrite(&response_);
  }

  // Lets a cancellation end the request from here on. False: the call is cancelled already.
  bool take_on(Running running) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!cancelled_) running_ = std::move(running);
    return !cancelled_;
  }
  bool is_cancelled() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return cancelled_;
  }
  // Forgets the request, of which nothing runs any more.
  void forget() EXCLUDES(mutex_) {
    streamed_.reset();
    writes_last_ = false;
    Running last;  // freed without the mutex
    MutexLock lock(mutex_);
    std::swap(last, running_);
  }
  void finish(grpc::Status status) {
    status_ = copy_of(status);
    call_.finish({});
    Finish(std::move(status));
  }

  const ServiceContext& context_;
  ClientSequences& sequences_;
  ActiveCalls& calls_;
  RpcCall& rpc_;
  StreamCall call_;
  // True if errors end the stream with a status, as Triton does for the metadata triton_grpc_error
  // "true", rather than with a message that has a text alone.
  const bool errors_are_statuses_;
  ActiveCall active_;  // while a request is served
  RequestMessage request_;
  std::string id_;                // of the request that runs
  bool asks_for_stream_ = false;  // it has the parameter, with any value
  bool has_answered_ = false;     // headers, or a message
  inference::ModelStreamInferResponse response_;
  grpc::Status status_;

  // State of a request whose tokens are written as they come.
  ClientSequence sequence_;
  std::optional<StreamedResponse> streamed_;
  bool writes_last_ = false;  // the message in flight ends the request

  Mutex mutex_;
  Running running_ GUARDED_BY(mutex_);
  bool cancelled_ GUARDED_BY(mutex_) = false;
};

// Models in the Open Inference Protocol: metadata, configuration, statistics.

std::uint64_t nanos(Duration duration) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
}

void add(const HistogramSnapshot& from, inference::StatisticDuration& to) {
  to.set_count(to.count() + from.total());
  to.set_ns(to.ns() + static_cast<std::uint64_t>(std::llround(from.sum * 1e9)));
}

// Inputs and outputs: each name with its type in both vocabularies, and its shape after the rows.
// -1: any. Tokens that are given after the prompt are not listed: clients of this list send every
// input in it.
struct Tensor {
  const char* name;
  const char* datatype;
  inference::DataType type;
  std::vector<std::int64_t> row_shape;
  bool is_text = false;  // of models with a tokenizer alone
};

const Tensor kInputs[] = {
    {"tokens", "INT32", inference::TYPE_INT32, {-1}},
    {"text_input", "BYTES", inference::TYPE_STRING, {1}, /*is_text=*/true},
    {"stop", "BYTES", inference::TYPE_STRING, {-1}, /*is_text=*/true},
};
const Tensor kOutputs[] = {
    {"tokens", "INT32", inference::TYPE_INT32, {-1}},
    {"log2_probs", "FP32", inference::TYPE_FP32, {-1}},
    {"text_output", "BYTES", inference::TYPE_STRING, {1}, /*is_text=*/true},
    {"top_tokens", "INT32", inference::TYPE_INT32, {-1, -1}},
    {"top_log2_probs", "FP32", inference::TYPE_FP32, {-1, -1}},
    {"score", "FP64", inference::TYPE_FP64, {1}},
    {"log2_evidence", "FP64", inference::TYPE_FP64, {1}},
};

template <typename WireTensor>
void write_tensor_config(const Tensor& tensor, WireTensor& wire) {
  wire.set_name(tensor.name);
  wire.set_data_type(tensor.type);
  wire.mutable_dims()->Assign(tensor.row_shape.begin(), tensor.row_shape.end());
}

void write_tensor_metadata(const Tensor& tensor,
                           inference::ModelMetadataResponse::TensorMetadata& wire) {
  wire.set_name(tensor.name);
  wire.set_datatype(tensor.datatype);
  wire.add_shape(-1);
  for (const std::int64_t size : tensor.row_shape) wire.add_shape(size);
}

void write_statistics(const ServedModel& model, inference::ModelStatistics& wire) {
  const Scheduler::Stats stats = model.scheduler->stats();
  const SchedulerTimings timings = model.scheduler->timings();
  const auto done = static_cast<std::size_t>(RequestOutcome::kDone);
  wire.set_name(model.name);
  wire.set_version(std::to_string(model.version));
  wire.set_inference_count(stats.ended[done]);
  wire.set_execution_count(stats.steps);
  auto& times = *wire.mutable_inference_stats();
  times.mutable_success()->set_count(stats.ended[done]);
  times.mutable_success()->set_ns(nanos(stats.ended_after[done]));
  auto& fail = *times.mutable_fail();
  for (std::size_t i = 0; i < kNumOutcomes; ++i) {
    if (i == done) continue;
    fail.set_count(fail.count() + stats.ended[i]);
    fail.set_ns(fail.ns() + nanos(stats.ended_after[i]));
  }
  add(timings.queued, *times.mutable_queue());
  const auto part = [&](WorkPart which) -> const HistogramSnapshot& {
    return timings.step[static_cast<std::size_t>(which)];
  };
  add(part(WorkPart::kSchedule), *times.mutable_compute_input());
  // One execution a step, with any parts.
  for (const WorkPart which : {WorkPart::kProducts, WorkPart::kAttention, WorkPart::kOther}) {
    add(part(which), *times.mutable_compute_infer());
  }
  times.mutable_compute_infer()->set_count(part(WorkPart::kOther).total());
  for (const WorkPart which : {WorkPart::kSample, WorkPart::kDeliver}) {
    add(part(which), *times.mutable_compute_output());
  }
  times.mutable_compute_output()->set_count(part(WorkPart::kDeliver).total());
}

// Checks a request to load or unload: it names a model of the one repository, and nothing else.
template <typename Request>
grpc::Status check_repository_request(const Request& wire, bool unloads) {
  Violations violations;
  if (!wire.repository_name().empty()) {
    violations.add("repository_name", "has to be empty: there is one repository");
  }
  for (const auto& [name, parameter] : wire.parameters()) {
    if (unloads && name == "unload_dependents") continue;
    violations.add("parameters[" + clip(name) + "]", "is not a parameter of this server");
  }
  if (!violations.empty()) return violations.status();
  return check_model_name(wire.model_name(), "model_name");
}

// The model that a call is about. Null: there is none, and `status` says why.
template <typename Request>
SharedModel find_model(const ServiceContext& context, CallScope& scope, const Request& wire,
                       grpc::Status& status) {
  SharedModel model = resolve_version(meant_model(wire.name(), context), wire.version(), "",
                                      context.models, &status);
  if (model != nullptr) {
    scope.set_model(model->name);
  } else {
    status = named_by_alias(wire.name(), meant_model(wire.name(), context), std::move(status));
  }
  return model;
}

}  // namespace

// The methods that are answered at once.

grpc::Status InferenceService::server_live(CallScope&, const inference::ServerLiveRequest&,
                                           inference::ServerLiveResponse& response) {
  response.set_live(context_.health.is_alive());
  return grpc::Status::OK;
}

grpc::Status InferenceService::server_ready(CallScope&, const inference::ServerReadyRequest&,
                                            inference::ServerReadyResponse& response) {
  response.set_ready(context_.health.is_ready());
  return grpc::Status::OK;
}

grpc::Status InferenceService::model_ready(CallScope& scope,
                                           const inference::ModelReadyRequest& wire,
                                           inference::ModelReadyResponse& response) {
  grpc::Status ignored;
  const SharedModel model = find_model(context_, scope, wire, ignored);
  response.set_ready(model != nullptr && context_.health.is_ready());
  return grpc::Status::OK;
}

grpc::Status InferenceService::server_metadata(CallScope&, const inference::ServerMetadataRequest&,
                                               inference::ServerMetadataResponse& response) {
  response.set_name("lintel");
  response.set_version(LINTEL_VERSION);
  for (const char* extension :
       {"sequence", "statistics", "model_repository", "model_configuration"}) {
    response.add_extensions(extension);
  }
  return grpc::Status::OK;
}

grpc::Status InferenceService::model_metadata(CallScope& scope,
                                              const inference::ModelMetadataRequest& wire,
                                              inference::ModelMetadataResponse& response) {
  grpc::Status status;
  const SharedModel model = find_model(context_, scope, wire, status);
  if (model == nullptr) return status;
  response.set_name(model->name);
  for (const SharedModel& ready : context_.models.ready()) {
    if (ready->name == model->name) response.add_versions(std::to_string(ready->version));
  }
  response.set_platform("lintel");
  for (const Tensor& tensor : kInputs) {
    if (!tensor.is_text || has_text(*model)) write_tensor_metadata(tensor, *response.add_inputs());
  }
  for (const Tensor& tensor : kOutputs) {
    if (!tensor.is_text || has_text(*model)) write_tensor_metadata(tensor, *response.add_outputs());
  }
  const Transformer& transformer = *model->transformer;
  auto& properties = *response.mutable_properties();
  properties["attention"] = attention_names(transformer.config());
  properties["max_length"] = std::to_string(transformer.config().served_length());
  properties["weight_type"] = to_string(transformer.weight_type());
  if (transformer.knows_fingerprint()) properties["fingerprint"] = transformer.fingerprint();
  return status;
}

grpc::Status InferenceService::model_config(CallScope& scope,
                                            const inference::ModelConfigRequest& wire,
                                            inference::ModelConfigResponse& response) {
  grpc::Status status;
  const SharedModel model = find_model(context_, scope, wire, status);
  if (model == nullptr) return status;
  const Transformer& transformer = *model->transformer;
  inference::ModelConfig& config = *response.mutable_config();
  config.set_name(model->name);
  config.set_platform("lintel");
  config.set_backend("lintel");
  config.set_max_batch_size(model->limits.max_samples);
  for (const Tensor& tensor : kInputs) {
    if (tensor.is_text && !has_text(*model)) continue;
    auto& input = *config.add_input();
    write_tensor_config(tensor, input);
    input.set_optional(has_text(*model));  // there are two to choose from
  }
  for (const Tensor& tensor : kOutputs) {
    if (!tensor.is_text || has_text(*model)) write_tensor_config(tensor, *config.add_output());
  }
  auto& workers = *config.add_instance_group();
  workers.set_name("workers");
  workers.set_kind(inference::ModelInstanceGroup::KIND_CPU);
  workers.set_count(model->scheduler->options().workers);
  auto& parameters = *config.mutable_parameters();
  parameters["config_json"].set_string_value(transformer.config_json());
  parameters["weight_type"].set_string_value(to_string(transformer.weight_type()));
  if (transformer.knows_fingerprint()) {
    parameters["fingerprint"].set_string_value(transformer.fingerprint());
  }
  config.mutable_model_transaction_policy()->set_decoupled(true);
  return status;
}

grpc::Status InferenceService::model_statistics(CallScope& scope,
                                                const inference::ModelStatisticsRequest& wire,
                                                inference::ModelStatisticsResponse& response) {
  std::optional<std::int64_t> version;
  grpc::Status status = read_model_version(wire.version(), "version", &version);
  const std::string name = meant_model(wire.name(), context_);
  // A name, and a version of it, have to be there.
  if (status.ok() && (!wire.name().empty() || version)) find_model(context_, scope, wire, status);
  if (!status.ok()) return status;
  for (const SharedModel& model : context_.models.ready()) {
    if (!name.empty() && model->name != name) continue;
    if (version && model->version != *version) continue;
    write_statistics(*model, *response.add_model_stats());
  }
  return status;
}

grpc::Status InferenceService::repository_index(CallScope&,
                                                const inference::RepositoryIndexRequest& wire,
                                                inference::RepositoryIndexResponse& response) {
  for (const ModelRegistry::Entry& entry : context_.manager.index()) {
    if (wire.ready() && entry.state != ModelState::kReady) continue;
    auto& index = *response.add_models();
    index.set_name(entry.name);
    index.set_version(std::to_string(entry.version));
    index.set_state(to_string(entry.state));
    index.set_reason(entry.reason);
  }
  return grpc::Status::OK;
}

// One ModelInfer call. Lives from the method until gRPC has done with it.
class InferenceService::InferCall final : public RpcReactor {
 public:
  // context, sequences, response: outlive the call.
  InferCall(const ServiceContext& context, ClientSequences& sequences, RpcCall& rpc,
            inference::ModelInferResponse& response)
      : calls_(context.calls),
        sequences_(sequences),
        response_(response),
        call_(context.gate, rpc, Method::kModelInfer) {}

  StreamCall& call() { return call_; }

  // Admits the call. Not OK: the call has to be refused.
  grpc::Status enter() {
    if (!call_.scope.admitted().ok()) return call_.scope.admitted();
    if (grpc::Status entered = call_.quota.enter(); !entered.ok()) return entered;
    active_ = ActiveCall(calls_);
    return active_ ? grpc::Status::OK : shutting_down();
  }
  void refuse(grpc::Status status) { finish(std::move(status), {}); }
  // Runs what was prepared. An exception: nothing runs. Else the call ends with it, and may be gone
  // when this returns.
  void run(PreparedInference infer) EXCLUDES(mutex_) {
    if (infer.rows.empty()) {
      write_end(infer, response_);
      return finish(grpc::Status::OK, {});
    }
    const std::shared_ptr<RowGatherer> rows =
        new_row_gatherer(sequences_, infer, response_,
                         [this](const grpc::Status& ended, TokenUse used) { finish(ended, used); });
    if (!set_rows(rows)) rows->cancel();
    rows->begin(std::move(infer.rows));
  }

  void OnCancel() override EXCLUDES(mutex_) {
    std::shared_ptr<RowGatherer> rows;
    {
      MutexLock lock(mutex_);
      gone_ = true;
      rows = rows_;
    }
    if (rows != nullptr) rows->cancel();
  }
  void OnDone() override {
    const ActiveCall active = std::move(active_);  // counted out when the reactor is gone
    call_.end(status_);
    delete this;
  }

 private:
  // The response is written, or there is none. Once.
  void finish(grpc::Status status, TokenUse used) {
    status_ = copy_of(status);
    call_.finish(used);
    Finish(std::move(status));
  }

  // False where the client is gone.
  bool set_rows(std::shared_ptr<RowGatherer> rows) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    rows_ = std::move(rows);
    return !gone_;
  }

  ActiveCalls& calls_;
  ClientSequences& sequences_;
  inference::ModelInferResponse& response_;
  ActiveCall active_;
  StreamCall call_;
  grpc::Status status_;  // written before Finish, read after
  // The rows that OnCancel ends; it may come before run() sets them.
  Mutex mutex_;
  std::shared_ptr<RowGatherer> rows_ GUARDED_BY(mutex_);
  bool gone_ GUARDED_BY(mutex_) = false;
};

InferenceService::InferenceService(const ServiceContext& context)
    : HandlerService(context), sequences_(context) {
  using Self = InferenceService;
  serve(Method::kServerLive, &Self::server_live);
  serve(Method::kServerReady, &Self::server_ready);
  serve(Method::kModelReady, &Self::model_ready);
  serve(Method::kServerMetadata, &Self::server_metadata);
  serve(Method::kModelMetadata, &Self::model_metadata);
  serve(Method::kModelConfig, &Self::model_config);
  serve(Method::kModelStatistics, &Self::model_statistics);
  serve(Method::kRepositoryIndex, &Self::repository_index);
  serve(Method::kRepositoryModelLoad, &Self::load);
  serve(Method::kRepositoryModelUnload, &Self::unload);
  serve_unary<inference::ModelInferRequest, inference::ModelInferResponse>(
      info_of(Method::kModelInfer).name,
      [this](RpcCall& rpc, const LazyMessage<inference::ModelInferRequest>& request,
             inference::ModelInferResponse& response) {
        return run(&Self::infer, Method::kModelInfer, rpc, request,
                   new InferCall(context_, sequences_, rpc, response));
      });
  serve_bidi_stream<inference::ModelStreamInferResponse>(info_of(Method::kModelStreamInfer).name,
                                                         this, &Self::stream_infer);
}

Task<grpc::Status> InferenceService::load(Call call, inference::RepositoryModelLoadRequest wire,
                                          inference::RepositoryModelLoadResponse&) {
  grpc::Status status = check_repository_request(wire, /*unloads=*/false);
  if (!status.ok()) co_return status;
  SharedModel model;
  const auto load = [&](auto done) {
    context_.manager.load(wire.model_name(), /*version=*/std::nullopt, done);
  };
  status = co_await loaded(load, model);
  if (model != nullptr) call.scope.set_model(model->name);
  co_return status;
}

Task<grpc::Status> InferenceService::unload(Call call, inference::RepositoryModelUnloadRequest wire,
                                            inference::RepositoryModelUnloadResponse&) {
  const grpc::Status checked = check_repository_request(wire, /*unloads=*/true);
  if (!checked.ok()) co_return checked;
  if (const SharedModel model = context_.models.find(wire.model_name())) {
    call.scope.set_model(model->name);
  }
  const auto unload = [&](auto done) {
    context_.manager.unload(wire.model_name(), /*version=*/std::nullopt, done);
  };
  co_return co_await unloaded(unload);
}

Task<grpc::Status> InferenceService::infer(Call call, inference::ModelInferRequest wire,
                                           InferCall& answer) {
  grpc::Status status;
  if (names_sequence(wire)) status = co_await store_thread(call);
  if (!status.ok()) co_return status;
  PreparedInference infer;
  AbsentModel absent;
  do {
    infer = {};
    status = prepare_inference(context_, sequences_, call.rpc, wire, answer.call(),
                               /*may_stream=*/false, absent, infer);
  } while (co_await model_load(call, absent, status));
  if (status.ok()) answer.run(std::move(infer));
  co_return status;
}

RpcReactor* InferenceService::stream_infer(RpcCall* call) {
  return new ModelStreamInferCall(context_, sequences_, *call);
}

}  // namespace lintel

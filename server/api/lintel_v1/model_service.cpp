// SPDX-License-Identifier: Apache-2.0
#include "server/api/lintel_v1/model_service.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include "lintel/v1/model.pb.h"
#include "model/config/config.h"
#include "model/lora/adapter.h"
#include "model/tokenizer/text_stream.h"
#include "server/api/lookup.h"
#include "server/api/params/generate_params.h"
#include "server/api/request_checks.h"
#include "server/api/service_context.h"
#include "server/rpc/status.h"

namespace lintel {

// The response of ModelService.Statistics.

// All but the uptime. The same counts as those of the metrics; takes no lock that a step waits for.
void write_statistics(const ServiceContext& context, v1::StatisticsResponse& wire);

namespace {

void write_activity(const ModelRegistry::Totals& totals, v1::ModelActivity& wire) {
  const Scheduler::Stats& stats = totals.stats;
  wire.set_name(totals.name);
  wire.set_running(static_cast<std::uint32_t>(stats.running));
  wire.set_waiting(static_cast<std::uint32_t>(stats.queued));
  wire.set_prompt_tokens(stats.prompt_tokens);
  wire.set_generated_tokens(stats.generated_tokens);
  wire.set_drafted_tokens(stats.drafted_tokens);
  wire.set_accepted_tokens(stats.accepted_tokens);
  wire.set_requests(totals.timings.queued.total());
  const std::chrono::duration<double> queued(totals.timings.queued.sum);
  write_duration(std::chrono::duration_cast<std::chrono::nanoseconds>(queued),
                 *wire.mutable_queue_time());
  wire.set_workers(static_cast<std::uint32_t>(totals.workers));
}

}  // namespace

void write_statistics(const ServiceContext& context, v1::StatisticsResponse& wire) {
  for (const ModelRegistry::Totals& totals : context.models.totals()) {
    write_activity(totals, *wire.add_models());
  }
  wire.set_streams(static_cast<std::uint32_t>(context.calls.count()));
  const SessionManager::Stats sessions = context.sessions.stats();
  wire.set_idle_sessions(sessions.idle_sessions);
  wire.set_busy_sessions(sessions.busy_sessions);
  wire.set_session_bytes(static_cast<std::int64_t>(sessions.idle_bytes + sessions.busy_bytes +
                                                   sessions.one_shot_bytes));
  wire.set_session_memory(
      static_cast<std::int64_t>(context.sessions.options().session_memory_bytes));
  wire.set_model_bytes(static_cast<std::int64_t>(context.manager.memory().used_bytes()));
  wire.set_model_memory(static_cast<std::int64_t>(context.manager.memory().limit_bytes()));
  wire.set_version(LINTEL_VERSION);
}

namespace {

void write_limits(const RequestLimits& limits, v1::ModelLimits& wire) {
  wire.set_max_prompt_tokens(static_cast<std::uint32_t>(limits.max_prompt_tokens));
  wire.set_max_new_tokens(static_cast<std::uint32_t>(limits.max_new_tokens));
  wire.set_max_samples(static_cast<std::uint32_t>(limits.max_samples));
  wire.set_max_top_log2_probs(static_cast<std::uint32_t>(limits.max_top_log2_probs));
  wire.set_max_stop_strings(static_cast<std::uint32_t>(limits.max_stop_strings));
  wire.set_max_stop_string_bytes(static_cast<std::uint32_t>(limits.max_stop_string_bytes));
  wire.set_max_given_tokens(static_cast<std::uint32_t>(limits.max_given_tokens));
  wire.set_max_score_tokens(static_cast<std::uint32_t>(limits.max_score_tokens));
}

// `most`: tokens from which on the state grows no more, at least 1.
void write_state_growth(const Transformer& transformer, std::int64_t most, v1::Model& wire) {
  constexpr std::int64_t kSteps = 32;
  const std::int64_t steps = std::min(kSteps, most);
  for (std::int64_t i = 0; i <= steps; ++i) {
    v1::StatePoint& point = *wire.add_state_growth();
    point.set_position(most * i / steps);
    point.set_bytes(static_cast<std::int64_t>(transformer.state_bytes(point.position())));
  }
}

// Bytes that a token adds to a state that grows without an end: the mean of many, as memory comes
// in pages.
std::int64_t state_bytes_per_value(const Transformer& transformer) {
  constexpr std::int64_t kValues = 1 << 16;
  const std::size_t more = transformer.state_bytes(2 * kValues) - transformer.state_bytes(kValues);
  return (static_cast<std::int64_t>(more) + kValues - 1) / kValues;
}

// Bytes of a session with a KV cache, and of each token: the mean of many, as memory comes in
// pages.
void write_kv_cache(const Transformer& transformer, v1::Model& wire) {
  if (!transformer.kv_type()) return;
  constexpr std::int64_t kTokens = 1 << 16;
  const std::int64_t tokens = std::min(kTokens, transformer.tokens_until_full());
  const auto at_first = static_cast<std::int64_t>(transformer.state_bytes(0));
  const auto at_last = static_cast<std::int64_t>(transformer.state_bytes(tokens));
  wire.set_kv_type(to_string(*transformer.kv_type()));
  wire.set_kv_session_bytes(at_first);
  wire.set_kv_token_bytes((at_last - at_first + tokens - 1) / tokens);
}

v1::ModelState wire_state(ModelState state) {
  switch (state) {
    case ModelState::kLoading:
      return v1::MODEL_STATE_LOADING;
    case ModelState::kReady:
      return v1::MODEL_STATE_READY;
    case ModelState::kUnloading:
      return v1::MODEL_STATE_UNLOADING;
    case ModelState::kUnavailable:
      return v1::MODEL_STATE_UNAVAILABLE;
  }
  return v1::MODEL_STATE_UNSPECIFIED;
}

}  // namespace

ModelService::ModelService(const ServiceContext& context) : HandlerService(context) {
  serve(Method::kListModels, &ModelService::list);
  serve(Method::kGetModel, &ModelService::get);
  serve(Method::kStatistics, &ModelService::statistics);
  serve(Method::kTokenize, &ModelService::tokenize);
  serve(Method::kDetokenize, &ModelService::detokenize);
}

api::SamplingParams with_defaults(api::SamplingParams sampling, const SamplingDefaults& defaults) {
  if (!sampling.temperature) sampling.temperature = defaults.temperature;
  if (!sampling.top_p) sampling.top_p = defaults.top_p;
  if (!sampling.top_k) sampling.top_k = defaults.top_k;
  if (!sampling.min_p) sampling.min_p = defaults.min_p;
  if (!sampling.repetition_penalty) sampling.repetition_penalty = defaults.repetition_penalty;
  return sampling;
}

void write_adapter(const ServedAdapter& adapter, v1::Adapter& wire) {
  const Adapter& weights = *adapter.weights;
  wire.set_name(adapter.name);
  wire.set_rank(static_cast<std::uint32_t>(weights.max_rank()));
  wire.set_modules(static_cast<std::uint32_t>(weights.modules().size()));
  wire.set_bytes(static_cast<std::int64_t>(weights.bytes()));
  wire.set_fingerprint(weights.fingerprint());
}

void write_model(const ServedModel& model, const SessionManager& sessions, v1::Model& wire) {
  const Transformer& transformer = *model.transformer;
  const ModelConfig& config = transformer.config();
  wire.set_name(model.name);
  wire.set_config_json(transformer.config_json());
  wire.set_modality(to_string(config.modality));
  if (config.modality == ModalityKind::kImage) {
    v1::ImageShape& image = *wire.mutable_image();
    image.set_height(static_cast<std::uint32_t>(config.image.height));
    image.set_width(static_cast<std::uint32_t>(config.image.width));
    image.set_channels(static_cast<std::uint32_t>(config.image.channels));
    image.set_start_token(config.image.start_token);
  }
  wire.set_head(to_string(config.head));
  wire.set_attention(attention_names(config));
  wire.set_vocab_size(static_cast<std::uint32_t>(config.vocab_size));
  wire.set_max_length(config.served_length());
  wire.set_trained_length(config.trained_length);
  wire.set_parameters(transformer.num_parameters());
  wire.set_weight_type(to_string(transformer.weight_type()));
  wire.set_weight_type_reason(model.weight_type_reason);
  wire.set_kernels(transformer.kernels());
  wire.set_weight_bytes(static_cast<std::int64_t>(transformer.weight_bytes()));
  // The last token of a sequence is never fed. Unbounded growing states have no size to report, but
  // what a token adds; constant ones are reported without counts of the tokens.
  const std::int64_t endless = transformer.constant_state() ? 0 : transformer.tokens_until_full();
  const std::int64_t length = config.served_length();
  const std::int64_t most = length > 0 ? length : endless;
  if (most != kNeverFull) {
    wire.set_state_bytes(static_cast<std::int64_t>(transformer.state_bytes(most)));
  } else {
    wire.set_state_bytes_per_value(state_bytes_per_value(transformer));
  }
  write_kv_cache(transformer, wire);
  const SessionManager::Capacity room = sessions.capacity(transformer);
  wire.set_room_sessions(room.sessions);
  wire.set_room_session_tokens(room.session_tokens);
  wire.set_room_tokens(room.tokens);
  wire.set_constant_state(transformer.constant_state());
  if (most != kNeverFull && !transformer.constant_state()) {
    write_state_growth(transformer, std::min(most, transformer.tokens_until_full()), wire);
  }
  if (transformer.knows_fingerprint()) wire.set_fingerprint(transformer.fingerprint());
  if (const auto& tokenizer = transformer.tokenizer()) {
    wire.set_tokenizer(std::string(tokenizer->kind()));
    wire.mutable_eos_tokens()->Add(tokenizer->eos().begin(), tokenizer->eos().end());
  }
  if (model.chat != nullptr && model.chat->find(false) != nullptr) {
    api::GenerateParams params;
    params.sampling = with_defaults({}, model.chat->defaults());
    v1::GenerateRequest request;
    api::write_params(params, request);
    *wire.mutable_sampling_defaults() = request.sampling();
  }
  if (model.knows_numerics()) {
    wire.set_numerics(model.numerics().hex);
    wire.set_numerics_text(model.numerics().text);
  }
  wire.set_workers(static_cast<std::uint32_t>(model.scheduler->options().workers));
  wire.set_max_batch_rows(static_cast<std::uint32_t>(model.scheduler->options().max_batch_rows));
  wire.set_prompt_rows(static_cast<std::uint32_t>(model.scheduler->options().prompt_rows_per_step));
  write_limits(model.limits, *wire.mutable_limits());
  for (const std::string& warning : model.all_warnings()) wire.add_warnings(warning);
  for (const SharedAdapter& adapter : model.adapters->ready()) {
    write_adapter(*adapter, *wire.add_adapters());
  }
  wire.set_version(std::to_string(model.version));
  wire.set_state(v1::MODEL_STATE_READY);
}

namespace {

void add_aliases(const ServiceContext& context, v1::Model& wire) {
  for (const ModelAlias& alias : context.aliases) {
    if (alias.model == wire.name()) wire.add_aliases(alias.pattern);
  }
}

// A model, loaded or not, as ListModelsRequest.all has it.
void write_entry(const ServiceContext& context, const ModelRegistry::Entry& entry,
                 v1::Model& wire) {
  wire.set_loads_on_request(context.manager.loads_on_request(entry.name, entry.version));
  wire.set_load_failed(entry.failed);
  const SharedModel model =
      entry.state == ModelState::kReady ? context.models.find(entry.name, entry.version) : nullptr;
  if (model != nullptr) {
    write_model(*model, context.sessions, wire);
  } else {
    wire.set_name(entry.name);
    wire.set_version(std::to_string(entry.version));
    wire.set_state(wire_state(entry.state));
  }
  wire.set_reason(entry.reason);
  add_aliases(context, wire);
}

// Adds the chat template of a model that is in memory.
void add_chat_template(const ServedModel& model, v1::Model& wire) {
  if (model.chat == nullptr) return;
  const ChatTemplate* const chat = model.chat->find(/*has_tools=*/false);
  if (chat != nullptr) wire.set_chat_template(chat->source());
}

// Describes the model that a request would run on, in memory or not. False: there is none.
bool write_entry_of(const ServiceContext& context, const std::string& asked, v1::Model& wire) {
  const std::string name = meant_model(asked, context);
  const ModelRegistry::Entry* found = nullptr;
  const std::vector<ModelRegistry::Entry> entries = context.manager.index();
  for (const ModelRegistry::Entry& entry : entries) {
    if (entry.name != name) continue;
    const bool is_ready = entry.state == ModelState::kReady;
    if (!is_ready && !context.manager.loads_on_request(name, entry.version)) continue;
    const bool is_better = found == nullptr || is_ready || found->state != ModelState::kReady;
    if (is_better) found = &entry;
  }
  if (found == nullptr) return false;
  write_entry(context, *found, wire);
  if (const SharedModel model = context.models.find(name)) add_chat_template(*model, wire);
  return true;
}

}  // namespace

grpc::Status ModelService::list(CallScope&, const v1::ListModelsRequest& wire,
                                v1::ListModelsResponse& response) {
  if (!wire.all()) {
    for (const SharedModel& model : context_.models.ready()) {
      write_model(*model, context_.sessions, *response.add_models());
      add_aliases(context_, *response.mutable_models()->rbegin());
    }
    return grpc::Status::OK;
  }
  for (const ModelRegistry::Entry& entry : context_.manager.index()) {
    write_entry(context_, entry, *response.add_models());
  }
  return grpc::Status::OK;
}

Task<grpc::Status> ModelService::get(Call call, v1::GetModelRequest wire, v1::Model& response) {
  grpc::Status status;
  if (wire.all() && write_entry_of(context_, wire.name(), response)) co_return status;
  const SharedModel model = co_await model_use(call, wire.name(), status, "name");
  if (model == nullptr) co_return status;
  write_model(*model, context_.sessions, response);
  add_aliases(context_, response);
  add_chat_template(*model, response);
  co_return status;
}

namespace {

constexpr std::size_t kMostPieces = 100'000;

grpc::Status check_has_tokenizer(const ServedModel& model) {
  if (model.transformer->tokenizer() != nullptr) return grpc::Status::OK;
  return {grpc::StatusCode::FAILED_PRECONDITION,
          "model " + model.name + " has no tokenizer: its tokens are ids alone"};
}

std::string piece_of(const Tokenizer& tokenizer, std::int32_t id) {
  return std::string(tokenizer.is_special(id) ? tokenizer.text_of_special(id)
                                              : tokenizer.bytes_of(id));
}

// Like to_text(), with special tokens as they are spelt.
std::string text_with_special(const Tokenizer& tokenizer, std::span<const std::int32_t> ids) {
  std::string text;
  auto begin = ids.begin();
  for (auto special = begin; special != ids.end(); begin = special) {
    special =
        std::find_if(begin, ids.end(), [&](std::int32_t id) { return tokenizer.is_special(id); });
    text += to_text(tokenizer, {begin, special}, /*begins_text=*/begin == ids.begin());
    if (special != ids.end()) text += tokenizer.text_of_special(*special++);
  }
  return text;
}

template <typename Response>
grpc::Status add_pieces(const Tokenizer& tokenizer, std::span<const std::int32_t> ids,
                        Response& response) {
  if (ids.size() > kMostPieces) {
    return invalid_argument({{"with_pieces", "is for at most " + std::to_string(kMostPieces) +
                                                 " tokens, not " + std::to_string(ids.size())}});
  }
  for (const std::int32_t id : ids) response.add_pieces(piece_of(tokenizer, id));
  return grpc::Status::OK;
}

}  // namespace

Task<grpc::Status> ModelService::tokenize(Call call, v1::TokenizeRequest wire,
                                          v1::TokenizeResponse& response) {
  grpc::Status status;
  const SharedModel model = co_await model_use(call, wire.model(), status);
  if (model != nullptr) status = check_has_tokenizer(*model);
  if (!status.ok()) co_return status;
  const std::vector<std::int32_t> ids = model->transformer->tokenizer()->encode(
      wire.text(), {.add_special = wire.add_special(), .parse_special = wire.parse_special()});
  response.mutable_ids()->Add(ids.begin(), ids.end());
  response.set_max_length(model->transformer->config().served_length());
  if (wire.with_pieces()) status = add_pieces(*model->transformer->tokenizer(), ids, response);
  co_return status;
}

Task<grpc::Status> ModelService::detokenize(Call call, v1::DetokenizeRequest wire,
                                            v1::DetokenizeResponse& response) {
  grpc::Status status;
  const SharedModel model = co_await model_use(call, wire.model(), status);
  if (model != nullptr) status = check_has_tokenizer(*model);
  if (!status.ok()) co_return status;
  const std::span ids(wire.ids().data(), static_cast<std::size_t>(wire.ids_size()));
  const int vocab_size = model->transformer->config().vocab_size;
  Violations violations;
  for (std::size_t i = 0; i < ids.size() && !violations.full(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    check_token(ids[i], indexed("ids", i), vocab_size, violations);
  }
  if (!violations.empty()) co_return violations.status();
  const Tokenizer& tokenizer = *model->transformer->tokenizer();
  response.set_text(wire.with_special() ? text_with_special(tokenizer, ids)
                                        : to_text(tokenizer, ids));
  response.set_max_length(model->transformer->config().served_length());
  if (wire.with_pieces()) status = add_pieces(tokenizer, ids, response);
  co_return status;
}

grpc::Status ModelService::statistics(CallScope&, const v1::StatisticsRequest&,
                                      v1::StatisticsResponse& response) {
  write_statistics(context_, response);
  write_duration(context_.clock.now() - started_, *response.mutable_uptime());
  return grpc::Status::OK;
}

}  // namespace lintel

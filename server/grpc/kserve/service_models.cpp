#include "server/grpc/kserve/service_models.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "model/config/names.h"
#include "server/api/resolve_model.h"
#include "server/api/violations.h"

namespace lintel {
namespace {

std::uint64_t nanos(Duration duration) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
}

void add(const HistogramSnapshot& from, inference::StatisticDuration& to) {
  to.set_count(to.count() + from.total());
  to.set_ns(to.ns() + static_cast<std::uint64_t>(std::llround(from.sum * 1e9)));
}

// Inputs and outputs: each name with its type in both vocabularies, and its shape after the rows.
// -1: any. Values that are given after the prompt are not listed: clients of this list send every
// input in it.
struct Tensor {
  const char* name;
  const char* datatype;
  inference::DataType type;
  std::vector<std::int64_t> row_shape;
  bool is_text = false;  // of models of bytes alone
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

bool has_text(const ServedModel& model) {
  return model.transformer->config().modality == ModalityKind::kBytes;
}

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

}  // namespace

void write_metadata(const ServedModel& model, inference::ModelMetadataResponse& metadata) {
  for (const Tensor& tensor : kInputs) {
    if (!tensor.is_text || has_text(model)) write_tensor_metadata(tensor, *metadata.add_inputs());
  }
  for (const Tensor& tensor : kOutputs) {
    if (!tensor.is_text || has_text(model)) write_tensor_metadata(tensor, *metadata.add_outputs());
  }
}

void write_config(const ServedModel& model, inference::ModelConfig& config) {
  const Transformer& transformer = *model.transformer;
  config.set_name(model.name);
  config.set_platform("lintel");
  config.set_backend("lintel");
  config.set_max_batch_size(model.limits.max_samples);
  for (const Tensor& tensor : kInputs) {
    if (tensor.is_text && !has_text(model)) continue;
    auto& input = *config.add_input();
    write_tensor_config(tensor, input);
    input.set_optional(has_text(model));  // there are two to choose from
  }
  for (const Tensor& tensor : kOutputs) {
    if (!tensor.is_text || has_text(model)) write_tensor_config(tensor, *config.add_output());
  }
  auto& workers = *config.add_instance_group();
  workers.set_name("workers");
  workers.set_kind(inference::ModelInstanceGroup::KIND_CPU);
  workers.set_count(model.scheduler->options().workers);
  auto& parameters = *config.mutable_parameters();
  parameters["config_json"].set_string_value(transformer.config_json());
  parameters["weight_type"].set_string_value(to_string(transformer.weight_type()));
  parameters["fingerprint"].set_string_value(transformer.fingerprint());
  config.mutable_model_transaction_policy()->set_decoupled(true);
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

grpc::Status check_repository_request(const std::string& repository,
                                      const RepositoryParameters& parameters,
                                      const std::string& model, bool unloads) {
  Violations violations;
  if (!repository.empty()) {
    violations.add("repository_name", "has to be empty: there is one repository");
  }
  for (const auto& [name, parameter] : parameters) {
    if (unloads && name == "unload_dependents") continue;
    violations.add("parameters[" + clip(name) + "]", "is not a parameter of this server");
  }
  if (!violations.empty()) return violations.status();
  return check_model_name(model, "model_name");
}

}  // namespace lintel

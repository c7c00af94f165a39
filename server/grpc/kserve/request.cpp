#include "server/grpc/kserve/request.h"

#include <algorithm>

#include "server/grpc/kserve/input_tensors.h"
#include "server/grpc/kserve/parameters.h"

namespace lintel {
namespace {

// Outputs by name. Those of the most likely values come where the request says how many.
void read_outputs(const inference::ModelInferRequest& wire, TensorRequest& request,
                  Violations& violations) {
  for (int i = 0; i < wire.outputs_size(); ++i) {
    const auto& output = wire.outputs(i);
    for (const auto& [name, parameter] : output.parameters()) {  // classification elsewhere
      violations.add("outputs[" + std::to_string(i) + "].parameters[" + clip(name) + "]",
                     "is not a parameter of this server");
    }
    const std::string& name = output.name();
    if (name == "tokens") {
      request.tokens = true;
    } else if (name == "text_output") {
      request.text = true;
    } else if (name == "log2_probs") {
      request.log2_probs = true;
    } else if (name == "score") {
      request.score = true;
    } else if (name == "log2_evidence") {
      request.log2_evidence = true;
    } else if (name == "top_tokens" || name == "top_log2_probs") {
      if (request.top_log2_probs == 0) {
        violations.add("parameters[top_log2_probs]",
                       "says of how many values the output '" + name + "' is");
      }
    } else {
      violations.add("outputs", "'" + clip(name) +
                                    "' is not tokens, text_output, log2_probs, score, "
                                    "log2_evidence, top_tokens or top_log2_probs");
    }
  }
  if (wire.outputs_size() == 0) choose_outputs(request.from_text, request);
}

// A sequence continues from its own last token where a request brings none. A request that ends it
// first produces what it asks for, by default nothing.
void settle_end(TensorRequest& request) {
  const v1::GenerateRequest& settings = request.settings;
  request.only_ends = request.sequence_end && !request.sequence_start &&
                      !request.sequence_id.empty() && request.prompts.size() == 1 &&
                      request.prompts.front().empty() && settings.given_size() == 0 &&
                      settings.max_new_tokens() == 0;
}

// `max_tokens` is of a sequence that starts. Beside text without one it is what other servers of
// text call so: how many values to produce.
void settle_max_tokens(TensorRequest& request, Violations& violations) {
  if (request.max_tokens == 0 || request.sequence_start) return;
  if (!request.from_text || !request.sequence_id.empty()) {
    violations.add("parameters[max_tokens]",
                   "goes with sequence_start: it is of the whole sequence");
  } else if (request.settings.has_max_new_tokens()) {
    violations.add("parameters[max_tokens]", "is max_new_tokens here, which is given, too");
  } else {
    constexpr std::int64_t kMost = 0xffffffff;
    request.settings.set_max_new_tokens(
        static_cast<std::uint32_t>(std::min(request.max_tokens, kMost)));
    request.max_tokens = 0;
  }
}

// Samples and particles are of a request that has its states for itself.
void check_samples(TensorRequest& request, int max_rows, Violations& violations) {
  const v1::GenerateRequest& settings = request.settings;
  if (settings.has_num_samples()) request.num_samples = settings.num_samples();
  const std::size_t most =
      static_cast<std::size_t>(max_rows) / std::max<std::size_t>(request.prompts.size(), 1);
  if (request.num_samples > 1 && request.num_samples > most) {
    violations.add("parameters[num_samples]",
                   std::to_string(request.num_samples) + " of each row are more than " +
                       std::to_string(max_rows) + " rows of the response");
  } else if (request.num_samples > 1 && request.streams) {
    violations.add("parameters[num_samples]", "a stream of values takes one sample at a time");
  }
  if (request.sequence_id.empty()) return;
  if (request.num_samples > 1) {
    violations.add("parameters[num_samples]", "a sequence continues with one sample");
  }
  if (settings.particles() > 1) {
    violations.add("parameters[particles]", "cannot continue a sequence, which has one state");
  }
}

}  // namespace

bool names_sequence(const inference::ModelInferRequest& wire) {
  return wire.parameters().contains("sequence_id");
}

void choose_outputs(bool is_text, TensorRequest& request) {
  request.tokens = !is_text;
  request.text = is_text;
}

TensorRequest read_tensor_request(const inference::ModelInferRequest& wire, int max_rows,
                                  Violations& violations) {
  TensorRequest request;
  read_parameters(wire, request, violations);
  request.top_log2_probs = request.settings.top_log2_probs();
  read_inputs(wire, max_rows, request, violations);
  read_outputs(wire, request, violations);
  settle_max_tokens(request, violations);
  const bool many = request.prompts.size() > 1;
  if (request.streams && many) {
    violations.add("inputs[0].shape", "a stream of values takes one row at a time");
  }
  if (!request.sequence_id.empty() && many) {
    violations.add("inputs[0].shape", "a sequence takes one row at a time");
  }
  check_samples(request, max_rows, violations);
  if (request.sequence_id.empty() && (request.sequence_start || request.sequence_end)) {
    violations.add("parameters[sequence_id]", "is missing");
  }
  if (request.durability != v1::DURABILITY_UNSPECIFIED && !request.sequence_start) {
    violations.add("parameters[lintel_durability]",
                   "goes with sequence_start: it is of the whole sequence");
  }
  settle_end(request);
  request.settings.set_log2_probs(request.log2_probs || request.score);
  return request;
}

}  // namespace lintel

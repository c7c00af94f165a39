// SPDX-License-Identifier: Apache-2.0
// The Open Inference Protocol's tensors and parameters, read into requests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "inference/grpc_service.pb.h"
#include "lintel/v1/session.pb.h"
#include "model/tokenizer/tokenizer.h"
#include "server/api/params/generate_params.h"
#include "server/api/request_checks.h"
#include "server/core/request_memory.h"

namespace lintel {

struct TensorRequest {
  // Memory for the rows and the response that is made of them; held as long as the request.
  std::shared_ptr<RequestMemory::Charge> memory;
  api::GenerateParams settings;      // what each row asks for, but for its prompt
  std::vector<api::Values> prompts;  // none once they are prepared
  // Samples of each prompt: consecutive rows of the response.
  std::size_t num_samples = 1;
  bool from_text = false;  // they came as text_input
  // No input came: the sequence continues from its last token.
  bool has_no_input = false;

  // Outputs that are asked for.
  bool tokens = false;
  bool text = false;
  std::shared_ptr<const Tokenizer> tokenizer;  // of the model, if it has one; set after reading
  bool log2_probs = false;
  bool score = false;              // the sum of a row's log2-probabilities
  bool log2_evidence = false;      // of particles
  std::size_t top_log2_probs = 0;  // tokens at each position
  bool raw = false;                // contents came raw, and go so
  // Adds the reason for the end, and text and log2-probability of each token: outputs "details.*".
  bool details = false;

  bool streams = false;      // tokens as they come, each response marked as the last or not
  bool marks_final = false;  // the one response is marked, too

  std::string sequence_id;  // empty: none
  bool sequence_start = false;
  bool sequence_end = false;
  // The sequence ends, and nothing is read or produced before.
  bool only_ends = false;
  // Options of a sequence that starts, as CreateSession's.
  std::int64_t max_tokens = 0;    // 0: not given
  bool names_max_tokens = false;  // the number of new tokens was given as max_tokens
  v1::Durability durability = v1::DURABILITY_UNSPECIFIED;
  bool tells_position = false;  // of the sequence, in responses: it is one that outlives the server
  // The largest window of any row; responses report it with its restarts; 0: none.
  std::int64_t window = 0;
};

// True if a request continues or starts a sequence.
bool names_sequence(const inference::ModelInferRequest& wire);

// The outputs of a request that names none: text for text, or tokens.
void choose_outputs(bool is_text, TensorRequest& request);

// Reads a request, and notes errors in the fields that only this protocol has; settings and prompts
// are checked as those of every Generate request. Reads at most `max_rows` rows.
TensorRequest read_tensor_request(const inference::ModelInferRequest& wire, int max_rows,
                                  Violations& violations);

}  // namespace lintel

#include "server/grpc/kserve/streamed_response.h"

#include <optional>
#include <utility>

namespace lintel {

void mark_final(inference::ModelInferResponse& response, bool is_final) {
  (*response.mutable_parameters())[std::string("triton_final_response")].set_bool_param(is_final);
}

StreamedResponse::StreamedResponse(std::shared_ptr<const TensorRequest> request,
                                   inference::ModelInferResponse head)
    : request_(std::move(request)) {
  *message_.mutable_infer_response() = std::move(head);
  mark_final(*message_.mutable_infer_response(), false);
  if (request_->tells_position) {
    (*message_.mutable_infer_response()->mutable_parameters())[std::string("lintel_position")];
  }
  if (request_->window > 0) {
    (*message_.mutable_infer_response()->mutable_parameters())[std::string("lintel_window")];
    (*message_.mutable_infer_response()
          ->mutable_parameters())[std::string("lintel_window_restarts")];
  }
}

// What every message begins with stays, with the mark in it: protobuf's maps do not survive that
// memory is refused while something is put into them.
void StreamedResponse::clear() {
  message_.clear_error_message();
  message_.mutable_infer_response()->clear_outputs();
  message_.mutable_infer_response()->clear_raw_output_contents();
}

void StreamedResponse::fill(std::span<const OutboxEntry> entries, bool is_last) {
  clear();
  RowValues& row = rows_.front();
  row.tokens.clear();
  row.log2_probs.clear();
  row.top_tokens.clear();
  row.top_log2_probs.clear();
  for (const OutboxEntry& entry : entries) {
    if (entry.finished != nullptr) {
      row.log2_evidence = entry.finished->log2_evidence;
      row.position = entry.finished->position;
      row.restarts = entry.finished->restarts;
      continue;
    }
    append_value(*request_, entry.token,
                 entry.has_log2_prob ? std::optional(entry.log2_prob) : std::nullopt, entry.top,
                 row);
    row.position = entry.position + 1;
  }
  write_tensor_response(*request_, rows_, *message_.mutable_infer_response());
  mark_final(*message_.mutable_infer_response(), is_last);
}

void StreamedResponse::fill(const grpc::Status& error) {
  clear();
  message_.set_error_message(error.error_message());
  mark_final(*message_.mutable_infer_response(), true);
}

}  // namespace lintel

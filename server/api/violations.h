// Violations: the invalid fields of a request.
//
// A request is checked once, on its way in, and no later code checks it again. What lintel.v1 asks
// for is judged in this room: value_checks, generate_checks, sampling_checks, score_checks,
// session_checks, and resolve_model for the names of models. The Open Inference Protocol is judged
// in server/grpc/kserve as far as its own form goes (tensors and parameters in request, loading in
// service_models); what it asks for with them, here.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "server/grpc/transport/status.h"

namespace lintel {

// Gathers violations; one pass over a request names everything that is wrong with it.
class Violations {
 public:
  // At most 64 are kept: a request of a million bad tokens needs no million messages.
  void add(std::string field, std::string description) {
    if (!full()) violations_.push_back({std::move(field), std::move(description)});
  }
  bool empty() const { return violations_.empty(); }
  bool full() const { return violations_.size() >= 64; }
  const std::vector<FieldViolation>& list() const { return violations_; }
  // REQUIRES: not empty.
  grpc::Status status() const { return invalid_argument(violations_); }

 private:
  std::vector<FieldViolation> violations_;
};

// "given[2]"
inline std::string indexed(const std::string& path, std::size_t index) {
  return path + "[" + std::to_string(index) + "]";
}

}  // namespace lintel

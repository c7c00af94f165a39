// Messages as JSON, and back.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/support/status.h>

#include <memory>
#include <string>
#include <string_view>

#include "model/core/json_reader.h"

namespace lintel {

std::unique_ptr<google::protobuf::Message> new_message(const google::protobuf::Descriptor* type);

// protobuf's JSON (https://protobuf.dev/programming-guides/proto3/#json), which Connect uses: bytes
// are base64. An empty text is an empty message. `bytes`: of the message, as it goes over the wire.
// INVALID_ARGUMENT, which says where it makes no sense; a field that there is none of is refused by
// its name. `budget`: null: the bounds of JsonBounds alone.
grpc::Status json_to_bytes(std::string_view json, const google::protobuf::Descriptor* type,
                           JsonBudget* budget, std::string& bytes);
std::string write_json(const google::protobuf::Message& message);

// Whether a field of bytes is one that people write as text: `text`, `strings`, `stop_string`.
bool is_text(const google::protobuf::FieldDescriptor& field);
// The same for people: such fields are text as it is.
grpc::Status plain_json_to_bytes(std::string_view json, const google::protobuf::Descriptor* type,
                                 JsonBudget* budget, std::string& bytes);

// Both, into a message.
grpc::Status read_json(const std::string& json, google::protobuf::Message& message);
grpc::Status read_plain_json(const std::string& json, google::protobuf::Message& message);

}  // namespace lintel

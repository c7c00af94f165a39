#include "server/grpc/kserve/input_tensors.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lintel {
namespace {

static_assert(std::endian::native == std::endian::little, "raw contents are little-endian");

using WireTensor = inference::ModelInferRequest::InferInputTensor;

struct InputTensor {
  const WireTensor& wire;
  const std::string* raw;  // null: its contents are typed
  std::string path;        // as violations call it
};

// The tensor's numbers as they lie in memory, perhaps unaligned.
template <typename Number>
struct Numbers {
  const char* from = nullptr;
  std::size_t size = 0;

  Number operator[](std::size_t i) const {
    Number value;
    std::memcpy(&value, from + i * sizeof(Number), sizeof(Number));
    return value;
  }
};

template <typename Number>
std::optional<Numbers<Number>> numbers_of(const InputTensor& tensor,
                                          const google::protobuf::RepeatedField<Number>& typed,
                                          Violations& violations) {
  if (tensor.raw == nullptr) {
    return Numbers<Number>{reinterpret_cast<const char*>(typed.data()),
                           static_cast<std::size_t>(typed.size())};
  }
  if (tensor.raw->size() % sizeof(Number) != 0) {
    violations.add("raw_input_contents", "is not the values of the inputs, and nothing else");
    return std::nullopt;
  }
  return Numbers<Number>{tensor.raw->data(), tensor.raw->size() / sizeof(Number)};
}

// The elements of a tensor of BYTES. Raw, each is its length in four bytes and then the bytes.
std::optional<std::vector<std::string_view>> bytes_of(const InputTensor& tensor,
                                                      Violations& violations) {
  if (tensor.wire.datatype() != "BYTES") {
    violations.add(tensor.path + ".datatype",
                   "'" + clip(tensor.wire.datatype()) + "' is not BYTES");
    return std::nullopt;
  }
  std::vector<std::string_view> elements;
  if (tensor.raw == nullptr) {
    const auto& typed = tensor.wire.contents().bytes_contents();
    elements.assign(typed.begin(), typed.end());
    return elements;
  }
  for (std::string_view rest = *tensor.raw; !rest.empty();) {
    std::uint32_t size = 0;
    const bool has_size = rest.size() >= sizeof(size);
    if (has_size) std::memcpy(&size, rest.data(), sizeof(size));
    if (!has_size || size > rest.size() - sizeof(size)) {
      violations.add("raw_input_contents", "an element of " + tensor.path + " is cut short");
      return std::nullopt;
    }
    elements.push_back(rest.substr(sizeof(size), size));
    rest.remove_prefix(sizeof(size) + size);
  }
  return elements;
}

void add_size_violation(const InputTensor& tensor, std::size_t size, Violations& violations) {
  violations.add(tensor.path + ".shape",
                 "does not fit the " + std::to_string(size) + " values that are given");
}

template <typename Number>
void read_token_rows(const InputTensor& tensor,
                     const google::protobuf::RepeatedField<Number>& typed,
                     std::vector<std::vector<std::int32_t>>& prompts, Violations& violations) {
  const auto numbers = numbers_of(tensor, typed, violations);
  if (!numbers) return;
  // By division: the product of a hostile shape may overflow.
  const auto num_rows = static_cast<std::size_t>(tensor.wire.shape(0));
  const std::size_t length = numbers->size / num_rows;
  if (numbers->size % num_rows != 0 || static_cast<std::int64_t>(length) != tensor.wire.shape(1)) {
    return add_size_violation(tensor, numbers->size, violations);
  }
  prompts.assign(num_rows, std::vector<std::int32_t>(length));
  for (std::size_t i = 0; i < numbers->size; ++i) {
    const Number value = (*numbers)[i];
    if (!std::in_range<std::int32_t>(value)) {
      violations.add(indexed(tensor.path, i), std::to_string(value) + " is not a token id");
      if (violations.full()) return;
    }
    prompts[i / length][i % length] = static_cast<std::int32_t>(value);
  }
}

void read_tokens(const InputTensor& tensor, int max_rows, TensorRequest& request,
                 Violations& violations) {
  const WireTensor& wire = tensor.wire;
  const bool is_wide = wire.datatype() == "INT64";
  if (wire.datatype() != "INT32" && !is_wide) {
    violations.add(tensor.path + ".datatype",
                   "'" + clip(wire.datatype()) + "' is not INT32 or INT64");
  }
  if (wire.shape_size() != 2 || wire.shape(0) < 1 || wire.shape(0) > max_rows ||
      wire.shape(1) < 0) {
    violations.add(tensor.path + ".shape",
                   "is not [n, length] with n from 1 to " + std::to_string(max_rows));
    return;
  }
  if (is_wide) {
    read_token_rows(tensor, wire.contents().int64_contents(), request.prompts, violations);
  } else {
    read_token_rows(tensor, wire.contents().int_contents(), request.prompts, violations);
  }
}

// A text's bytes are its tokens.
void read_text(const InputTensor& tensor, int max_rows, TensorRequest& request,
               Violations& violations) {
  const auto texts = bytes_of(tensor, violations);
  if (!texts) return;
  const WireTensor& wire = tensor.wire;
  const bool has_rows = wire.shape_size() == 1 || (wire.shape_size() == 2 && wire.shape(1) == 1);
  if (!has_rows || wire.shape(0) < 1 || wire.shape(0) > max_rows) {
    violations.add(tensor.path + ".shape",
                   "is not [n, 1] with n from 1 to " + std::to_string(max_rows));
    return;
  }
  if (static_cast<std::int64_t>(texts->size()) != wire.shape(0)) {
    return add_size_violation(tensor, texts->size(), violations);
  }
  for (const std::string_view text : *texts) {
    std::vector<std::int32_t>& prompt = request.prompts.emplace_back();
    prompt.reserve(text.size());
    for (const char byte : text) prompt.push_back(static_cast<unsigned char>(byte));
  }
}

void read_stop(const InputTensor& tensor, TensorRequest& request, Violations& violations) {
  const auto strings = bytes_of(tensor, violations);
  if (!strings) return;
  const WireTensor& wire = tensor.wire;
  const bool is_list = wire.shape_size() == 1 || (wire.shape_size() == 2 && wire.shape(0) == 1);
  if (!is_list) {
    violations.add(tensor.path + ".shape", "is not [k]: they are of all rows");
  } else if (static_cast<std::int64_t>(strings->size()) != wire.shape(wire.shape_size() - 1)) {
    add_size_violation(tensor, strings->size(), violations);
  }
  for (const std::string_view string : *strings) {
    request.settings.mutable_stop()->add_strings(std::string(string));
  }
}

// Whole numbers in a list, of all rows.
std::vector<std::int64_t> read_list(const InputTensor& tensor, Violations& violations) {
  const WireTensor& wire = tensor.wire;
  std::vector<std::int64_t> list;
  const auto take = [&](const auto& typed) {
    if (const auto numbers = numbers_of(tensor, typed, violations)) {
      for (std::size_t i = 0; i < numbers->size; ++i) list.push_back((*numbers)[i]);
    }
  };
  if (wire.datatype() == "INT64") {
    take(wire.contents().int64_contents());
  } else if (wire.datatype() == "INT32") {
    take(wire.contents().int_contents());
  } else {
    violations.add(tensor.path + ".datatype",
                   "'" + clip(wire.datatype()) + "' is not INT32 or INT64");
    return list;
  }
  const bool is_list = wire.shape_size() == 1 || (wire.shape_size() == 2 && wire.shape(0) == 1);
  if (!is_list) {
    violations.add(tensor.path + ".shape", "is not [k]: they are of all rows");
  } else if (static_cast<std::int64_t>(list.size()) != wire.shape(wire.shape_size() - 1)) {
    add_size_violation(tensor, list.size(), violations);
  }
  return list;
}

// Known values, each at its position; those that follow each other are a span.
struct GivenLists {
  std::optional<std::vector<std::int64_t>> positions, tokens;

  void add_to(v1::GenerateRequest& settings, Violations& violations) const {
    if (!positions && !tokens) return;
    if (!positions || !tokens || positions->size() != tokens->size()) {
      violations.add("inputs",
                     "given_positions and given_tokens have to be there both, one "
                     "position for each token");
      return;
    }
    v1::GivenSpan* span = nullptr;
    std::int64_t next = 0;
    for (std::size_t i = 0; i < positions->size() && !violations.full(); ++i) {
      const std::int64_t token = (*tokens)[i];
      if (!std::in_range<std::int32_t>(token)) {
        violations.add(indexed("given_tokens", i), std::to_string(token) + " is not a token id");
        continue;
      }
      if (span == nullptr || (*positions)[i] != next) {
        span = settings.add_given();
        span->set_position((*positions)[i]);
      }
      span->mutable_values()->mutable_tokens()->add_ids(static_cast<std::int32_t>(token));
      next = span->position() + span->values().tokens().ids_size();
    }
  }
};

}  // namespace

void read_inputs(const inference::ModelInferRequest& wire, int max_rows, TensorRequest& request,
                 Violations& violations) {
  request.raw = wire.raw_input_contents_size() > 0;
  if (request.raw && wire.raw_input_contents_size() != wire.inputs_size()) {
    violations.add("raw_input_contents", "is not the values of the inputs, and nothing else");
    return;
  }
  int num_prompts = 0, num_stops = 0;
  GivenLists given;
  for (int i = 0; i < wire.inputs_size() && !violations.full(); ++i) {
    const InputTensor tensor{wire.inputs(i), request.raw ? &wire.raw_input_contents(i) : nullptr,
                             indexed("inputs", static_cast<std::size_t>(i))};
    for (const auto& [name, parameter] : tensor.wire.parameters()) {  // shared memory elsewhere
      violations.add(tensor.path + ".parameters[" + clip(name) + "]",
                     "is not a parameter of this server");
    }
    if (request.raw && tensor.wire.has_contents()) {
      violations.add("raw_input_contents", "is not the values of the inputs, and nothing else");
      return;
    }
    const std::string& name = tensor.wire.name();
    if (name == "stop") {
      if (++num_stops == 1) read_stop(tensor, request, violations);
    } else if (name == "given_positions" || name == "given_tokens") {
      auto& list = name == "given_tokens" ? given.tokens : given.positions;
      if (list) violations.add("inputs", name + " is there more than once");
      list = read_list(tensor, violations);
    } else if (name != "tokens" && name != "text_input") {
      violations.add("inputs", "'" + clip(name) +
                                   "' is not tokens, text_input, stop, given_positions or "
                                   "given_tokens");
    } else if (++num_prompts == 1) {
      request.from_text = name == "text_input";
      request.from_text ? read_text(tensor, max_rows, request, violations)
                        : read_tokens(tensor, max_rows, request, violations);
    }
  }
  // A sequence that continues needs no input.
  request.has_no_input =
      num_prompts == 0 && !request.sequence_id.empty() && !request.sequence_start;
  if (request.has_no_input) {
    request.prompts.emplace_back();
  } else if (num_prompts != 1) {
    violations.add("inputs",
                   "there has to be one of the name tokens, or text_input in its place: only a "
                   "sequence that continues or ends needs none");
  }
  given.add_to(request.settings, violations);
  if (num_stops > 1) violations.add("inputs", "stop is there more than once");
}

}  // namespace lintel

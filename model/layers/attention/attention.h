// SPDX-License-Identifier: Apache-2.0
// AttentionKind, what a kind of attention declares; AttentionBackend, the contract that every kind
// keeps.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/core/errors.h"
#include "model/core/tensor.h"
#include "model/layers/layer_state.h"

namespace lintel {

// AttentionKind: what a kind of attention says of itself. Config files, --attention, --help, the
// docs, weights, memory estimates, training and the tests of all kinds read it here; nothing else
// knows a kind.
//
// A new kind is one .cpp beside this file, which defines `const AttentionKind kind_NAME`, and its
// line in kinds.inc.

// A key of the "attention" object of config.json.
struct ConfigKey {
  enum class Type {
    kInteger,
    kIntegers,  // one, or a list of them: one a head
    kPositive,
    kNotNegative,
    kBoolean,
    kChoice
  };

  const char* name;  // "rounds"
  Type type;
  const char* doc;                          // "hash rounds"
  double low = 1;                           // kInteger, kIntegers: the least
  double high = 0;                          // numbers: the most
  const char* initial = nullptr;            // as JSON text: "1e-6", "\"mean\""; null: required
  const char* null_means = nullptr;         // "1/sqrt(d_head)"; null: JSON's null is refused
  std::array<const char*, 9> choices = {};  // kChoice
};
using KeyValue = std::variant<std::monostate /*null*/, bool, std::int64_t, double, std::string,
                              std::vector<std::int64_t>>;

struct AttentionKind;

// The attention of one layer: its kind, and a value for each of its keys in their order.
class AttentionConfig {
 public:
  // REQUIRES: values as the keys ask for; config/attention_spec.h checks them.
  AttentionConfig(const AttentionKind& kind, std::vector<KeyValue> values);

  const AttentionKind& kind() const { return *kind_; }
  const char* type() const;
  std::span<const KeyValue> values() const { return values_; }

  bool is_null(std::string_view key) const;
  // REQUIRES: the kind has such a key of that type, and where it is null there is an `if_null`.
  std::size_t integer(std::string_view key, std::size_t if_null = 0) const;
  std::vector<std::int64_t> integers(std::string_view key) const;  // of one number a list of one
  double number(std::string_view key, double if_null = 0.0) const;
  bool boolean(std::string_view key) const;
  const std::string& choice(std::string_view key) const;

  bool operator==(const AttentionConfig&) const = default;

 private:
  const KeyValue& value(std::string_view key) const;

  const AttentionKind* kind_;
  std::vector<KeyValue> values_;
};

// Dimensions of the model that a layer belongs to.
struct LayerDims {
  int d_model = 0;              // E
  int n_heads = 0;              // H
  int d_head = 0;               // D
  std::int64_t max_length = 0;  // positions that can be fed; 0: unbounded

  int width() const { return n_heads * d_head; }  // H*D
};

// A linear map of the layer's input: transformer.layers.I.attention.NAME.{weight,bias}, [width, E]
// and [width]. All that are read are one product; its parts go to step() in the declared order.
struct Projection {
  std::string name;  // "query_projection"
  int width = 0;
  bool has_bias = true;
  bool is_read = true;  // false: stored by the format and never computed, as lsh's keys
};

// Another tensor of a layer: transformer.layers.I.attention.inner_attention.NAME, held in f32.
struct OwnTensor {
  std::string name;  // "planes"
  std::vector<std::int64_t> shape;
  const char* shape_doc = "";  // the same in letters: "[rounds, bits, D]"
  bool is_learned = false;     // counts as parameters
  // Fills one that the weights do not have in this shape, where attention replaces another or a
  // model is random: a pure function of its arguments. draw_normal where it is null.
  std::function<void(std::span<float> values, const OwnTensor& of, std::uint64_t seed, int layer)>
      draw = nullptr;
  // Returns the error of finite values that were read, as in "found 9 in row 2, expected ...";
  // empty: they are valid. Null: any values are valid.
  std::string (*refuse)(std::span<const float> values, const OwnTensor& of) = nullptr;
};

// Two keys, or a key and the model, that do not go together.
struct Contradiction {
  std::string key;
  std::string found;
  std::string expected;
};

// Shapes and weights a backend is made from.
struct AttentionParams {
  AttentionConfig config;
  LayerDims dims;
  std::span<const Matrix> own;  // as tensors() lists them; copied by the backend

  // REQUIRES: tensors() lists one of this name.
  const Matrix& tensor(std::string_view name) const;
};

class AttentionBackend;

using Projections = std::vector<Projection> (*)(const AttentionConfig&, const LayerDims&);
// query_projection, key_projection and value_projection, each H*D wide.
std::vector<Projection> query_key_value(const AttentionConfig& config, const LayerDims& dims);

struct AttentionKind {
  const char* type;   // "lsh", as kinds.inc has it
  const char* doc;    // a description, for people
  const char* state;  // a session's state for a layer, and its growth
  const char* cost;   // of a token at position t
  std::span<const ConfigKey> keys = {};
  Projections projections = query_key_value;
  // Values of a row that step() writes and out_projection reads; null: H*D.
  int (*out_width)(const AttentionConfig&, const LayerDims&) = nullptr;
  std::vector<OwnTensor> (*tensors)(const AttentionConfig&, const LayerDims&) = nullptr;  // or none
  // Floats of tables that make() computes, beside copies of tensors(). Null: none.
  std::size_t (*table_floats)(const AttentionConfig&, const LayerDims&) = nullptr;
  // Keys that are legal alone and not together. Null: there are none.
  std::optional<Contradiction> (*contradiction)(const AttentionConfig&, const LayerDims&) = nullptr;
  std::unique_ptr<AttentionBackend> (*make)(const AttentionParams&);
  // Keys of small layers, as in "rounds=2,bits=4,chunk_size=8", valid for any dims that bound
  // max_length, the first also where it is not: every test of all kinds runs each. At least one, ""
  // where no key is required.
  std::span<const char* const> samples;
};

// kinds.inc, in its order.
std::span<const AttentionKind* const> attention_kinds();
std::vector<std::string> attention_types();
// Throws ModelError naming those there are.
const AttentionKind& attention_kind(std::string_view type);

// Properties that the kind declares, with its defaults filled in.
int out_width(const AttentionConfig& config, const LayerDims& dims);
std::vector<OwnTensor> own_tensors(const AttentionConfig& config, const LayerDims& dims);
// `number` distinguishes a layer's tensors: its place in own_tensors().
void draw_tensor(std::span<float> values, const OwnTensor& tensor, std::uint64_t seed, int layer,
                 std::size_t number);
// N(0, 1), each part of the first dimension a stream of its own.
void draw_normal(std::span<float> values, const OwnTensor& of, std::uint64_t seed, int layer);
// N(0, 1/n), n the last dimension: a product with it is as large as what is multiplied.
void draw_fan_in(std::span<float> values, const OwnTensor& of, std::uint64_t seed, int layer);

std::unique_ptr<AttentionBackend> make_attention(const AttentionParams& params);

// Another table than kinds.inc is for tests.
#ifndef LINTEL_KINDS
#define LINTEL_KINDS "model/layers/attention/kinds.inc"
#endif
#define LINTEL_KIND(name) extern const AttentionKind kind_##name;
#include LINTEL_KINDS
#undef LINTEL_KIND

// Working memory a step may use; grows to its high-water mark and stays. One per worker thread.
struct AttentionScratch {
  std::vector<float> floats;
  std::vector<std::int32_t> ints;
  std::vector<const float*> pointers;
  std::vector<std::size_t> ends;
};

// A row for each token: what the projections that are read make of it, [rows, width] each, in the
// order in which the kind declares them. They may lie side by side: each has a stride of its own.
using AttentionInputs = std::span<const MatrixView<const float>>;

// The attention of one layer. Const and shareable between threads.
class AttentionBackend : public StateLayout {
 public:
  // Feeds one token a row: row r extends *states[r] and attends from there. Consecutive rows may
  // share a state, in order of position. The bits of a row's output depend on its sequence only.
  // out: [rows, out_width], with a stride of its own.
  virtual void step(std::span<LayerState* const> states, AttentionInputs inputs,
                    MatrixView<float> out, AttentionScratch& scratch) const = 0;

  // All tokens of one sequence at once, as recompute mode runs a prefix: row t attends from
  // position t to those up to it. Shapes as in step(). By default what a fresh state gives step by
  // step.
  virtual void full_pass(AttentionInputs inputs, MatrixView<float> out,
                         AttentionScratch& scratch) const;

  // True if full_pass() has the bits of step(). If not, the backend documents how the two differ.
  virtual bool full_pass_equals_steps() const { return true; }
};

}  // namespace lintel

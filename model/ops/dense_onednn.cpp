// SPDX-License-Identifier: Apache-2.0
#include "model/ops/dense_onednn.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <mutex>
#include <vector>

namespace lintel {
namespace {

using dnnl::memory;

// The most rows of one primitive.
constexpr std::size_t kMaxRows = 64;

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// Types of inputs, weights and outputs. int8 gives the exact sums.
struct Types {
  memory::data_type x, w, y;
};

Types types_of(WeightType type) {
  using enum memory::data_type;
  if (type == WeightType::kF32) return {f32, f32, f32};
  return type == WeightType::kInt8 ? Types{u8, s8, s32} : Types{bf16, bf16, f32};
}

memory::desc matrix(std::size_t rows, std::size_t cols, memory::data_type type,
                    memory::format_tag layout = memory::format_tag::ab) {
  return {{static_cast<memory::dim>(rows), static_cast<memory::dim>(cols)}, type, layout};
}

// One number of rows. Const and shareable: scratch memory is the thread's.
struct Primitive {
  std::size_t serial = 0;  // of all primitives of the process, from 0
  dnnl::matmul matmul;
  memory::desc x, y, scratch;
};

// A thread's side of oneDNN: one OpenMP thread, so that workers share no barrier; a stream; and the
// arguments of the primitives it has used.
class OneDnnThread {
 public:
  struct Arguments {
    memory x, y, scratch;
  };

  static OneDnnThread& mine() {
    thread_local OneDnnThread state;
    return state;
  }

  dnnl::stream& stream() { return stream_; }

  Arguments& arguments(const Primitive& primitive) {
    if (primitive.serial >= arguments_.size()) arguments_.resize(primitive.serial + 1);
    auto& found = arguments_[primitive.serial];
    if (found == nullptr) {
      found =
          std::make_unique<Arguments>(Arguments{memory(primitive.x, cpu_engine(), DNNL_MEMORY_NONE),
                                                memory(primitive.y, cpu_engine(), DNNL_MEMORY_NONE),
                                                memory(primitive.scratch, cpu_engine())});
    }
    return *found;
  }

 private:
  OneDnnThread() : stream_(cpu_engine()) { omp_set_num_threads(1); }

  dnnl::stream stream_;
  std::vector<std::unique_ptr<Arguments>> arguments_;  // by serial; null: not used yet
};

// The primitives of one shape, one for each number of rows (a number known only when it runs falls
// to slow kernels), made when first needed and shared by all layers of that shape. Never destroyed:
// a process holds few of them.
class OneDnnShape {
 public:
  static const OneDnnShape& get(const ProductShape& of) {
    static std::mutex mutex;
    static auto& shapes = *new std::map<ProductShape, OneDnnShape*>();
    const std::lock_guard lock(mutex);
    auto& shape = shapes[of];
    if (shape == nullptr) shape = new OneDnnShape(of.type, of.in_features(), of.out_features);
    return *shape;
  }

  // Layout of the packed weights, the same for every number of rows.
  const memory::desc& weights_desc() const { return weights_desc_; }
  memory::desc plain_weights() const { return matrix(in_features_, out_features_, types_.w); }

  // Lock-free but for the first call with this number of rows. REQUIRES: 1 <= rows <= kMaxRows.
  const Primitive& primitive(std::size_t rows) const {
    const Primitive* found = primitives_[rows].load(std::memory_order_acquire);
    return found != nullptr ? *found : make_primitive(rows);
  }

 private:
  static constexpr std::size_t kLayoutRows = 64;

  OneDnnShape(WeightType type, std::size_t in_features, std::size_t out_features)
      : types_(types_of(type)), in_features_(in_features), out_features_(out_features) {
    const auto any = matrix(in_features, out_features, types_.w, memory::format_tag::any);
    weights_desc_ = describe(kLayoutRows, any).weights_desc();
  }

  dnnl::matmul::primitive_desc describe(std::size_t rows, const memory::desc& weights) const {
    OneDnnThread::mine();  // one OpenMP thread: it decides the blocking
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const memory::desc x = matrix(rows, in_features_, types_.x);
    const memory::desc y = matrix(rows, out_features_, types_.y);
#if DNNL_VERSION_MAJOR >= 3
    return {cpu_engine(), x, weights, y, attributes};
#else
    return {dnnl::matmul::desc(x, weights, y), attributes, cpu_engine()};
#endif
  }

  const Primitive& make_primitive(std::size_t rows) const {
    const std::lock_guard lock(mutex_);
    if (const Primitive* found = primitives_[rows].load(std::memory_order_acquire)) return *found;
    static std::atomic<std::size_t> next_serial{0};
    const auto description = describe(rows, weights_desc_);
    auto* made =
        new Primitive{next_serial.fetch_add(1), dnnl::matmul(description), description.src_desc(),
                      description.dst_desc(), description.scratchpad_desc()};
    primitives_[rows].store(made, std::memory_order_release);
    return *made;
  }

  const Types types_;
  const std::size_t in_features_;
  const std::size_t out_features_;
  memory::desc weights_desc_;
  mutable std::mutex mutex_;  // held while a primitive is made
  mutable std::array<std::atomic<const Primitive*>, kMaxRows + 1> primitives_{};
};

void check(dnnl_status_t status) {
  if (status != dnnl_success) throw dnnl::error(status, "oneDNN matmul failed");
}

// The bytes of W^T, [inputs and padding, out_features].
std::vector<std::uint8_t> plain_bytes(const PackedWeights& weights) {
  const std::size_t per_cell = inputs_per_cell(weights.type);
  const std::size_t size = 4 / per_cell;  // of an input, in bytes
  std::vector<std::uint8_t> bytes(weights.row_cells * 4 * weights.out_features);
  for (std::size_t n = 0; n < weights.out_features; ++n) {
    const std::uint32_t* column = weights.group(n / kGroupWidth) + n % kGroupWidth;
    for (std::size_t c = 0; c < weights.row_cells; ++c) {
      for (std::size_t i = 0; i < per_cell; ++i) {
        const std::uint32_t value = column[c * kGroupWidth] >> (8 * size * i);
        std::memcpy(&bytes[((c * per_cell + i) * weights.out_features + n) * size], &value, size);
      }
    }
  }
  return bytes;
}

class OneDnnMatrix final : public LibraryMatrix {
 public:
  explicit OneDnnMatrix(const ProductShape& shape)
      : type_(shape.type),
        shape_(&OneDnnShape::get(shape)),
        weights_(shape_->weights_desc(), cpu_engine()) {}

  void scramble() override {
    std::vector<std::uint8_t> bytes(shape_->plain_weights().get_size());
    std::uint64_t state = 2;
    for (std::size_t i = 0; i + sizeof(std::uint32_t) <= bytes.size(); i += sizeof(std::uint32_t)) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const std::uint32_t cell = any_cell(type_, static_cast<std::uint32_t>(state >> 32));
      std::memcpy(&bytes[i], &cell, sizeof cell);
    }
    take(bytes);
  }

  void assign(const PackedWeights& weights) override {
    std::vector<std::uint8_t> bytes = plain_bytes(weights);
    take(bytes);
  }

  // REQUIRES: at most kMaxRows rows.
  void multiply(const std::uint32_t* x, std::size_t rows, std::uint32_t* sums) const override {
    OneDnnThread& thread = OneDnnThread::mine();
    const Primitive& primitive = shape_->primitive(rows);
    OneDnnThread::Arguments& arguments = thread.arguments(primitive);
    // The C interface: the C++ one builds a map for every call.
    check(dnnl_memory_set_data_handle(arguments.x.get(), const_cast<std::uint32_t*>(x)));
    check(dnnl_memory_set_data_handle(arguments.y.get(), sums));
    const std::array<dnnl_exec_arg_t, 4> list = {{{DNNL_ARG_SRC, arguments.x.get()},
                                                  {DNNL_ARG_WEIGHTS, weights_.get()},
                                                  {DNNL_ARG_DST, arguments.y.get()},
                                                  {DNNL_ARG_SCRATCHPAD, arguments.scratch.get()}}};
    check(dnnl_primitive_execute(primitive.matmul.get(), thread.stream().get(),
                                 static_cast<int>(list.size()), list.data()));
  }

  std::size_t bytes() const override { return weights_.get_desc().get_size(); }

 private:
  // W^T as rows of inputs.
  void take(std::vector<std::uint8_t>& bytes) {
    memory source(shape_->plain_weights(), cpu_engine(), bytes.data());
    dnnl::stream& stream = OneDnnThread::mine().stream();
    dnnl::reorder(source, weights_).execute(stream, source, weights_);
    stream.wait();
  }

  const WeightType type_;
  const OneDnnShape* const shape_;
  memory weights_;
};

// True if oneDNN uses all of an instruction set. They are sets of bits, of which each version of
// oneDNN knows more.
bool uses(dnnl::cpu_isa isa) {
  const auto bits = static_cast<unsigned>(isa);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & bits) == bits;
}

const char* isa_name() {
#if !defined(__x86_64__)
  return "not x86";  // oneDNN reports no ISA elsewhere
#else
  using enum dnnl::cpu_isa;
  if (uses(avx512_core_amx)) return "avx512_core_amx";
  if (uses(avx512_core_bf16)) return "avx512_core_bf16";
  if (uses(avx512_core_vnni)) return "avx512_core_vnni";
  return uses(avx512_core) ? "avx512_core" : "below AVX-512";
#endif
}

class OneDnnLibrary final : public ProductLibrary {
 public:
  std::string name() const override { return std::string("onednn (") + isa_name() + ")"; }
  // Our own kernels are within 3 % or faster on the machines we measured (docs/performance.md).
  std::size_t worthwhile_rows(WeightType) const override { return SIZE_MAX; }
  std::unique_ptr<LibraryMatrix> new_matrix(const ProductShape& shape) const override {
    try {
      return std::make_unique<OneDnnMatrix>(shape);
    } catch (const dnnl::error& error) {
      if (error.status == dnnl_unimplemented) return nullptr;
      throw;
    }
  }
};

}  // namespace

const ProductLibrary& onednn_library() {
  static const OneDnnLibrary library;
  return library;
}

InstructionSet onednn_instruction_set() {
  using enum dnnl::cpu_isa;
  if (uses(avx512_core_amx)) return InstructionSet::kAmx;
  if (uses(avx512_core_bf16)) return InstructionSet::kAvx512Bf16;
  if (uses(avx512_core_vnni)) return InstructionSet::kAvx512Vnni;
  if (uses(avx512_core)) return InstructionSet::kAvx512;
  return uses(avx2_vnni) ? InstructionSet::kAvxVnni : InstructionSet::kAvx2;
}

}  // namespace lintel

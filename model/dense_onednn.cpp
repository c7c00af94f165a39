#include "model/dense_onednn.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

namespace lintel {
namespace {

using dnnl::memory;

// More rows than that are computed in several goes, which is as fast.
constexpr std::size_t kMaxRows = 256;

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

// A thread's side of oneDNN: one OpenMP thread, so that workers share no barrier; a stream; the
// arguments of the primitives it has used; and raw outputs.
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

  std::uint32_t* outputs(std::size_t count) {
    if (count > num_outputs_) {
      outputs_ = make_aligned<std::uint32_t>(count);
      num_outputs_ = count;
    }
    return outputs_.get();
  }

 private:
  OneDnnThread() : stream_(cpu_engine()) { omp_set_num_threads(1); }

  dnnl::stream stream_;
  std::vector<std::unique_ptr<Arguments>> arguments_;  // by serial; null: not used yet
  AlignedArray<std::uint32_t> outputs_;
  std::size_t num_outputs_ = 0;
};

// The primitives of one shape, one for each number of rows (a number known only when it runs falls
// to slow kernels), made when first needed and shared by all layers of that shape. Never destroyed:
// a process holds few of them.
class OneDnnShape {
 public:
  // in_features counts the padding of the last cell.
  static const OneDnnShape& get(WeightType type, std::size_t in_features,
                                std::size_t out_features) {
    static std::mutex mutex;
    static auto& shapes =
        *new std::map<std::tuple<WeightType, std::size_t, std::size_t>, OneDnnShape*>();
    const std::lock_guard lock(mutex);
    auto& shape = shapes[{type, in_features, out_features}];
    if (shape == nullptr) shape = new OneDnnShape(type, in_features, out_features);
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
    const dnnl::matmul::desc product(matrix(rows, in_features_, types_.x), weights,
                                     matrix(rows, out_features_, types_.y));
    return {product, attributes, cpu_engine()};
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

}  // namespace

struct OneDnnWeights::Impl {
  explicit Impl(const PackedWeights& packed)
      : own(&packed),
        shape(&OneDnnShape::get(packed.type, packed.row_cells * inputs_per_cell(packed.type),
                                packed.out_features)),
        weights(shape->weights_desc(), cpu_engine()) {
    std::vector<std::uint8_t> bytes = plain_bytes(packed);
    memory source(shape->plain_weights(), cpu_engine(), bytes.data());
    dnnl::stream& stream = OneDnnThread::mine().stream();
    dnnl::reorder(source, weights).execute(stream, source, weights);
    stream.wait();
  }

  // REQUIRES: at most kMaxRows rows.
  void multiply(const Product& product) const {
    OneDnnThread& thread = OneDnnThread::mine();
    const Primitive& primitive = shape->primitive(product.rows);
    OneDnnThread::Arguments& arguments = thread.arguments(primitive);
    std::uint32_t* const raw = thread.outputs(product.rows * own->out_features);
    // The C interface: the C++ one builds a map for every call.
    check(dnnl_memory_set_data_handle(arguments.x.get(), const_cast<std::uint32_t*>(product.x)));
    check(dnnl_memory_set_data_handle(arguments.y.get(), raw));
    const std::array<dnnl_exec_arg_t, 4> list = {{{DNNL_ARG_SRC, arguments.x.get()},
                                                  {DNNL_ARG_WEIGHTS, weights.get()},
                                                  {DNNL_ARG_DST, arguments.y.get()},
                                                  {DNNL_ARG_SCRATCHPAD, arguments.scratch.get()}}};
    check(dnnl_primitive_execute(primitive.matmul.get(), thread.stream().get(),
                                 static_cast<int>(list.size()), list.data()));
    finish_sums(product, raw);
  }

  const PackedWeights* own;
  const OneDnnShape* shape;
  memory weights;
};

bool OneDnnWeights::worthwhile(WeightType type) {
  return type != WeightType::kF32 &&
         dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_amx;
}

OneDnnWeights::OneDnnWeights(const PackedWeights& weights)
    : impl_(std::make_unique<Impl>(weights)) {}
OneDnnWeights::~OneDnnWeights() = default;
OneDnnWeights::OneDnnWeights(OneDnnWeights&&) noexcept = default;
OneDnnWeights& OneDnnWeights::operator=(OneDnnWeights&&) noexcept = default;

void OneDnnWeights::multiply(const Product& product) const {
  for (std::size_t r = 0; r < product.rows; r += kMaxRows) {
    Product part = product;
    part.rows = std::min(kMaxRows, product.rows - r);
    part.x += r * impl_->own->row_cells;
    if (part.x_scales != nullptr) part.x_scales += r;
    part.y += r * product.y_stride;
    impl_->multiply(part);
  }
}

bool OneDnnWeights::rows_are_independent() const {
  const PackedWeights& own = *impl_->own;
  if (own.type == WeightType::kInt8) return true;  // sums of integers
  constexpr std::size_t kRows = 33;
  const auto x = make_aligned<std::uint32_t>(kRows * own.row_cells);
  std::uint32_t random = 1;
  for (std::size_t i = 0; i < kRows * own.row_cells; ++i) {
    random = random * 1664525 + 1013904223;
    // Two bf16 between 2^-8 and 1, of either sign.
    x[i] = (random & 0x83ff83ffu) | 0x3c003c00u;
  }
  Matrix alone(kRows, own.out_features);
  Matrix together(kRows, own.out_features);
  const auto run = [&](std::size_t first, std::size_t rows, MatrixView<float> y) {
    multiply({.weights = &own,
              .x = x.get() + first * own.row_cells,
              .rows = rows,
              .y = y.data(),
              .y_stride = y.stride()});
  };
  for (std::size_t r = 0; r < kRows; ++r) run(r, 1, alone.view().rows_from(r, 1));
  for (const std::size_t rows : {2, 3, 4, 8, 16, 33}) {
    run(0, rows, together.view());
    if (std::memcmp(alone.row(0).data(), together.row(0).data(),
                    rows * own.out_features * sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

std::size_t OneDnnWeights::bytes() const { return impl_->weights.get_desc().get_size(); }

bool onednn_has_avx512() {
  const auto isa = dnnl::get_effective_cpu_isa();
  return isa == dnnl::cpu_isa::avx512_core || isa == dnnl::cpu_isa::avx512_core_vnni ||
         isa == dnnl::cpu_isa::avx512_core_bf16 || isa == dnnl::cpu_isa::avx512_core_amx;
}

}  // namespace lintel

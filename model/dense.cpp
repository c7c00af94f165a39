#include "model/dense.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <mutex>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "hwy/targets.h"
#include "model/dense_kernels.h"
#include "model/kernels.h"

namespace lintel {
namespace {

using dnnl::memory;

// More rows than that are computed in several goes, which is as fast.
constexpr std::size_t kMaxRows = 256;

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

memory::desc plain(std::size_t rows, std::size_t cols) {
  return {{static_cast<memory::dim>(rows), static_cast<memory::dim>(cols)},
          memory::data_type::f32,
          memory::format_tag::ab};
}

// What a thread needs to execute one primitive, made on the thread's first use of it.
struct Arguments {
  Arguments(const memory::desc& src_desc, const memory::desc& dst_desc,
            const memory::desc& scratch_desc)
      : src(src_desc, cpu_engine(), DNNL_MEMORY_NONE),
        dst(dst_desc, cpu_engine(), DNNL_MEMORY_NONE),
        scratch(scratch_desc, cpu_engine()) {}
  memory src;
  memory dst;
  memory scratch;
};

// y = x W^T + b for one number of rows. Const and shareable: scratch memory is the thread's.
struct Primitive {
  std::size_t serial = 0;  // of all primitives of the process, from 0
  dnnl::matmul matmul;
  memory::desc src;
  memory::desc dst;
  memory::desc scratch;
};

// A thread's side of oneDNN: one OpenMP thread, a stream and the arguments of the primitives it
// uses.
class OneDnnThread {
 public:
  static OneDnnThread& mine() {
    thread_local OneDnnThread state;
    return state;
  }

  dnnl::stream& stream() { return stream_; }

  Arguments& arguments(const Primitive& primitive) {
    if (primitive.serial >= arguments_.size()) arguments_.resize(primitive.serial + 1);
    auto& found = arguments_[primitive.serial];
    if (found == nullptr) {
      found = std::make_unique<Arguments>(primitive.src, primitive.dst, primitive.scratch);
    }
    return *found;
  }

 private:
  OneDnnThread() : stream_(cpu_engine()) { omp_set_num_threads(1); }

  dnnl::stream stream_;
  std::vector<std::unique_ptr<Arguments>> arguments_;  // by serial; null: not used yet
};

// The primitives of one shape, one for each number of rows, made when first needed and shared by
// all layers of that shape. Never destroyed: a process holds few of them.
class OneDnnShape {
 public:
  static const OneDnnShape& get(std::size_t in_features, std::size_t out_features,
                                Dense::Fused fused) {
    static std::mutex mutex;
    static auto& shapes =
        *new std::map<std::tuple<std::size_t, std::size_t, Dense::Fused>, OneDnnShape*>();
    const std::lock_guard lock(mutex);
    auto& shape = shapes[{in_features, out_features, fused}];
    if (shape == nullptr) shape = new OneDnnShape(in_features, out_features, fused);
    return *shape;
  }

  // Layout of the packed weights, the same for every number of rows.
  const memory::desc& weights_desc() const { return weights_desc_; }
  memory::desc bias_desc() const { return plain(1, out_features_); }

  // Lock-free but for the first call with this number of rows. REQUIRES: 1 <= rows <= kMaxRows.
  const Primitive& primitive(std::size_t rows) const {
    const Primitive* found = primitives_[rows].load(std::memory_order_acquire);
    return found != nullptr ? *found : make_primitive(rows);
  }

 private:
  // Packed for 64 rows: on AVX-512 every number of rows gives blocks of 16 to 64 columns, and with
  // many rows it is that the layout matters.
  static constexpr std::size_t kLayoutRows = 64;

  OneDnnShape(std::size_t in_features, std::size_t out_features, Dense::Fused fused)
      : in_features_(in_features), out_features_(out_features), fused_(fused) {
    const memory::desc any(
        {static_cast<memory::dim>(in_features), static_cast<memory::dim>(out_features)},
        memory::data_type::f32, memory::format_tag::any);
    weights_desc_ = describe(kLayoutRows, any).weights_desc();
  }

  dnnl::matmul::primitive_desc describe(std::size_t rows, const memory::desc& weights) const {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    dnnl::post_ops after;
    if (fused_ == Dense::Fused::kRelu) {
      after.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
    }
    if (fused_ == Dense::Fused::kGelu) {
      after.append_eltwise(1.0f, dnnl::algorithm::eltwise_gelu_erf, 0.0f, 0.0f);
    }
    attributes.set_post_ops(after);
    const dnnl::matmul::desc product(plain(rows, in_features_), weights, bias_desc(),
                                     plain(rows, out_features_));
    return {product, attributes, cpu_engine()};
  }

  const Primitive& make_primitive(std::size_t rows) const {
    OneDnnThread::mine();  // one OpenMP thread: it decides the blocking
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

  const std::size_t in_features_;
  const std::size_t out_features_;
  const Dense::Fused fused_;
  memory::desc weights_desc_;
  mutable std::mutex mutex_;  // held while a primitive is made
  mutable std::array<std::atomic<const Primitive*>, kMaxRows + 1> primitives_{};
};

// W and b in oneDNN's layout.
class OneDnnDense {
 public:
  OneDnnDense(std::span<const float> weight, std::span<const float> bias, std::size_t in_features,
              std::size_t out_features, Dense::Fused fused)
      : shape_(&OneDnnShape::get(in_features, out_features, fused)),
        weights_(shape_->weights_desc(), cpu_engine()),
        bias_(shape_->bias_desc(), cpu_engine()) {
    // A row of W is a column of the matrix oneDNN multiplies by.
    const memory::desc transposed(
        {static_cast<memory::dim>(in_features), static_cast<memory::dim>(out_features)},
        memory::data_type::f32, memory::format_tag::ba);
    memory source(transposed, cpu_engine(), const_cast<float*>(weight.data()));
    dnnl::stream& stream = OneDnnThread::mine().stream();
    dnnl::reorder(source, weights_).execute(stream, source, weights_);
    stream.wait();
    std::memcpy(bias_.get_data_handle(), bias.data(), bias.size_bytes());
  }

  // REQUIRES: at most kMaxRows rows, one after the other without gaps.
  void apply(const float* x, float* y, std::size_t rows) const {
    OneDnnThread& thread = OneDnnThread::mine();
    const Primitive& primitive = shape_->primitive(rows);
    Arguments& arguments = thread.arguments(primitive);
    // The C interface: the C++ one builds a map for every call.
    check(dnnl_memory_set_data_handle(arguments.src.get(), const_cast<float*>(x)));
    check(dnnl_memory_set_data_handle(arguments.dst.get(), y));
    const std::array<dnnl_exec_arg_t, 5> list = {{{DNNL_ARG_SRC, arguments.src.get()},
                                                  {DNNL_ARG_WEIGHTS, weights_.get()},
                                                  {DNNL_ARG_BIAS, bias_.get()},
                                                  {DNNL_ARG_DST, arguments.dst.get()},
                                                  {DNNL_ARG_SCRATCHPAD, arguments.scratch.get()}}};
    check(dnnl_primitive_execute(primitive.matmul.get(), thread.stream().get(),
                                 static_cast<int>(list.size()), list.data()));
  }

  std::size_t bytes() const { return weights_.get_desc().get_size() + bias_.get_desc().get_size(); }

 private:
  static void check(dnnl_status_t status) {
    if (status != dnnl_success) throw dnnl::error(status, "oneDNN matmul failed");
  }

  const OneDnnShape* shape_;
  memory weights_;
  memory bias_;
};

// Promise 1 was seen to hold for oneDNN's f32 matmul on AVX-512, and not to hold below.
bool onednn_keeps_rows_independent() {
  static const bool usable = [] {
    const auto isa = dnnl::get_effective_cpu_isa();
    const bool avx512 =
        isa == dnnl::cpu_isa::avx512_core || isa == dnnl::cpu_isa::avx512_core_vnni ||
        isa == dnnl::cpu_isa::avx512_core_bf16 || isa == dnnl::cpu_isa::avx512_core_amx;
    // ONEDNN_MAX_CPU_ISA stands for another machine: our own kernels follow it.
    if (!avx512) hwy::DisableTargets(HWY_AVX3 | HWY_AVX3_DL);
    return avx512;
  }();
  return usable;
}

}  // namespace

const char* to_string(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return "f32";
    case WeightType::kBf16:
      return "bf16";
    case WeightType::kInt8:
      return "int8";
  }
  return "unknown";
}

struct Dense::Impl {
  std::size_t in_features = 0;
  std::size_t out_features = 0;
  Fused fused = Fused::kNone;
  // One of the two.
  std::unique_ptr<OneDnnDense> onednn;
  std::unique_ptr<PackedPanels> panels;

  void apply(MatrixView<const float> x, MatrixView<float> y) const {
    if (onednn == nullptr) return apply_panels(x, y);
    const bool contiguous = x.stride() == in_features && y.stride() == out_features;
    const std::size_t at_once = contiguous ? kMaxRows : 1;  // a single row has no stride
    for (std::size_t r = 0; r < x.rows(); r += at_once) {
      onednn->apply(x.row(r).data(), y.row(r).data(), std::min(at_once, x.rows() - r));
    }
  }

  void apply_panels(MatrixView<const float> x, MatrixView<float> y) const {
    multiply_panels(*panels, x, y);
    if (fused == Fused::kNone) return;
    for (std::size_t r = 0; r < y.rows(); ++r) {
      fused == Fused::kRelu ? relu(y.row(r)) : gelu(y.row(r));
    }
  }

  // Whether rows alone and rows in batches have the same bits with these weights.
  bool rows_are_independent() const {
    constexpr std::size_t kRows = 33;
    Matrix x(kRows, in_features);
    std::uint32_t random = 1;
    for (float& value : x.values()) {
      random = random * 1664525 + 1013904223;  // any values will do that are not round
      value = static_cast<float>(random >> 8) * 0x1p-23f - 1.0f;
    }
    Matrix alone(kRows, out_features);
    Matrix together(kRows, out_features);
    for (std::size_t r = 0; r < kRows; ++r) {
      apply(std::as_const(x).view().rows_from(r, 1), alone.view().rows_from(r, 1));
    }
    for (const std::size_t rows : {2, 3, 4, 8, 16, 33}) {
      apply(std::as_const(x).view().rows_from(0, rows), together.view().rows_from(0, rows));
      if (std::memcmp(alone.row(0).data(), together.row(0).data(),
                      rows * out_features * sizeof(float)) != 0) {
        return false;
      }
    }
    return true;
  }
};

Dense::Dense(std::span<const float> weight, std::span<const float> bias, std::size_t in_features,
             std::size_t out_features, const Options& options)
    : impl_(std::make_unique<Impl>()) {
  if (options.weight_type != WeightType::kF32) {
    throw std::invalid_argument(std::string("weight type ") + to_string(options.weight_type) +
                                " is not in this build");
  }
  assert(weight.size() == in_features * out_features && bias.size() == out_features);
  impl_->in_features = in_features;
  impl_->out_features = out_features;
  impl_->fused = options.fused;
  if (onednn_keeps_rows_independent()) {
    impl_->onednn =
        std::make_unique<OneDnnDense>(weight, bias, in_features, out_features, options.fused);
    if (impl_->rows_are_independent()) return;
    impl_->onednn.reset();
  }
  impl_->panels = std::make_unique<PackedPanels>(weight, bias, in_features, out_features);
}

Dense::~Dense() = default;
Dense::Dense(Dense&&) noexcept = default;
Dense& Dense::operator=(Dense&&) noexcept = default;

void Dense::apply(MatrixView<const float> x, MatrixView<float> y) const {
  assert(x.cols() == impl_->in_features && y.cols() == impl_->out_features);
  assert(x.rows() == y.rows());
  impl_->apply(x, y);
}

std::size_t Dense::in_features() const { return impl_->in_features; }
std::size_t Dense::out_features() const { return impl_->out_features; }
std::size_t Dense::weight_bytes() const {
  return impl_->onednn ? impl_->onednn->bytes() : impl_->panels->bytes();
}

void use_one_thread_per_worker() { OneDnnThread::mine(); }

std::string dense_kernels_description() {
  if (!onednn_keeps_rows_independent()) return "highway (" + kernel_target() + ")";
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::avx512_core:
      return "onednn (avx512_core)";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "onednn (avx512_core_vnni)";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "onednn (avx512_core_bf16)";
    default:
      return "onednn (avx512_core_amx)";
  }
}

}  // namespace lintel

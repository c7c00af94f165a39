// SPDX-License-Identifier: Apache-2.0
#include "bench/bounds.h"

#include <omp.h>

#include <atomic>
#include <cstring>
#include <dnnl.hpp>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bench/measure.h"
#include "model/config/attention_spec.h"
#include "model/core/random.h"
#include "model/core/tensor.h"
#include "model/layers/attention/attention.h"
#include "model/ops/block_product.h"
#include "model/ops/dense_kernels.h"
#include "model/ops/mixer_kernels.h"
#include "model/ops/tile_scope.h"

namespace lintel::bench {
namespace {

// A cache line; the compiler makes of it the registers there are.
using Block = std::uint64_t __attribute__((vector_size(64)));

// XOR of everything. Eight places are read at a time, each with a chain of its own: that keeps more
// of the memory's requests under way than one place does.
#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
std::uint64_t
read_all(const Block* data, std::size_t blocks) {
  constexpr std::size_t kPlaces = 8;
  const std::size_t part = blocks / kPlaces;
  Block chain[kPlaces] = {};
  for (std::size_t i = 0; i < part; ++i) {
    for (std::size_t p = 0; p < kPlaces; ++p) chain[p] ^= data[p * part + i];
  }
  for (std::size_t p = 1; p < kPlaces; ++p) chain[0] ^= chain[p];
  std::uint64_t all = 0;
  for (std::size_t lane = 0; lane < 8; ++lane) all ^= chain[0][lane];
  return all;
}

constexpr std::size_t kBufferBytes = std::size_t{256} << 20;  // of a worker

// A buffer for each worker, all of which they read at the same time.
class ReadBuffers {
 public:
  // Zeroed, so that every page is there.
  ReadBuffers(int workers, std::size_t bytes) : blocks_(bytes / sizeof(Block)) {
    for (int w = 0; w < workers; ++w) buffers_.push_back(make_aligned<Block>(blocks_));
  }

  // Bytes of all buffers.
  double bytes() const { return static_cast<double>(buffers_.size() * blocks_ * sizeof(Block)); }
  double read_seconds() {
    return run_on_workers(static_cast<int>(buffers_.size()),
                          [&](int w) { sink_ ^= read_all(buffers_[w].get(), blocks_); });
  }

 private:
  const std::size_t blocks_;  // of a buffer
  std::vector<AlignedArray<Block>> buffers_;
  std::atomic<std::uint64_t> sink_{0};  // so that reading is not optimised away
};

Matrix random_rows(std::size_t rows, std::size_t width, std::uint64_t seed) {
  Matrix matrix(rows, width);
  std::uint32_t index = 0;
  const DrawSource draw{.seed = seed, .position = 0};
  for (float& value : matrix.values()) value = static_cast<float>(draw.uniform(index++) - 0.5);
  return matrix;
}

// One worker's sequences: the states of every layer.
class CachedLayers {
 public:
  CachedLayers(const AttentionBackend& backend, std::size_t layers, std::size_t batch,
               std::size_t position, std::size_t width)
      : backend_(backend),
        batch_(batch),
        q_(random_rows(batch, width, 1)),
        inputs_(3, std::as_const(q_).view()),
        out_(batch, width) {
    for (std::size_t i = 0; i < layers * batch; ++i) {
      states_.push_back(backend.new_state({}));
      pointers_.push_back(states_.back().get());
    }
    const Matrix rows = random_rows(position, width, 2);
    Matrix out(position, width);
    const std::vector<LayerState*> first(position, pointers_.front());
    const std::vector<MatrixView<const float>> inputs(3, rows.view());
    backend.step(first, inputs, out.view(), scratch_);
    for (std::size_t i = 1; i < states_.size(); ++i) states_[i]->assign(*states_.front());
  }

  // Layer after layer, as a step of the model goes: no cache holds what is read next.
  void step() {
    for (std::size_t first = 0; first < pointers_.size(); first += batch_) {
      backend_.step(std::span(pointers_).subspan(first, batch_), inputs_, out_.view(), scratch_);
    }
  }

 private:
  const AttentionBackend& backend_;
  const std::size_t batch_;
  std::vector<std::unique_ptr<LayerState>> states_;  // [layers, batch]
  std::vector<LayerState*> pointers_;
  Matrix q_;
  std::vector<MatrixView<const float>> inputs_;  // queries, keys and values alike
  Matrix out_;
  AttentionScratch scratch_;
};

using dnnl::memory;

struct Shape {
  memory::dim in = 0;
  memory::dim out = 0;
};

// Shapes of the products of one layer.
std::vector<Shape> shapes_of(const ModelConfig& config) {
  const memory::dim width = memory::dim{config.n_heads} * config.d_head;
  return {{config.d_model, 3 * width},
          {width, config.d_model},
          {config.d_model, config.d_ff},
          {config.d_ff, config.d_model}};
}

memory::data_type input_type(WeightType type) {
  if (type == WeightType::kF32) return memory::data_type::f32;
  return type == WeightType::kBf16 ? memory::data_type::bf16 : memory::data_type::u8;
}

memory::data_type matrix_type(WeightType type) {
  if (type == WeightType::kF32) return memory::data_type::f32;
  return type == WeightType::kBf16 ? memory::data_type::bf16 : memory::data_type::s8;
}

// Runs of each speed, the best of which counts.
constexpr int kRuns = 3;

#if defined(__x86_64__)
// Multiply-adds of bytes by vpdpbusd, in twelve chains that wait for nothing else.
__attribute__((target("avx512f,avx512vnni"))) double multiply_bytes(std::int64_t rounds) {
  asm volatile(
      "vpxorq %%zmm0, %%zmm0, %%zmm0\n\t"
      "vpxorq %%zmm1, %%zmm1, %%zmm1\n\t"
      "1:\n\t"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm4\n\tvpdpbusd %%zmm0, %%zmm1, %%zmm5\n\t"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm6\n\tvpdpbusd %%zmm0, %%zmm1, %%zmm7\n\t"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm8\n\tvpdpbusd %%zmm0, %%zmm1, %%zmm9\n\t"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm10\n\tvpdpbusd %%zmm0, %%zmm1, %%zmm11\n\t"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm12\n\tvpdpbusd %%zmm0, %%zmm1, %%zmm13\n\t"
      "vpdpbusd %%zmm0, %%zmm1, %%zmm14\n\tvpdpbusd %%zmm0, %%zmm1, %%zmm15\n\t"
      "decq %0\n\t"
      "jnz 1b"
      : "+r"(rounds)
      :
      : "zmm0", "zmm1", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", "zmm11", "zmm12",
        "zmm13", "zmm14", "zmm15", "cc");
  return 12.0 * 64;
}

// The same by AVX-VNNI, of 256 bits.
__attribute__((target("avx2"))) double multiply_bytes_of_avx_vnni(std::int64_t rounds) {
  asm volatile(
      "vpxor %%ymm0, %%ymm0, %%ymm0\n\t"
      "1:\n\t"
      "%{vex%} vpdpbusd %%ymm0, %%ymm0, %%ymm4\n\t%{vex%} vpdpbusd %%ymm0, %%ymm0, %%ymm5\n\t"
      "%{vex%} vpdpbusd %%ymm0, %%ymm0, %%ymm6\n\t%{vex%} vpdpbusd %%ymm0, %%ymm0, %%ymm7\n\t"
      "%{vex%} vpdpbusd %%ymm0, %%ymm0, %%ymm8\n\t%{vex%} vpdpbusd %%ymm0, %%ymm0, %%ymm9\n\t"
      "%{vex%} vpdpbusd %%ymm0, %%ymm0, %%ymm10\n\t%{vex%} vpdpbusd %%ymm0, %%ymm0, %%ymm11\n\t"
      "%{vex%} vpdpbusd %%ymm0, %%ymm0, %%ymm12\n\t%{vex%} vpdpbusd %%ymm0, %%ymm0, %%ymm13\n\t"
      "%{vex%} vpdpbusd %%ymm0, %%ymm0, %%ymm14\n\t%{vex%} vpdpbusd %%ymm0, %%ymm0, %%ymm15\n\t"
      "decq %0\n\t"
      "jnz 1b"
      : "+r"(rounds)
      :
      : "ymm0", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10", "ymm11", "ymm12", "ymm13",
        "ymm14", "ymm15", "cc");
  return 12.0 * 32;
}

// The same by vpmaddubsw and vpmaddwd, which take the place of vpdpbusd on machines without it.
__attribute__((target("avx2"))) double multiply_bytes_in_two(std::int64_t rounds) {
  asm volatile(
      "vpxor %%ymm0, %%ymm0, %%ymm0\n\t"
      "1:\n\t"
      "vpmaddubsw %%ymm0, %%ymm0, %%ymm1\n\tvpmaddwd %%ymm0, %%ymm1, %%ymm1\n\t"
      "vpmaddubsw %%ymm0, %%ymm0, %%ymm2\n\tvpmaddwd %%ymm0, %%ymm2, %%ymm2\n\t"
      "vpmaddubsw %%ymm0, %%ymm0, %%ymm3\n\tvpmaddwd %%ymm0, %%ymm3, %%ymm3\n\t"
      "vpmaddubsw %%ymm0, %%ymm0, %%ymm4\n\tvpmaddwd %%ymm0, %%ymm4, %%ymm4\n\t"
      "vpaddd %%ymm1, %%ymm5, %%ymm5\n\tvpaddd %%ymm2, %%ymm6, %%ymm6\n\t"
      "vpaddd %%ymm3, %%ymm7, %%ymm7\n\tvpaddd %%ymm4, %%ymm8, %%ymm8\n\t"
      "decq %0\n\t"
      "jnz 1b"
      : "+r"(rounds)
      :
      : "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "cc");
  return 4.0 * 32;
}

// The same by tdpbusd, in four tiles of sums. REQUIRES: amx_available().
double multiply_tiles(std::int64_t rounds) {
  const TileScope scope;
  configure_tiles();
  asm volatile(
      "1:\n\t"
      "tdpbusd %%tmm6, %%tmm4, %%tmm0\n\ttdpbusd %%tmm7, %%tmm4, %%tmm1\n\t"
      "tdpbusd %%tmm6, %%tmm5, %%tmm2\n\ttdpbusd %%tmm7, %%tmm5, %%tmm3\n\t"
      "decq %0\n\t"
      "jnz 1b"
      : "+r"(rounds)
      :
      : "cc");
  return 4.0 * 16 * 16 * 64;
}
#else
double multiply_bytes(std::int64_t) { return 0; }
double multiply_bytes_of_avx_vnni(std::int64_t) { return 0; }
double multiply_bytes_in_two(std::int64_t) { return 0; }
double multiply_tiles(std::int64_t) { return 0; }
#endif

}  // namespace

double multiply_rate(int threads) {
  if (!has_byte_products()) return 0;
  const auto multiply = has_vnni()       ? multiply_bytes
                        : has_avx_vnni() ? multiply_bytes_of_avx_vnni
                                         : multiply_bytes_in_two;
  if (multiply(1) == 0) return 0;
  constexpr std::int64_t kRounds = 2'000'000;
  const Summary seconds =
      repeat(kRuns, [&] { return run_on_workers(threads, [&](int) { (void)multiply(kRounds); }); });
  return multiply(1) * static_cast<double>(kRounds) * threads / seconds.least;
}

double float_multiply_rate(int threads) {
  return multiply_rate(threads) / (has_vnni() || has_avx_vnni() ? 4 : 2);
}

double tile_multiply_rate(int threads) {
  if (!amx_available() || !runs_on_tiles(WeightType::kBlocks)) return 0;
  constexpr std::int64_t kRounds = 400'000;
  const Summary seconds = repeat(
      kRuns, [&] { return run_on_workers(threads, [&](int) { (void)multiply_tiles(kRounds); }); });
  return multiply_tiles(1) * static_cast<double>(kRounds) * threads / seconds.least;
}

double update_rate(int threads) {
  constexpr std::size_t kFloats = std::size_t{24} << 20;
  std::vector<std::vector<float>> buffers(static_cast<std::size_t>(threads));
  for (auto& buffer : buffers) buffer.assign(kFloats, 1.0f);
  const Summary seconds = repeat(kRuns, [&] {
    return run_on_workers(threads,
                          [&](int w) { squared_relu(buffers[static_cast<std::size_t>(w)]); });
  });
  return static_cast<double>(kFloats * sizeof(float)) * threads / seconds.least;
}

Summary read_bandwidth(int workers, std::size_t bytes_per_worker, int repeats) {
  ReadBuffers buffers(workers, bytes_per_worker);
  const Summary seconds = repeat(repeats, [&] { return buffers.read_seconds(); });
  return quotient(buffers.bytes(), seconds);
}

Bandwidth measure_bandwidth(const ModelConfig& config, int workers, int batch,
                            std::int64_t position, int repeats) {
  const auto backend =
      make_attention({.config = sample_attention("softmax"), .dims = config.dims(), .own = {}});
  const auto layers = static_cast<std::size_t>(config.n_layers);
  const auto sequences = static_cast<std::size_t>(batch);
  const std::size_t width =
      static_cast<std::size_t>(config.n_heads) * static_cast<std::size_t>(config.d_head);
  std::vector<std::unique_ptr<CachedLayers>> caches;
  ReadBuffers buffers(workers, kBufferBytes);
  for (int w = 0; w < workers; ++w) {
    caches.push_back(std::make_unique<CachedLayers>(*backend, layers, sequences,
                                                    static_cast<std::size_t>(position), width));
  }
  std::vector<double> reading, softmax, share;
  for (int r = 0; r < repeats; ++r) {
    // Every step adds a token to every sequence.
    const double tokens =
        static_cast<double>(position + r + 1) * static_cast<double>(sequences * layers) * workers;
    const double bytes = tokens * static_cast<double>(2 * width * sizeof(float));
    reading.push_back(buffers.bytes() / buffers.read_seconds());
    softmax.push_back(bytes / run_on_workers(workers, [&](int w) { caches[w]->step(); }));
    share.push_back(softmax.back() / reading.back());
  }
  return {summarize(reading), summarize(softmax), summarize(share)};
}

struct ProductBound::Impl {
  struct Call {
    dnnl::matmul product;
    std::unordered_map<int, memory> arguments;
  };
  struct Worker {
    explicit Worker(const dnnl::engine& engine) : stream(engine) {}
    dnnl::stream stream;
    std::vector<Call> calls;  // of one step
  };

  memory filled(const memory::desc& desc) const {
    memory made(desc, engine);
    std::memset(made.get_data_handle(), 0, desc.get_size());
    return made;
  }

  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::vector<memory> weights;  // [layers * shapes]
  std::vector<Worker> workers;
};

ProductBound::ProductBound(const ModelConfig& config, WeightType type, std::size_t rows,
                           int workers)
    : impl_(std::make_unique<Impl>()) {
  using enum memory::format_tag;
  const std::vector<Shape> shapes = shapes_of(config);
  omp_set_num_threads(1);  // of this thread's primitives: a worker is one thread
  try {
    for (int w = 0; w < workers; ++w) impl_->workers.emplace_back(impl_->engine);
    const auto m = static_cast<memory::dim>(rows);
    std::vector<dnnl::matmul::primitive_desc> descriptions;
    for (const Shape& shape : shapes) {
      const memory::desc x({m, shape.in}, input_type(type), ab);
      const memory::desc matrix({shape.in, shape.out}, matrix_type(type), any);
      const memory::desc bias({1, shape.out}, memory::data_type::f32, ab);
      const memory::desc y({m, shape.out}, memory::data_type::f32, ab);
      dnnl::primitive_attr attributes;
#if DNNL_VERSION_MAJOR >= 3
      if (type == WeightType::kInt8) attributes.set_scales_mask(DNNL_ARG_WEIGHTS, 1 << 1);
      descriptions.emplace_back(impl_->engine, x, matrix, bias, y, attributes);
#else
      if (type == WeightType::kInt8) {
        attributes.set_output_scales(1 << 1, std::vector<float>(shape.out, 0.5f));
      }
      descriptions.emplace_back(dnnl::matmul::desc(x, matrix, bias, y), attributes, impl_->engine);
#endif
    }
    for (int layer = 0; layer < config.n_layers; ++layer) {
      for (const auto& description : descriptions) {
        impl_->weights.push_back(impl_->filled(description.weights_desc()));
        for (Impl::Worker& worker : impl_->workers) {
          Impl::Call call{dnnl::matmul(description),
                          {{DNNL_ARG_SRC, impl_->filled(description.src_desc())},
                           {DNNL_ARG_WEIGHTS, impl_->weights.back()},
                           {DNNL_ARG_BIAS, impl_->filled(description.bias_desc())},
                           {DNNL_ARG_DST, impl_->filled(description.dst_desc())}}};
#if DNNL_VERSION_MAJOR >= 3
          if (type == WeightType::kInt8) {  // an argument since version 3
            const memory::desc scales({description.dst_desc().get_dims()[1]},
                                      memory::data_type::f32, a);
            call.arguments.emplace(DNNL_ARG_ATTR_SCALES | DNNL_ARG_WEIGHTS, impl_->filled(scales));
          }
#endif
          worker.calls.push_back(std::move(call));
        }
      }
    }
  } catch (const dnnl::error& error) {
    throw NoProduct(std::string("oneDNN has no product for weight type ") + to_string(type) +
                    " on this machine: " + error.what());
  }
}

ProductBound::~ProductBound() = default;

void ProductBound::step(int worker) const {
  omp_set_num_threads(1);
  Impl::Worker& own = impl_->workers[static_cast<std::size_t>(worker)];
  for (const Impl::Call& call : own.calls) call.product.execute(own.stream, call.arguments);
  own.stream.wait();
}

OwnProducts::OwnProducts(const ModelConfig& config, WeightType type, std::size_t rows,
                         int workers) {
  const std::vector<Shape> shapes = shapes_of(config);
  for (int layer = 0; layer < config.n_layers; ++layer) {
    for (const Shape& shape : shapes) {
      const auto in = static_cast<std::size_t>(shape.in);
      const auto out = static_cast<std::size_t>(shape.out);
      layers_.emplace_back(std::vector<float>(in * out), std::vector<float>(out), in, out,
                           Dense::Options{.weight_type = type, .kernels = KernelChoice::kOwn});
    }
  }
  workers_.resize(static_cast<std::size_t>(workers));
  for (Worker& worker : workers_) {
    for (const Shape& shape : shapes) {
      worker.inputs.emplace_back(type, rows, static_cast<std::size_t>(shape.in)).prepare(0, rows);
      worker.outputs.emplace_back(rows, static_cast<std::size_t>(shape.out));
    }
  }
}

void OwnProducts::step(int worker) {
  Worker& own = workers_[static_cast<std::size_t>(worker)];
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const std::size_t shape = i % own.inputs.size();
    layers_[i].apply(own.inputs[shape], own.outputs[shape].view());
  }
}

}  // namespace lintel::bench

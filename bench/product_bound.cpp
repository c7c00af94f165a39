#include "bench/product_bound.h"

#include <omp.h>

#include <cstring>
#include <dnnl.hpp>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace lintel::bench {
namespace {

using dnnl::memory;

struct Shape {
  memory::dim in = 0;
  memory::dim out = 0;
};

// Of one layer.
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

}  // namespace

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
      if (type == WeightType::kInt8) {
        attributes.set_output_scales(1 << 1, std::vector<float>(shape.out, 0.5f));
      }
      descriptions.emplace_back(dnnl::matmul::desc(x, matrix, bias, y), attributes, impl_->engine);
    }
    for (int layer = 0; layer < config.n_layers; ++layer) {
      for (const auto& description : descriptions) {
        impl_->weights.push_back(impl_->filled(description.weights_desc()));
        for (Impl::Worker& worker : impl_->workers) {
          worker.calls.push_back({dnnl::matmul(description),
                                  {{DNNL_ARG_SRC, impl_->filled(description.src_desc())},
                                   {DNNL_ARG_WEIGHTS, impl_->weights.back()},
                                   {DNNL_ARG_BIAS, impl_->filled(description.bias_desc())},
                                   {DNNL_ARG_DST, impl_->filled(description.dst_desc())}}});
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

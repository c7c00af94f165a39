#include "bench/bandwidth.h"

#include <atomic>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bench/measure.h"
#include "model/config/attention_spec.h"
#include "model/core/random.h"
#include "model/core/tensor.h"
#include "model/layers/attention/attention.h"

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
    const std::vector<AttentionState*> first(position, pointers_.front());
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
  std::vector<std::unique_ptr<AttentionState>> states_;  // [layers, batch]
  std::vector<AttentionState*> pointers_;
  Matrix q_;
  std::vector<MatrixView<const float>> inputs_;  // queries, keys and values alike
  Matrix out_;
  AttentionScratch scratch_;
};

}  // namespace

Summary read_bandwidth(int workers, std::size_t bytes_per_worker, int repeats) {
  const std::size_t blocks = bytes_per_worker / sizeof(Block);
  std::vector<AlignedArray<Block>> buffers;
  // Zeroed, so every page is there.
  for (int w = 0; w < workers; ++w) buffers.push_back(make_aligned<Block>(blocks));
  std::atomic<std::uint64_t> sink{0};  // so that reading is not optimised away
  const Summary seconds = repeat(repeats, [&] {
    return run_on_workers(workers, [&](int w) { sink ^= read_all(buffers[w].get(), blocks); });
  });
  return quotient(static_cast<double>(blocks * sizeof(Block)) * workers, seconds);
}

Bandwidth measure_bandwidth(const ModelConfig& config, int workers, int batch,
                            std::int64_t position, int repeats) {
  const auto backend =
      make_attention({.config = sample_attention("softmax"), .dims = config.dims(), .own = {}});
  const auto layers = static_cast<std::size_t>(config.n_layers);
  const auto sequences = static_cast<std::size_t>(batch);
  const std::size_t width =
      static_cast<std::size_t>(config.n_heads) * static_cast<std::size_t>(config.d_head);
  constexpr std::size_t kBlocks = kBufferBytes / sizeof(Block);
  std::vector<std::unique_ptr<CachedLayers>> caches;
  std::vector<AlignedArray<Block>> buffers;
  for (int w = 0; w < workers; ++w) {
    caches.push_back(std::make_unique<CachedLayers>(*backend, layers, sequences,
                                                    static_cast<std::size_t>(position), width));
    buffers.push_back(make_aligned<Block>(kBlocks));  // zeroed, so every page is there
  }
  std::atomic<std::uint64_t> sink{0};  // so that reading is not optimised away
  std::vector<double> memory, softmax, share;
  for (int r = 0; r < repeats; ++r) {
    // Every step adds a value to every sequence.
    const double values =
        static_cast<double>(position + r + 1) * static_cast<double>(sequences * layers) * workers;
    const double bytes = values * static_cast<double>(2 * width * sizeof(float));
    memory.push_back(
        static_cast<double>(kBufferBytes) * workers /
        run_on_workers(workers, [&](int w) { sink ^= read_all(buffers[w].get(), kBlocks); }));
    softmax.push_back(bytes / run_on_workers(workers, [&](int w) { caches[w]->step(); }));
    share.push_back(softmax.back() / memory.back());
  }
  return {summarize(memory), summarize(softmax), summarize(share)};
}

}  // namespace lintel::bench

// SPDX-License-Identifier: Apache-2.0
// Attention by locality-sensitive hashing with shared queries and keys (Reformer, Kitaev et al.
// 2020), in the streaming and the prefix form of docs/model_format.md.
//
// A round cuts the positions, sorted by (bucket, position), into chunks; a query sees its own chunk
// and the one before it. As positions come in order, each bucket is a list that only grows at its
// end, and the ranks of a bucket follow from how many positions the buckets before it hold: the
// neighbours of a new position are found from the end of its bucket without sorting (LshBuckets).
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/layers/attention/attention.h"
#include "model/layers/attention/common/history.h"
#include "model/layers/attention/common/lsh_buckets.h"
#include "model/layers/attention/common/lsh_kernels.h"

namespace lintel {
namespace {

// Added to a query's score with itself: nothing is left of it beside any other score.
constexpr float kSelfBias = -1e9f;

constexpr ConfigKey kKeys[] = {
    {.name = "scale",
     .type = ConfigKey::Type::kPositive,
     .doc = "of scores q.k",
     .high = 1e6,
     .initial = "null",
     .null_means = "1/sqrt(d_head)"},
    {.name = "rounds", .type = ConfigKey::Type::kInteger, .doc = "hash rounds", .high = 256},
    {.name = "bits",
     .type = ConfigKey::Type::kInteger,
     .doc = "hash planes of a round, which has twice as many buckets",
     .high = 4096},
    {.name = "chunk_size",
     .type = ConfigKey::Type::kInteger,
     .doc = "positions of a chunk",
     .high = 1 << 20},
    {.name = "mask_self",
     .type = ConfigKey::Type::kBoolean,
     .doc = "a position sees itself only where it sees nothing else",
     .initial = "true"},
    {.name = "combine",
     .type = ConfigKey::Type::kChoice,
     .doc = "what becomes of the rounds: their mean (fast-transformers), or weighted by their sums "
            "(Reformer)",
     .initial = "\"mean\"",
     .choices = {"mean", "logsumexp"}},
};
constexpr const char* kSamples[] = {
    "rounds=2,bits=4,chunk_size=8",
    "rounds=1,bits=3,chunk_size=5,mask_self=false,combine=logsumexp,scale=0.4"};

struct LshShape {
  std::size_t n_heads = 0;  // H
  std::size_t d_head = 0;   // D = M
  std::size_t rounds = 0;
  std::size_t bits = 0;
  std::size_t padded_bits = 0;  // to a multiple of kPlaneMultiple
  std::size_t chunk_size = 0;

  std::size_t num_tables() const { return n_heads * rounds; }
  std::size_t num_buckets() const { return 2 * bits; }  // of a table
  LshBuckets::Shape buckets() const {
    return {.num_tables = num_tables(), .num_buckets = num_buckets(), .chunk_size = chunk_size};
  }
  std::size_t member_floats() const { return 2 * d_head; }  // k, then v
  std::size_t page_floats() const { return History::kPage * n_heads * member_floats(); }
};

// Keys and values of every position, and for each round and head its buckets.
class LshState final : public LayerState {
 public:
  explicit LshState(const LshShape& shape)
      : shape_(shape), members_(shape.page_floats()), buckets_(shape.buckets()) {}

  static std::size_t most_bytes(const LshShape& shape, std::int64_t num_tokens) {
    const std::size_t members = History::bytes_of(num_tokens, shape.page_floats());
    if (members == SIZE_MAX) return SIZE_MAX;
    const std::size_t buckets =
        LshBuckets::most_bytes(shape.buckets(), static_cast<std::size_t>(num_tokens));
    return buckets > SIZE_MAX - members ? SIZE_MAX : buckets + members;
  }

  std::size_t bytes() const override { return members_.bytes() + buckets_.bytes(); }

  void assign(const LayerState& other) override {
    const auto& from = static_cast<const LshState&>(other);
    members_.assign(from.members_);
    buckets_.assign(from.buckets_);
  }

  void reset() override {
    members_.clear();
    buckets_.clear();
  }

  // The memory holds the bucket of each draft in every table: a small whole number, which a float
  // is exact for.
  void begin_speculation(std::size_t num_rows, std::span<float> memory) override {
    assert(memory.size() >= num_rows * shape_.num_tables());
    drafts_pending_ = num_rows;
    drafts_ = memory.data();
  }

  void rollback(std::size_t num_rows) override {
    for (; num_rows > 0; --num_rows) {
      const std::size_t position = members_.remove_last();
      const float* const of_tables = drafts_ + (position - first_draft_) * shape_.num_tables();
      for (std::size_t table = shape_.num_tables(); table-- > 0;) {
        buckets_.remove_last(table, static_cast<std::size_t>(of_tables[table]));
      }
      for (std::size_t h = 0; h < shape_.n_heads; ++h) {
        std::fill_n(member(position, h), shape_.member_floats(), 0.0f);
      }
    }
    members_.shrink();
    buckets_.shrink();
    zero_memory(std::span(drafts_, std::exchange(num_drafts_, 0) * shape_.num_tables()));
  }

  // Keys and values, then for each position the bucket in every table: put there again in the
  // order of the steps, the lists become what they were.
  void save(std::int64_t since, StateWriter& writer) const override {
    const auto first = static_cast<std::size_t>(since);
    members_.save(first, writer);
    std::vector<std::int32_t> buckets((length() - first) * shape_.num_tables());
    for (std::size_t table = 0; table < shape_.num_tables(); ++table) {
      buckets_.list(table, first, shape_.num_tables(), buckets.data() + table);
    }
    writer.values(std::span<const std::int32_t>(buckets));
    zero_memory(std::span(buckets));
  }

  void load(std::int64_t num_tokens, StateReader& reader) override {
    std::size_t position = length();
    members_.load(static_cast<std::size_t>(num_tokens), reader);
    std::vector<std::int32_t> of_tables(shape_.num_tables());
    for (; position < length(); ++position) {
      reader.values(std::span(of_tables));
      for (std::size_t table = 0; table < of_tables.size(); ++table) {
        const auto bucket = static_cast<std::size_t>(of_tables[table]);
        if (bucket >= shape_.num_buckets()) {
          throw ModelError("saved state: found bucket " + std::to_string(of_tables[table]) +
                           ", expected 0 to " + std::to_string(shape_.num_buckets() - 1));
        }
        buckets_.append(table, bucket, static_cast<std::int32_t>(position));
      }
    }
    zero_memory(std::span(of_tables));
  }

  // A run of num_rows rows is about to be fed.
  void begin_run(std::size_t num_rows) {
    assert(drafts_pending_ <= num_rows);
    num_drafts_ = std::exchange(drafts_pending_, 0);
    first_draft_ = length() + num_rows - num_drafts_;
  }

  std::size_t length() const { return members_.length(); }

  // Puts the newest position into the bucket of a table. In the order of tables.
  void add_to_bucket(std::size_t table, std::size_t bucket) {
    const std::size_t position = length() - 1;
    buckets_.append(table, bucket, static_cast<std::int32_t>(position));
    if (position < first_draft_) return;
    drafts_[(position - first_draft_) * shape_.num_tables() + table] = static_cast<float>(bucket);
  }
  const LshBuckets& buckets() const { return buckets_; }

  // Makes room for one more position.
  void begin_position() { members_.append(); }
  // Key and value of a head: [k D | v M].
  float* member(std::size_t position, std::size_t head) {
    return members_.page_of(position) +
           (head * History::kPage + History::slot_of(position)) * shape_.member_floats();
  }

 private:
  const LshShape& shape_;  // the backend's
  History members_;        // a page: [H, History::kPage, k D | v M]
  LshBuckets buckets_;     // a table for each [H, rounds]

  // Valid from one step to the next.
  std::size_t drafts_pending_ = 0;  // drafts of the next run
  std::size_t num_drafts_ = 0;      // of the last run, until they are judged
  std::size_t first_draft_ = 0;     // position of the last run's first draft, or where it ended
  float* drafts_ = nullptr;         // [drafts, tables]
};

class LshAttention final : public AttentionBackend {
 public:
  explicit LshAttention(const AttentionParams& params)
      : shape_(shape_of(params)),
        scale_(
            static_cast<float>(params.config.number("scale", 1.0 / std::sqrt(params.dims.d_head)))),
        self_bias_(params.config.boolean("mask_self") ? kSelfBias : 0.0f),
        weighs_rounds_(params.config.choice("combine") == "logsumexp"),
        planes_(shape_.d_head * plane_columns()) {
    assert(params.own.size() == 1 && params.own[0].rows() == shape_.rounds * shape_.bits);
    // [rounds, bits, D] -> [D, rounds, padded bits]: a vector holds one feature of several planes.
    for (std::size_t round = 0; round < shape_.rounds; ++round) {
      for (std::size_t bit = 0; bit < shape_.bits; ++bit) {
        const std::span<const float> plane = params.own[0].row(round * shape_.bits + bit);
        for (std::size_t c = 0; c < shape_.d_head; ++c) {
          planes_[c * plane_columns() + round * shape_.padded_bits + bit] = plane[c];
        }
      }
    }
  }

  std::size_t block_floats() const override { return 0; }

  std::unique_ptr<LayerState> new_state(std::span<float> /*block*/) const override {
    return std::make_unique<LshState>(shape_);
  }

  std::size_t state_bytes(std::int64_t num_tokens) const override {
    return LshState::most_bytes(shape_, num_tokens);
  }

  std::int64_t tokens_until_full() const override { return kNeverFull; }
  std::size_t rollback_floats(std::size_t num_rows, std::int64_t /*end*/) const override {
    return num_rows * shape_.num_tables();
  }
  bool full_pass_equals_steps() const override { return false; }

  void step(std::span<LayerState* const> states, AttentionInputs inputs, MatrixView<float> out,
            AttentionScratch& scratch) const override {
    const MatrixView<const float> q = inputs[0];
    const MatrixView<const float> v = inputs[1];
    // [H, rounds] each: buckets, and where the neighbours of a table end.
    const std::size_t tables = shape_.num_tables();
    scratch.ints.resize(std::max(scratch.ints.size(), tables));
    scratch.ends.resize(std::max(scratch.ends.size(), tables));
    for (std::size_t r = 0; r < states.size(); ++r) {
      auto& state = static_cast<LshState&>(*states[r]);
      if (r == 0 || states[r] != states[r - 1]) state.begin_run(run_length(states.subspan(r)));
      state.begin_position();
      const Work work = work_for(state.length(), 0, scratch);
      for (std::size_t h = 0; h < shape_.n_heads; ++h) {
        float* const member = state.member(state.length() - 1, h);
        fill_member(q.row(r), v.row(r), h, member);
        hash(member, work.projected, scratch.ints.data() + h * shape_.rounds, /*stride=*/1);
      }
      find_neighbours(state, scratch);
      const float* const* first = scratch.pointers.data();
      for (std::size_t h = 0; h < shape_.n_heads; ++h) {
        scale_query(q.row(r), h, work.q);
        for (std::size_t round = 0; round < shape_.rounds; ++round) {
          const float* const* const end =
              scratch.pointers.data() + scratch.ends[h * shape_.rounds + round];
          attend(work, round, {first, end});
          first = end;
        }
        combine(work, out.row(r).subspan(h * shape_.d_head, shape_.d_head));
      }
    }
  }

  // The prefix form: everything is hashed and sorted at once, by counting, and position t sees
  // those positions of its chunk and the one before that are not later than t.
  void full_pass(AttentionInputs inputs, MatrixView<float> out,
                 AttentionScratch& scratch) const override {
    const MatrixView<const float> q = inputs[0];
    const MatrixView<const float> v = inputs[1];
    const std::size_t n = q.rows();
    // [rounds, n] buckets, [rounds, n] positions by rank, [rounds, n] ranks by position, [buckets].
    scratch.ints.resize(
        std::max(scratch.ints.size(), 3 * shape_.rounds * n + shape_.num_buckets()));
    std::int32_t* const buckets = scratch.ints.data();
    std::int32_t* const sorted = buckets + shape_.rounds * n;
    std::int32_t* const ranks = sorted + shape_.rounds * n;
    const Work work = work_for(n, n * shape_.member_floats(), scratch);
    for (std::size_t h = 0; h < shape_.n_heads; ++h) {
      for (std::size_t t = 0; t < n; ++t) {
        float* const member = work.members + t * shape_.member_floats();
        fill_member(q.row(t), v.row(t), h, member);
        hash(member, work.projected, buckets + t, /*stride=*/n);
      }
      for (std::size_t round = 0; round < shape_.rounds; ++round) {
        lsh_sort({buckets + round * n, n}, sorted + round * n, ranks + round * n,
                 {ranks + shape_.rounds * n, shape_.num_buckets()});
      }
      for (std::size_t t = 0; t < n; ++t) {
        scale_query(q.row(t), h, work.q);
        for (std::size_t round = 0; round < shape_.rounds; ++round) {
          scratch.pointers.clear();
          visit_earlier(sorted + round * n, n, static_cast<std::size_t>(ranks[round * n + t]), t,
                        [&](std::int32_t position) {
                          add_neighbour(work.members + static_cast<std::size_t>(position) *
                                                           shape_.member_floats(),
                                        scratch);
                        });
          attend(work, round, scratch.pointers);
        }
        combine(work, out.row(t).subspan(h * shape_.d_head, shape_.d_head));
      }
    }
  }

 private:
  // Parts of AttentionScratch::floats.
  struct Work {
    float* q;          // [D], scaled
    float* projected;  // [rounds, padded bits]
    float* weights;    // [members of two chunks]
    float* round_out;  // [rounds, D]
    float* log_sum;    // [rounds]
    float* members;    // [n, k D | v M], of a full pass
  };

  static LshShape shape_of(const AttentionParams& params) {
    LshShape shape;
    shape.n_heads = static_cast<std::size_t>(params.dims.n_heads);
    shape.d_head = static_cast<std::size_t>(params.dims.d_head);
    shape.rounds = params.config.integer("rounds");
    shape.bits = params.config.integer("bits");
    shape.padded_bits = (shape.bits + kPlaneMultiple - 1) / kPlaneMultiple * kPlaneMultiple;
    shape.chunk_size = params.config.integer("chunk_size");
    return shape;
  }

  std::size_t plane_columns() const { return shape_.rounds * shape_.padded_bits; }

  Work work_for(std::size_t num_positions, std::size_t member_floats,
                AttentionScratch& scratch) const {
    const std::size_t most_neighbours = std::min(2 * shape_.chunk_size, num_positions);
    const std::size_t sizes[] = {shape_.d_head,   plane_columns(),
                                 most_neighbours, shape_.rounds * shape_.d_head,
                                 shape_.rounds,   member_floats};
    std::size_t total = 0;
    for (const std::size_t size : sizes) total += size;
    if (scratch.floats.size() < total) scratch.floats.resize(total);
    Work work{};
    float* at = scratch.floats.data();
    std::size_t i = 0;
    for (float** part :
         {&work.q, &work.projected, &work.weights, &work.round_out, &work.log_sum, &work.members}) {
      *part = at;
      at += sizes[i++];
    }
    return work;
  }

  // k = q / |q|, and v, of one head.
  void fill_member(std::span<const float> q, std::span<const float> v, std::size_t head,
                   float* member) const {
    const std::size_t first = head * shape_.d_head;
    normalize(q.subspan(first, shape_.d_head), member);
    std::ranges::copy(v.subspan(first, shape_.d_head), member + shape_.d_head);
  }

  // The bucket of a key in every round: argmax [k R^T, -k R^T].
  void hash(const float* k, float* projected, std::int32_t* buckets, std::size_t stride) const {
    project({k, shape_.d_head}, planes_.data(), plane_columns(), projected);
    for (std::size_t round = 0; round < shape_.rounds; ++round) {
      buckets[round * stride] = static_cast<std::int32_t>(
          signed_argmax(projected + round * shape_.padded_bits, shape_.bits));
    }
  }

  void scale_query(std::span<const float> q, std::size_t head, float* scaled) const {
    std::ranges::transform(q.subspan(head * shape_.d_head, shape_.d_head), scaled,
                           [this](float x) { return x * scale_; });
  }

  // Puts the newest position into its buckets and lists the neighbours of all tables: the memory of
  // the first arrives while the last are still looked up.
  void find_neighbours(LshState& state, AttentionScratch& scratch) const {
    scratch.pointers.clear();
    for (std::size_t h = 0; h < shape_.n_heads; ++h) {
      for (std::size_t round = 0; round < shape_.rounds; ++round) {
        const std::size_t at = h * shape_.rounds + round;
        const auto bucket = static_cast<std::size_t>(scratch.ints[at]);
        state.add_to_bucket(at, bucket);
        state.buckets().visit_neighbours(at, bucket, state.length(), [&](std::int32_t position) {
          add_neighbour(state.member(static_cast<std::size_t>(position), h), scratch);
        });
        scratch.ends[at] = scratch.pointers.size();
      }
    }
  }

  // Neighbours lie anywhere: each is fetched as it is found.
  void add_neighbour(const float* member, AttentionScratch& scratch) const {
    constexpr std::size_t kFloatsPerLine = kAlignment / sizeof(float);
    for (std::size_t i = 0; i < shape_.member_floats(); i += kFloatsPerLine) {
      __builtin_prefetch(member + i);
    }
    scratch.pointers.push_back(member);
  }

  // One round over its neighbours, the query's own position first.
  void attend(const Work& work, std::size_t round, std::span<const float* const> neighbours) const {
    work.log_sum[round] = attend_members({work.q, shape_.d_head}, neighbours, self_bias_,
                                         work.weights, work.round_out + round * shape_.d_head);
  }

  // out = sum over rounds of w o, with w = 1/rounds, or the softmax of the rounds' log sums.
  void combine(const Work& work, std::span<float> out) const {
    std::ranges::fill(out, 0.0f);
    const float largest = *std::max_element(work.log_sum, work.log_sum + shape_.rounds);
    const auto unscaled_weight = [&](std::size_t round) {
      return weighs_rounds_ ? std::exp(work.log_sum[round] - largest) : 1.0f;
    };
    float total = 0.0f;
    for (std::size_t round = 0; round < shape_.rounds; ++round) total += unscaled_weight(round);
    for (std::size_t round = 0; round < shape_.rounds; ++round) {
      const float weight = unscaled_weight(round) / total;
      const float* const part = work.round_out + round * shape_.d_head;
      for (std::size_t m = 0; m < out.size(); ++m) out[m] += weight * part[m];
    }
  }

  // Visits in the order of LshBuckets::visit_neighbours: the last position of a prefix has the same
  // bits both ways where the layer's input is the same.
  template <typename Visit>
  void visit_earlier(const std::int32_t* sorted, std::size_t n, std::size_t rank, std::size_t t,
                     Visit&& visit) const {
    const LshChunks seen(rank, shape_.chunk_size, n);
    const auto visit_rank = [&](std::size_t r) {
      if (static_cast<std::size_t>(sorted[r]) <= t) visit(sorted[r]);
    };
    for (std::size_t r = rank + 1; r-- > seen.begin;) visit_rank(r);
    for (std::size_t r = rank + 1; r < seen.end; ++r) visit_rank(r);
  }

  const LshShape shape_;
  const float scale_;
  const float self_bias_;
  const bool weighs_rounds_;
  std::vector<float> planes_;  // [D, rounds, padded bits], the padding 0
};

// The keys are stored by the format, and are never computed.
std::vector<Projection> projections(const AttentionConfig& config, const LayerDims& dims) {
  std::vector<Projection> all = query_key_value(config, dims);
  all[1].is_read = false;
  return all;
}

std::vector<OwnTensor> tensors(const AttentionConfig& config, const LayerDims& dims) {
  return {{.name = "planes",
           .shape = {static_cast<std::int64_t>(config.integer("rounds")),
                     static_cast<std::int64_t>(config.integer("bits")), dims.d_head},
           .shape_doc = "[rounds, bits, D]"}};
}

}  // namespace

const AttentionKind kind_lsh{
    .type = "lsh",
    .doc = "softmax over positions of like hashes; queries are keys (Reformer, Kitaev et al. 2020)",
    .state = "keys, values and bucket lists of all positions: grows with t",
    .cost = "`rounds` times two chunks, and a count for each bucket: constant",
    .keys = kKeys,
    .projections = projections,
    .tensors = tensors,
    .make = [](const AttentionParams& params) -> std::unique_ptr<AttentionBackend> {
      return std::make_unique<LshAttention>(params);
    },
    .samples = kSamples};

}  // namespace lintel

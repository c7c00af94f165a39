// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/persistence/stored_chat_states.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <optional>
#include <ranges>
#include <string_view>

#include "model/core/state_bytes.h"
#include "model/core/tensor.h"
#include "model/lora/adapter.h"
#include "server/core/random_bytes.h"
#include "server/core/threads.h"
#include "server/sessions/persistence/call_records.h"
#include "server/sessions/persistence/paged_state.h"
#include "server/sessions/storage/storage_records.h"

namespace lintel {
namespace {

// Turns that wait to be idle; the longest idle one of more is stored at once.
constexpr std::size_t kMostIdle = 4096;
// Evicted states that wait to be written, which keeps them in memory.
constexpr int kMostEvicted = 4;
constexpr std::size_t kRowsAtOnce = 1024;
// The reading of other servers' keys.
constexpr std::chrono::seconds kReadInterval{5};
constexpr std::size_t kOthersAtOnce = 256;
// The time by which servers' clocks may differ, or a row be late.
constexpr std::int64_t kLateMilliseconds = 60'000;
constexpr std::size_t kTimeDigits = 12;
constexpr std::chrono::minutes kForgetInterval{10};  // of keys that have expired

// "chat-t" and the time in hexadecimal digits, so that the order of ids is that of time.
std::string first_id_at(std::int64_t milliseconds) {
  std::string digits(kTimeDigits, '0');
  for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit, milliseconds /= 16) {
    *digit = "0123456789abcdef"[milliseconds % 16];
  }
  return kChatStateIdPrefix + ("t" + digits);
}

// The time in an id; 0: it has none.
std::int64_t time_of_id(std::string_view id) {
  const std::string begin = kChatStateIdPrefix + std::string("t");
  if (!id.starts_with(begin) || id.size() < begin.size() + kTimeDigits) return 0;
  std::int64_t time = 0;
  const char* const digits = id.data() + begin.size();
  std::from_chars(digits, digits + kTimeDigits, time, 16);
  return time;
}

std::int64_t milliseconds_of(const Clock& clock) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(clock.wall_time().time_since_epoch())
      .count();
}

std::string new_id(const Clock& clock) {
  std::array<std::byte, 16> random;
  fill_with_random(random);
  return first_id_at(milliseconds_of(clock)) + to_hex(Digest{random});
}

}  // namespace

StoredChatStates::StoredChatStates(SessionStorage& storage, PersistentSessions& sessions,
                                   PrefixCache& prefixes, const ModelRegistry& models,
                                   const Clock& clock, const Options& options)
    : storage_(storage),
      sessions_(sessions),
      prefixes_(prefixes),
      models_(models),
      clock_(clock),
      options_(options) {
  read_until_ = kChatStateIdPrefix;
  while (read_keys(read_until_, kRowsAtOnce)) {
  }
  if (!options_.stores_all) return;
  prefixes_.when_turn_evicted(
      [this](PrefixCache::EvictedTurn turn) { store_evicted(std::move(turn)); });
}

StoredChatStates::~StoredChatStates() { prefixes_.when_turn_evicted(nullptr); }

StoredChatStates::PartKey StoredChatStates::part_of(const SessionStorage::Row& row,
                                                    const std::string& adapter_fingerprint) {
  RecordWriter writer;
  for (const std::string* const text :
       {&row.owner, &row.model_print, &row.numerics, &adapter_fingerprint}) {
    writer.text(*text);
  }
  return digest_of(writer.take());
}

StoredChatStates::PartKey StoredChatStates::part_of(const Reader& reader) {
  SessionStorage::Row row;
  row.owner = reader.owner;
  row.model_print = stored_model_print(*reader.model->transformer);
  row.numerics = reader.model->numerics().hex;
  return part_of(row, reader.adapter == nullptr ? "" : reader.adapter->weights->fingerprint());
}

bool StoredChatStates::read_keys(std::string& after, std::size_t most) {
  const std::vector<SessionStorage::Row> rows =
      storage_.list_prefix(kChatStateIdPrefix, after, most);
  if (rows.empty()) return false;  // also if it cannot be read: they are read later
  after = rows.back().id;
  MutexLock lock(mutex_);
  for (const SessionStorage::Row& row : rows) {
    newest_ = std::max(newest_, time_of_id(row.id));
    const std::optional<StoredMarks> marks = decode_marks(row.marks);
    if (!marks || row.states.empty()) continue;
    OfPart& part = keys_[part_of(row, marks->adapter_fingerprint)];
    num_keys_ +=
        part[row.position].insert_or_assign(row.digest, Stored{row.id, row.expires}).second;
  }
  return rows.size() == most;
}

void StoredChatStates::read_others() {
  catch_exceptions(
      [&] {
        has_more_ = read_keys(read_until_, kOthersAtOnce);
        if (has_more_) return;
        const std::int64_t now = milliseconds_of(clock_);
        read_until_ =
            first_id_at(std::max<std::int64_t>(std::min(newest_, now) - kLateMilliseconds, 0));
      },
      [] { ThreadFailures::of_process().note(ServerThread::kStoreWork); });
  is_reading_ = false;
}

std::vector<StoredChatStates::Found> StoredChatStates::find(const PartKey& part,
                                                            std::span<const std::int32_t> prompt) {
  std::vector<Found> found;
  const auto now = clock_.wall_time();
  RunningDigest digests;
  std::size_t hashed = 0;
  MutexLock lock(mutex_);
  const auto of_part = keys_.find(part);
  if (of_part == keys_.end()) return found;
  for (const auto& [tokens, states] : of_part->second) {
    const auto size = static_cast<std::size_t>(tokens);
    if (size > prompt.size()) break;
    digests.add(std::as_bytes(prompt.subspan(hashed, size - hashed)));
    hashed = size;
    const auto state = states.find(digests.digest());
    if (state != states.end() && state->second.expires > now) {
      found.push_back({tokens, state->second.id});
    }
  }
  return found;
}

void StoredChatStates::forget(const PartKey& part, std::int64_t tokens, const std::string& id) {
  MutexLock lock(mutex_);
  const auto of_part = keys_.find(part);
  if (of_part == keys_.end()) return;
  const auto of_length = of_part->second.find(tokens);
  if (of_length == of_part->second.end()) return;
  num_keys_ -=
      std::erase_if(of_length->second, [&](const auto& state) { return state.second.id == id; });
  if (of_length->second.empty()) of_part->second.erase(of_length);
  if (of_part->second.empty()) keys_.erase(of_part);
}

void StoredChatStates::forget_expired() {
  const auto now = clock_.wall_time();
  MutexLock lock(mutex_);
  for (auto& [part, of_part] : keys_) {
    for (auto& [tokens, states] : of_part) {
      num_keys_ -=
          std::erase_if(states, [&](const auto& state) { return state.second.expires <= now; });
    }
    std::erase_if(of_part, [](const auto& of_length) { return of_length.second.empty(); });
  }
  std::erase_if(keys_, [](const auto& of_part) { return of_part.second.empty(); });
}

bool StoredChatStates::has_more(const Reader& reader,
                                std::span<const std::int32_t> prompt) noexcept {
  return catch_exceptions(
      [&] {
        // A prompt's last token is always read, for the probabilities of the next one.
        const auto beginning = prompt.first(prompt.size() - 1);
        const std::vector<Found> found = find(part_of(reader), beginning);
        if (found.empty()) return false;
        return found.back().tokens >
               prefixes_.look_up({*reader.model->transformer, reader.adapter, reader.owner},
                                 beginning);
      },
      [] { return false; });
}

void StoredChatStates::restore(const Reader& reader,
                               std::span<const std::int32_t> prompt) noexcept {
  const auto restore_longest = [&] {
    const PartKey part = part_of(reader);
    const Transformer& model = *reader.model->transformer;
    const PrefixCache::Reader of_cache{model, reader.adapter, reader.owner};
    const std::vector<Found> found = find(part, prompt.first(prompt.size() - 1));
    for (const Found& state : found | std::views::reverse) {
      const auto tokens = prompt.first(static_cast<std::size_t>(state.tokens));
      if (prefixes_.look_up(of_cache, tokens) >= state.tokens) return true;
      const SessionStorage::Opened opened = storage_.find(state.id, reader.owner);
      PagedState saved;
      const bool is_there = opened.outcome == SessionError::kNone && !opened.row.states.empty() &&
                            saved.read(storage_, opened.row.states, opened.row.states.back(),
                                       prefixes_.options().memory_bytes);
      if (!is_there) {
        if (opened.outcome == SessionError::kNone || opened.outcome == SessionError::kNotFound) {
          forget(part, state.tokens, state.id);
        }
        continue;
      }
      SequenceState sequence = model.new_sequence(weights_of(reader.adapter));
      PagedStateReader bytes(saved.bytes, saved.pages);
      sequence.load(bytes);
      if (sequence.next_position() != state.tokens) continue;
      prefixes_.keep(of_cache, tokens, sequence, KeptFor::kTurn);
      restored_.fetch_add(1);
      return true;
    }
    return false;
  };
  // Tokens whose state cannot be read are read as a prompt.
  catch_exceptions(restore_longest, [] { return false; });
}

void StoredChatStates::note_turn(const Reader& reader, std::span<const std::int32_t> tokens,
                                 bool at_once) noexcept {
  if (!at_once && !options_.stores_all) return;
  catch_exceptions(
      [&] {
        // The registry's pointer: the reader's ends with its call.
        const ServedModel& served = *reader.model;
        auto turn = std::make_shared<Turn>(
            Turn{.part = part_of(reader),
                 .model = models_.find(served.name, served.transformer.get()),
                 .adapter = reader.adapter,
                 .has_adapter = reader.adapter != nullptr,
                 .owner = reader.owner,
                 .tokens = {tokens.begin(), tokens.end()},
                 .ended = clock_.now()});
        {
          MutexLock lock(mutex_);
          // The previous turn of the same conversation is no more idle than this one. Compared from
          // the end: conversations differ there, and often begin with the same tokens.
          const auto before = std::ranges::find_if(idle_, [&](const Turn& other) {
            return other.part == turn->part && other.tokens.size() <= tokens.size() &&
                   std::ranges::equal(other.tokens | std::views::reverse,
                                      tokens.first(other.tokens.size()) | std::views::reverse);
          });
          if (before != idle_.end()) idle_.erase(before);
          if (!at_once && options_.idle.count() > 0) {
            idle_.push_back(std::move(*turn));
            if (idle_.size() <= kMostIdle) return;
            *turn = std::move(idle_.front());
            idle_.pop_front();
          }
        }
        sessions_.run([this, turn] { store(*turn); });
      },
      [] {});
}

void StoredChatStates::look() {
  std::vector<std::shared_ptr<const Turn>> due;
  {
    MutexLock lock(mutex_);
    while (!idle_.empty() && idle_.front().ended + options_.idle <= clock_.now()) {
      due.push_back(std::make_shared<const Turn>(std::move(idle_.front())));
      idle_.pop_front();
    }
  }
  for (const auto& turn : due) sessions_.run([this, turn] { store(*turn); });
  const bool is_due = has_more_ || clock_.now() >= next_read_;
  if (storage_.is_shared() && is_due && !is_reading_.exchange(true)) {
    next_read_ = clock_.now() + kReadInterval;
    if (!sessions_.run([this] { read_others(); })) is_reading_ = false;
  }
  if (clock_.now() < next_forget_) return;
  next_forget_ = clock_.now() + kForgetInterval;
  forget_expired();
}

void StoredChatStates::store_all(Duration most, const Transformer* model) {
  const TimePoint until = clock_.now() + most;
  std::deque<Turn> left;
  {
    MutexLock lock(mutex_);
    const auto others = std::stable_partition(idle_.begin(), idle_.end(), [&](const Turn& turn) {
      const SharedModel of_turn = turn.model.lock();
      return model == nullptr || (of_turn != nullptr && of_turn->transformer.get() == model);
    });
    left.assign(std::move_iterator(idle_.begin()), std::move_iterator(others));
    idle_.erase(idle_.begin(), others);
  }
  for (; !left.empty() && clock_.now() < until; left.pop_back()) store(left.back());
}

std::shared_ptr<const StoredChatStates::Reader> StoredChatStates::reader_of(
    const Turn& turn) const {
  Reader reader{turn.model.lock(), turn.adapter.lock(), turn.owner};
  if (reader.model == nullptr || (turn.has_adapter && reader.adapter == nullptr)) return nullptr;
  return std::make_shared<const Reader>(std::move(reader));
}

void StoredChatStates::store(const Turn& turn) noexcept {
  catch_exceptions(
      [&] {
        const auto reader = reader_of(turn);
        if (reader == nullptr) return;
        const auto state = prefixes_.state_after(
            {*reader->model->transformer, reader->adapter, reader->owner}, turn.tokens);
        if (state != nullptr) store(*reader, turn.tokens, *state);
      },
      [] { ThreadFailures::of_process().note(ServerThread::kStoreWork); });
}

void StoredChatStates::store(const Reader& reader, std::span<const std::int32_t> tokens,
                             const SavedState& state) {
  const PartKey part = part_of(reader);
  const std::vector<Found> before = find(part, tokens);
  const auto size = static_cast<std::int64_t>(tokens.size());
  if (!before.empty() && before.back().tokens == size) return;
  SequenceState sequence = reader.model->transformer->new_sequence(weights_of(reader.adapter));
  SharedStateReader bytes(state);
  sequence.load(bytes);
  if (!put(reader, tokens, sequence)) return;
  // The previous turn is kept, for another answer or question.
  for (std::size_t i = 0; i + 1 < before.size(); ++i) {
    forget(part, before[i].tokens, before[i].id);
    sessions_.remove_row(before[i].id, reader.owner);
  }
}

void StoredChatStates::store_evicted(PrefixCache::EvictedTurn turn) noexcept {
  if (evicted_waiting_.fetch_add(1) >= kMostEvicted) {
    evicted_waiting_.fetch_sub(1);
    return;
  }
  const auto shared = catch_exceptions(
      [&] { return std::make_shared<const PrefixCache::EvictedTurn>(std::move(turn)); },
      [] { return std::shared_ptr<const PrefixCache::EvictedTurn>(); });
  const auto write = [this, shared] {
    catch_exceptions(
        [&] {
          Reader reader{
              .model = nullptr, .adapter = shared->adapter.lock(), .owner = shared->owner};
          for (const SharedModel& model : models_.ready()) {
            if (model->transformer.get() == shared->model) reader.model = model;
          }
          if (reader.model == nullptr) return;
          if (shared->has_adapter && reader.adapter == nullptr) return;
          store(reader, shared->tokens, *shared->state);
        },
        [] { ThreadFailures::of_process().note(ServerThread::kStoreWork); });
    evicted_waiting_.fetch_sub(1);
  };
  const bool taken = catch_exceptions([&] { return shared != nullptr && sessions_.run(write); },
                                      [] { return false; });
  if (!taken) evicted_waiting_.fetch_sub(1);
}

bool StoredChatStates::put(const Reader& reader, std::span<const std::int32_t> tokens,
                           const SequenceState& sequence) {
  PagedState saved;
  saved.save(sequence, {});
  NewSession created;
  SessionStorage::Row& row = created.row;
  row.id = new_id(clock_);
  row.owner = reader.owner;
  row.model = reader.model->name;
  row.model_print = stored_model_print(*reader.model->transformer);
  row.numerics = reader.model->numerics().hex;
  row.durability = Durability::kCall;
  row.position = static_cast<std::int64_t>(tokens.size());
  row.digest = digest_of(std::as_bytes(tokens));
  StoredMarks marks;
  marks.options.expire_after = options_.expire_after;
  if (reader.adapter != nullptr) {
    marks.adapter = reader.adapter->name;
    marks.adapter_fingerprint = reader.adapter->weights->fingerprint();
  }
  row.marks = encode_marks(marks);
  row.created = row.used = clock_.wall_time();
  row.expires = row.used + options_.expire_after;
  created.tokens.assign(tokens.begin(), tokens.end());
  const bool is_stored = sessions_.store_row(created, saved);
  zero_memory(std::span(created.tokens));
  if (!is_stored) return false;
  stored_.fetch_add(1);
  MutexLock lock(mutex_);
  const Stored key{row.id, row.expires};
  num_keys_ += keys_[part_of(reader)][row.position].insert_or_assign(row.digest, key).second;
  return true;
}

StoredChatStates::Stats StoredChatStates::stats() const {
  MutexLock lock(mutex_);
  return {.stored = stored_.load(), .restored = restored_.load(), .keys = num_keys_};
}

}  // namespace lintel

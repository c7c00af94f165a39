// SessionStore: sessions as images, and out of images.
#include <algorithm>
#include <new>
#include <utility>

#include "model/core/model_error.h"
#include "model/core/state_bytes.h"
#include "model/lora/adapter.h"
#include "server/sessions/nearest_state.h"
#include "server/sessions/session_record.h"
#include "server/sessions/session_store.h"

namespace lintel {
namespace {

// What an image says has to fit together, and this model, before anything is admitted for it.
void check_image(const SessionImage& image, const Transformer& model, std::int64_t limit) {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw ModelError(std::string("session image: ") + what);
  };
  const auto num_values = static_cast<std::int64_t>(image.values.size());
  require(
      image.base >= 0 && image.position >= image.base && num_values == image.position - image.base,
      "its values are not those from its base to its position");
  require(limit == 0 || image.position <= limit, "it has more values than the session may have");
  require(!image.state_bytes().empty() || image.base == 0, "it has neither all values nor a state");
  require(image.state_position >= image.base && image.state_position <= image.position &&
              image.state_bytes().empty() == (image.state_position == 0),
          "its state is not one of its values");
  const int vocab_size = model.head().num_values();
  require(std::all_of(image.values.begin(), image.values.end(),
                      [&](std::int32_t value) { return value >= 0 && value < vocab_size; }),
          "it has values that the model does not know");
  const auto unordered = std::adjacent_find(
      image.marks.begin(), image.marks.end(),
      [](const HistoryMark& a, const HistoryMark& b) { return a.position >= b.position; });
  require(unordered == image.marks.end(), "its marks are not in order");
}

}  // namespace

SessionStore::Made SessionStore::new_session(const std::string& model_name,
                                             std::shared_ptr<const Transformer> model,
                                             SessionOptions session, const SessionImage* image,
                                             const Owner& owner, SharedAdapter adapter) {
  const SessionHistory::Options history =
      history_of(*model, session, options_.history_tokens, image);
  const std::size_t bytes = session_bytes(*model, session, options_.history_tokens, image);
  Made made;
  if (history.max_values == 0 && session.window == 0 && model->tokens_until_full() == kNeverFull) {
    made.refusal.error = SessionError::kNeedsMaxTokens;
    return made;
  }
  if (image != nullptr) check_image(*image, *model, history.max_values);
  if (image == nullptr || image->base == 0) session.initial = nullptr;
  made = new_record(model_name, std::move(model), session, bytes, /*takes_place=*/true, owner,
                    std::move(adapter));
  if (made.record == nullptr) return made;
  SessionRecord& record = *made.record;
  record.max_values = history.max_values;
  try {
    record.sequence.emplace(record.model->new_sequence(weights_of(record.adapter)));
    record.history = std::make_unique<SessionHistory>(history);
    if (image == nullptr) return made;
    SequenceState& sequence = *record.sequence;
    if (!image->state_bytes().empty()) {
      StateByteReader reader(image->state_bytes());
      sequence.load(reader, image->state_position);
      if (sequence.next_position() != image->state_position || reader.bytes_left() > 0) {
        throw ModelError("session image: its state is not as long as it says");
      }
    }
    if (image->base > 0) {
      record.history->begin_at(
          image->base, image->base_digest,
          sequence.next_position() == image->base ? sequence.generated_tail : "");
    }
    record.history->append(*image);
    if (record.history->extent().digest != image->digest) {
      throw ModelError("session image: its values do not have the digest that it says");
    }
    record.state_values = sequence.next_position();
    if (!record.options.numerics.empty()) record.foreign_values = image->position;
  } catch (const std::bad_alloc&) {
    made.record = nullptr;
    made.refusal.error = SessionError::kOutOfMemory;
  }
  return made;
}

SessionStore::CreateResult SessionStore::restore(const std::string& model_name,
                                                 std::shared_ptr<const Transformer> model,
                                                 const SessionImage& image, const Owner& owner,
                                                 SharedAdapter adapter,
                                                 const SessionOptions& session) {
  SessionOptions whole = session;
  whole.max_values = image.max_values;
  whole.window = image.window;
  return add(new_session(model_name, std::move(model), std::move(whole), &image, owner,
                         std::move(adapter)));
}

SessionStore::CreateResult SessionStore::wake(const StoredSession& stored,
                                              const std::string& model_name,
                                              std::shared_ptr<const Transformer> model,
                                              const SessionImage& image, const Owner& owner,
                                              SharedAdapter adapter) {
  CreateResult result;
  Made made =
      new_session(model_name, std::move(model), stored.options, &image, owner, std::move(adapter));
  result.refusal = made.refusal;
  if (made.record == nullptr) return result;
  SessionRecord& record = *made.record;
  record.id = stored.id;
  record.stored = true;
  record.created_at = stored.created;
  MutexLock lock(mutex_);
  if (!insert(made.record)) {
    result.refusal.error = SessionError::kBusy;
    return result;
  }
  record.last_used_at = stored.last_used;
  ++woken_;
  result.info = info_of(record);
  return result;
}

SessionStore::ImageResult SessionStore::image(const std::string& id, const Owner& owner,
                                              std::optional<std::int64_t> position,
                                              bool with_history, bool with_state,
                                              const StatePlace& place) {
  ImageResult result;
  const Source source = find_source(id, owner);
  result.refusal = source.refusal;
  if (source.record == nullptr || (!source.held && !position)) return result;
  const SessionRecord& record = *source.record;
  SessionImage& image = result.image;
  image.position = position.value_or(record.history->position());
  try {
    const auto past = record.history->fork(image.position);
    const NearestState nearest(record, source.held ? &*record.sequence : nullptr,
                               past == nullptr ? 0 : past->base(), image.position);
    if (past == nullptr || !nearest) {
      result.refusal = out_of_range(record);
      return result;
    }
    result.refusal = {};
    image.model = record.model_name;
    if (record.adapter != nullptr) {
      image.adapter = record.adapter->name;
      image.adapter_fingerprint = record.adapter->weights->fingerprint();
    }
    image.max_values = record.max_values;
    image.window = record.options.window;
    image.base = past->base();
    const bool has_state = (with_state || image.base > 0) && !nearest.is_empty();
    if (has_state) image.state_position = nearest.num_values();
    if (!with_history && image.state_position > 0) {
      // What the state lacks, what the tail behind that may reach back to, and what a window is
      // rebuilt from.
      const std::int64_t reach = image.state_position == image.position
                                     ? 0
                                     : static_cast<std::int64_t>(SessionHistory::kMostTailBytes);
      image.base = std::max(image.base, image.state_position - std::max(reach, image.window));
    }
    image.values = past->values(image.base, image.position);
    image.marks = past->marks(image.base, image.position);
    image.digest = past->extent().digest;
    image.base_digest = *past->digest_at(image.base);
    if (has_state) nearest.save(place ? place(image, nearest.saved_bytes()) : image.state);
  } catch (const std::bad_alloc&) {
    result.refusal.error = SessionError::kOutOfMemory;
  }
  return result;
}

}  // namespace lintel

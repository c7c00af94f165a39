// SPDX-License-Identifier: Apache-2.0
// LineEditor: lines that people type on a terminal.
#pragma once

#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <cwctype>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "client/cli/console.h"
#include "client/lib/call_error.h"

namespace lintel::cli {

// Lines that people type on a terminal, edited by libedit: arrows, Emacs' keys, the lines of this
// run to go back to, all of UTF-8. Ctrl-C clears the line, Ctrl-D on an empty one is the end. What
// is pasted becomes a part of the line with its line ends, and can be edited before Enter sends it.
// Nothing is written to a file: prompts are their owner's.
//
// Threads: one at a time.
class LineEditor {
  static constexpr int kHistoryLines = 1000;
  static constexpr std::size_t kMostPastedBytes = 4 * 1024 * 1024;  // the rest is left out
  // A terminal sends what is pasted between the two, once it is asked to.
  static constexpr std::string_view kPasteBegins = "\x1b[200~", kPasteEnds = "\x1b[201~";

  // libedit reads characters by the thread's locale. Elsewhere in the program numbers and texts are
  // the same everywhere; so it has the user's while a line is edited. Where that knows no
  // characters beyond ASCII: UTF-8.
  class UserCharacters {
   public:
    UserCharacters() : locale_(newlocale(LC_CTYPE_MASK, "", nullptr)) {
      if (locale_ != nullptr && std::strcmp(nl_langinfo_l(CODESET, locale_), "UTF-8") == 0) return;
      if (locale_ != nullptr) freelocale(locale_);
      locale_ = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
    }
    ~UserCharacters() {
      if (locale_ != nullptr) freelocale(locale_);
    }
    UserCharacters(const UserCharacters&) = delete;
    UserCharacters& operator=(const UserCharacters&) = delete;

    // Runs `body` with them.
    template <typename Body>
    auto use(Body&& body) const {
      if (locale_ == nullptr) return body();
      const locale_t before = uselocale(locale_);
      struct Restore {
        locale_t before;
        ~Restore() { uselocale(before); }
      } const restore{before};
      return body();
    }

   private:
    locale_t locale_;
  };

  using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

  static File open_copy(int fd, const char* mode) {
    File file(fdopen(dup(fd), mode), &std::fclose);
    if (file == nullptr) throw Failure(std::string("terminal: ") + std::strerror(errno));
    return file;
  }

 public:
  explicit LineEditor(Console& console)
      : console_(console),
        in_(open_copy(console.in_fd(), "r")),
        err_(open_copy(console.err_fd(), "w")),
        history_(history_init(), &history_end),
        editor_(make_editor(), &el_end) {
    if (history_ == nullptr || editor_ == nullptr) throw Failure("terminal: cannot be edited on");
    HistEvent event;
    history(history_.get(), &event, H_SETSIZE, kHistoryLines);
    history(history_.get(), &event, H_SETUNIQUE, 1);
    EditLine* const editor = editor_.get();
    el_set(editor, EL_CLIENTDATA, this);
    el_set(editor, EL_PROMPT, &prompt_of);
    // The editor asks the locale here which keys are letters.
    characters_.use([&] { return el_set(editor, EL_EDITOR, "emacs"); });
    el_set(editor, EL_HIST, &history, history_.get());
    el_set(editor, EL_GETCFN, &read_character);
    el_set(editor, EL_SIGNAL, 0);  // a thread waits for signals
    // Ctrl-C is a key while a line is edited.
    el_set(editor, EL_SETTY, "-d", "-isig", nullptr);
    el_set(editor, EL_ADDFN, "lintel-leave", "Leave the line", &leave);
    el_set(editor, EL_BIND, "^C", "lintel-leave", nullptr);
    el_set(editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_set(editor, EL_ADDFN, "lintel-paste", "Insert what is pasted", &paste);
    el_set(editor, EL_BIND, std::string(kPasteBegins).c_str(), "lintel-paste", nullptr);
  }

  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // The next line without its newline, and with those that were pasted within it; nothing at the
  // end. Where `is_left` is not null Ctrl-C sets it and ends the line, which is empty then. Throws
  // as Console::read_line().
  std::optional<std::string> read(const std::string& prompt, bool* is_left = nullptr) {
    prompt_ = prompt;
    is_left_ = is_left;
    el_resize(editor_.get());
    const PasteMode paste_mode(err_.get());
    // Before the prompt invites to type: what came in between would be shown twice, and a Ctrl-C
    // that is meant for the answer be taken for a key.
    el_set(editor_.get(), EL_PREP_TERM, 1);
    int count = 0;
    const char* const line = characters_.use([&] { return el_gets(editor_.get(), &count); });
    if (console_.cancellation().cancelled()) {
      std::fputs("\n", err_.get());
      std::fflush(err_.get());
      throw CallError(grpc::StatusCode::CANCELLED, "cancelled");
    }
    if (line == nullptr || count <= 0) {  // Ctrl-D leaves the cursor behind the prompt
      std::fputs("\n", err_.get());
      std::fflush(err_.get());
      if (is_left != nullptr && *is_left) return "";
      return std::nullopt;
    }
    std::string text(line, static_cast<std::size_t>(count));
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
    if (!text.empty()) {
      HistEvent event;
      characters_.use([&] { return history(history_.get(), &event, H_ENTER, text.c_str()); });
    }
    return text;
  }

 private:
  // While it lives the terminal marks what is pasted.
  class PasteMode {
   public:
    explicit PasteMode(std::FILE* terminal) : terminal_(terminal) { set(true); }
    ~PasteMode() { set(false); }
    PasteMode(const PasteMode&) = delete;
    PasteMode& operator=(const PasteMode&) = delete;

   private:
    void set(bool on) {
      const char* const kind = std::getenv("TERM");
      if (kind == nullptr || std::strcmp(kind, "dumb") == 0) return;
      std::fputs(on ? "\x1b[?2004h" : "\x1b[?2004l", terminal_);
      std::fflush(terminal_);
    }

    std::FILE* const terminal_;
  };

  EditLine* make_editor() {
    return characters_.use([&] { return el_init("lintel", in_.get(), err_.get(), err_.get()); });
  }

  static LineEditor& of(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return *static_cast<LineEditor*>(self);
  }

  static char* prompt_of(EditLine* editor) { return of(editor).prompt_.data(); }

  // One byte: 1, or 0 at the end and when the command is cancelled, or -1. It waits in slices: the
  // signal that cancels is not delivered to this thread.
  int read_byte(char& byte) {
    for (;;) {
      pollfd waiting{console_.in_fd(), POLLIN, 0};
      while (poll(&waiting, 1, /*milliseconds=*/100) == 0) {
        if (console_.cancellation().cancelled()) return 0;
      }
      const ssize_t got = ::read(console_.in_fd(), &byte, 1);
      if (got >= 0 || errno != EINTR) return static_cast<int>(got);
    }
  }

  // Returns the part of a paste that libedit inserts: characters of the locale, tabs and line ends,
  // for which a terminal sends carriage returns.
  static std::string insertable(std::string_view pasted) {
    std::string text;
    std::mbstate_t state{};
    for (std::size_t at = 0; at < pasted.size();) {
      const char first = pasted[at];
      if (first == '\r' || first == '\n') {
        text += '\n';
        at += pasted.substr(at).starts_with("\r\n") ? 2 : 1;
        continue;
      }
      wchar_t character = 0;
      const std::size_t length =
          std::mbrtowc(&character, pasted.data() + at, pasted.size() - at, &state);
      const bool is_character = length > 0 && length <= pasted.size() - at;
      if (!is_character) state = {};
      const std::size_t bytes = is_character ? length : 1;
      if (is_character && (first == '\t' || std::iswcntrl(static_cast<wint_t>(character)) == 0)) {
        text += pasted.substr(at, bytes);
      }
      at += bytes;
    }
    return text;
  }

  // The function that libedit calls where a paste begins.
  static unsigned char paste(EditLine* editor, int) {
    LineEditor& self = of(editor);
    std::string pasted, last;  // as many bytes as the end has
    while (last != kPasteEnds) {
      char byte = 0;
      if (self.read_byte(byte) <= 0) return CC_EOF;
      if (last.size() == kPasteEnds.size()) last.erase(0, 1);
      last += byte;
      if (pasted.size() < kMostPastedBytes) pasted += byte;
    }
    const bool is_whole = pasted.ends_with(kPasteEnds);
    if (is_whole) pasted.erase(pasted.size() - kPasteEnds.size());
    const std::string text = insertable(pasted);
    if (!text.empty() && el_insertstr(editor, text.c_str()) != 0) return CC_ERROR;
    return is_whole ? CC_REFRESH : CC_REFRESH_BEEP;
  }

  // The function that libedit calls at Ctrl-C.
  static unsigned char leave(EditLine* editor, int) {
    const LineInfo* const line = el_line(editor);
    el_cursor(editor, static_cast<int>(line->lastchar - line->cursor));
    el_deletestr(editor, static_cast<int>(el_line(editor)->lastchar - el_line(editor)->buffer));
    bool* const is_left = of(editor).is_left_;
    if (is_left == nullptr) return CC_REFRESH;
    *is_left = true;
    return CC_NEWLINE;
  }

  // Reads a character as read_byte() reads a byte.
  static int read_character(EditLine* editor, wchar_t* character) {
    LineEditor& self = of(editor);
    std::mbstate_t state{};
    for (;;) {
      char byte = 0;
      const int got = self.read_byte(byte);
      if (got <= 0) return got;
      const std::size_t length = std::mbrtowc(character, &byte, 1, &state);
      if (length == static_cast<std::size_t>(-1)) {
        state = {};  // no character: it is passed over
      } else if (length != static_cast<std::size_t>(-2)) {
        return 1;
      }
    }
  }

  Console& console_;
  const UserCharacters characters_;
  const File in_, err_;
  std::string prompt_;
  bool* is_left_ = nullptr;  // of the line that is read
  const std::unique_ptr<History, void (*)(History*)> history_;
  const std::unique_ptr<EditLine, void (*)(EditLine*)> editor_;
};

}  // namespace lintel::cli

// SPDX-License-Identifier: Apache-2.0
// LineEditor: lines that people type on a terminal.
#pragma once

#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <cwchar>
#include <memory>
#include <optional>
#include <string>

#include "client/cli/console.h"
#include "client/lib/call_error.h"

namespace lintel::cli {

// Lines that people type on a terminal, edited by libedit: arrows, Emacs' keys, the lines of this
// run to go back to, all of UTF-8. Ctrl-C clears the line, Ctrl-D on an empty one is the end.
// Nothing is written to a file: prompts are their owner's.
//
// Threads: one at a time.
class LineEditor {
  static constexpr int kHistoryLines = 1000;

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
    // Which keys are letters is asked of the locale here.
    characters_.use([&] { return el_set(editor, EL_EDITOR, "emacs"); });
    el_set(editor, EL_HIST, &history, history_.get());
    el_set(editor, EL_GETCFN, &read_character);
    el_set(editor, EL_SIGNAL, 0);  // a thread waits for signals
    // Ctrl-C is a key while a line is edited.
    el_set(editor, EL_SETTY, "-d", "-isig", nullptr);
    el_set(editor, EL_BIND, "^C", "em-kill-line", nullptr);
    el_set(editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  }

  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // The next line without its newline; nothing at the end. Throws as Console::read_line().
  std::optional<std::string> read(const std::string& prompt) {
    prompt_ = prompt;
    el_resize(editor_.get());
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
  EditLine* make_editor() {
    return characters_.use([&] { return el_init("lintel", in_.get(), err_.get(), err_.get()); });
  }

  static LineEditor& of(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return *static_cast<LineEditor*>(self);
  }

  static char* prompt_of(EditLine* editor) { return of(editor).prompt_.data(); }

  // One character; 0 at the end, or when the command is cancelled. It waits in slices: the signal
  // that cancels is not delivered to this thread.
  static int read_character(EditLine* editor, wchar_t* character) {
    LineEditor& self = of(editor);
    std::mbstate_t state{};
    for (;;) {
      pollfd waiting{self.console_.in_fd(), POLLIN, 0};
      while (poll(&waiting, 1, /*milliseconds=*/100) == 0) {
        if (self.console_.cancellation().cancelled()) return 0;
      }
      char byte = 0;
      const ssize_t got = ::read(self.console_.in_fd(), &byte, 1);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return static_cast<int>(got);
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
  const std::unique_ptr<History, void (*)(History*)> history_;
  const std::unique_ptr<EditLine, void (*)(EditLine*)> editor_;
};

}  // namespace lintel::cli

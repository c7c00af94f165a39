// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <fstream>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tools/describe/flags.h"
#include "tools/describe/formats.h"

namespace lintel::describe {
namespace {

// One of each kind.
struct Program {
  CLI::App app{"Says things. Loudly.", "say"};
  std::string text, file;
  int number = 3;
  std::vector<std::string> many;
  bool loud = false;

  Program() {
    add_flags(app, {"--threads"});
    app.add_option("--threads", number, "How many")
        ->type_name("N")
        ->check(CLI::Range(1, 64))
        ->envname("SAY_THREADS")
        ->capture_default_str();
    CLI::App* word = app.add_subcommand("word", "Say a word: it's heard [once]");
    word->add_option("--format", text, "How")->check(CLI::IsMember({"low", "high"}));
    word->add_option("--type", text, "What. More of it")
        ->type_name("HOST:PORT")
        ->check(offers({"a", "b"}));
    word->add_option("--file", file, "Where from")->type_name("FILE")->group("Input");
    word->add_option("--given", many, "Repeated")->type_name("[NAME=]DIR");
    word->add_flag("--loud", loud, "Louder");
    word->add_option("WORD", text, "The word")->required();
    word->footer("\nA note.\n.dotted\n\nExamples:\n  say word \\n\n  say word - -x");
    CLI::App* list = app.add_subcommand("list", "Lists");
    list->add_subcommand("all", "All of them")->footer("Examples:\n  say list all");
    list->add_option("--secret", text)->group("");
  }

  // The output of `arguments`, which print instead of doing anything.
  std::string printed(std::vector<std::string> arguments) {
    std::reverse(arguments.begin(), arguments.end());
    try {
      app.parse(arguments);
    } catch (const CLI::CallForVersion& shown) {
      CHECK(shown.get_exit_code() == 0);
      return shown.what();
    }
    return "";
  }
};

const Argument& flag_of(const Command& command, std::string_view name) {
  for (const Argument& flag : command.flags) {
    if (flag.names.back() == name) return flag;
  }
  throw std::runtime_error(std::string(name));
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a command is read as CLI11 knows it, without what --help does not show") {
  const Program program;
  const Command say = read_command(program.app);
  CHECK(say.path == "say");
  REQUIRE(say.commands.size() == 2);
  const Argument& threads = flag_of(say, "--threads");
  CHECK(threads.value == "N");
  CHECK(threads.range == "1 to 64");
  CHECK(threads.initial == "3");
  CHECK(threads.variable == "SAY_THREADS");
  const Command& word = say.commands[0];
  CHECK(word.path == "say word");
  CHECK(flag_of(word, "--format").choices == std::vector<std::string>{"low", "high"});
  CHECK(flag_of(word, "--type").choices == std::vector<std::string>{"a", "b"});
  CHECK(flag_of(word, "--type").value == "HOST:PORT");
  CHECK(flag_of(word, "--file").is_file());
  CHECK(flag_of(word, "--given").is_directory());
  CHECK(flag_of(word, "--given").repeated);
  CHECK(flag_of(word, "--loud").value.empty());
  CHECK(word.flags.back().group == "Input");  // together by group
  REQUIRE(word.arguments.size() == 1);
  CHECK(word.arguments[0].names[0] == "WORD");
  CHECK(word.arguments[0].required);
  for (const Argument& flag : say.commands[1].flags) CHECK(flag.names.back() != "--secret");
  CHECK(say.commands[1].commands[0].path == "say list all");
}

TEST_CASE("values that are offered are not checked, and --help does not have them") {
  Program program;
  const std::string help = program.app.get_subcommand("word")->help();
  CHECK(has(help, "--type HOST:PORT "));
  CHECK(!has(help, "{a,b}"));
  CHECK(program.printed({"word", "x", "--type", "c"}).empty());
  CHECK(program.text == "x");
}

TEST_CASE("help lists the flags that a flag excludes or needs in the order of their names") {
  CLI::App app("", "say");
  add_flags(app);
  CLI::App* const word = app.add_subcommand("word", "Say a word");
  std::vector<CLI::Option*> options;
  for (const char* const name : {"--z", "--b", "--m", "--c", "--a", "--y"}) {
    options.push_back(word->add_flag(name));
  }
  for (CLI::Option* const option : options) {
    if (option != options[0]) options[0]->excludes(option);
  }
  options[1]->needs(options[5])->needs(options[4]);
  const std::string help = word->help();
  CHECK(has(help, "--z Excludes: --a --b --c --m --y\n"));
  CHECK(has(help, "--b Needs: --a --y Excludes: --z\n"));
}

TEST_CASE("help is laid out for 80 columns: texts, paragraphs and commands that are too long") {
  std::string words;
  for (int i = 0; i < 30; ++i) words += (i == 0 ? "" : " ") + std::string("words");
  CLI::App app("Says " + words, "say");
  add_flags(app);
  const std::string louder = "Louder " + words;
  app.add_flag("--loud", louder);
  app.add_subcommand("word", "A word " + words);
  app.footer("First\n" + words + "\nlast.\n\nExamples:\n  say one\n  say " + words);
  const std::string help = app.help();
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    CHECK(line.size() <= 80);
  }
  const std::string all = "words words words words words words words words words words words words";
  CHECK(has(help, "Says " + all + "\nwords"));
  CHECK(
      has(help,
          "Louder words words words words words words words\n                              words"));
  CHECK(has(help, "First " + all + "\nwords"));
  CHECK(has(help, "words last.\n\nExamples:\n  say one\n  say " + all + " \\\n      words"));
}

TEST_CASE("help in Markdown is a table for each group") {
  Program program;
  program.app.add_option("--rows", program.number, "Rows | columns,\nof <all>")
      ->type_name("N")
      ->group("Shape")
      ->check(takes("2 to 8"));
  const std::string page = program.printed({"--help-markdown"});
  CHECK(has(page, "# Flags of say\n"));
  CHECK(has(page,
            "## Shape\n\n| flag | default | values | what it does |\n|---|---|---|---|\n"
            "| `--rows` `N` |  | 2 to 8 | Rows \\| columns, of \\<all> |\n"));
  CHECK(has(page, "| `--threads` `N` |  | 1 to 64 | How many |\n"));  // no default of this machine
  CHECK(!has(program.app.help(), "2 to 8"));
}

TEST_CASE("a completion is printed before anything is required") {
  Program program;
  const std::string bash = program.printed({"--completion", "bash"});
  CHECK(has(bash, "complete -F _say say"));
  CHECK(has(bash, "' word') commands='' flags='-h --help --format --type --given --loud --file'"));
  CHECK(has(bash, "takes='--format --type --given --file'"));
  CHECK(has(bash, "' word --file') kind=file"));
  CHECK(has(bash, "' word --given') kind=directory"));
  CHECK(has(bash, "' word --format') values='low high'"));
  CHECK(has(bash, "' word --type') values='a b'"));
  CHECK(has(bash, "' list') commands='all'"));
  CHECK(!has(bash, "--man-pages"));
  CHECK_THROWS_AS(program.printed({"--completion", "fish"}), CLI::ValidationError);
}

TEST_CASE("zsh's completion quotes what zsh would read") {
  Program program;
  const std::string zsh = program.printed({"--completion", "zsh"});
  CHECK(zsh.rfind("#compdef say\n", 0) == 0);
  CHECK(has(zsh, R"('word:Say a word\: it'\''s heard \[once\]')"));
  CHECK(has(zsh, R"('--type=[What]:HOST\:PORT:(a b)')"));
  CHECK(has(zsh, R"('*--given=[Repeated]:\[NAME=\]DIR:_files -/')"));
  CHECK(has(zsh, "'--loud[Louder]'"));
  CHECK(has(zsh, "all) _say_list_all && ret=0"));
}

TEST_CASE("a word that begins with -h is an unknown flag unless help is asked for") {
  Program program;
  CHECK_THROWS_AS(parse(program.app, {"--help"}), CLI::CallForHelp);
  CHECK_THROWS_AS(parse(program.app, {"word", "-hf", "x", "--help"}), CLI::CallForHelp);
  CHECK_THROWS_WITH(parse(program.app, {"word", "-hf", "x"}), "-hf");
  CHECK_THROWS_AS(parse(program.app, {"word", "-hf", "x"}), UnknownFlag);
  CHECK_NOTHROW(parse(program.app, {"word", "--loud", "--", "-hf"}));
  CHECK(program.text == "-hf");
}

TEST_CASE("foreign_flag: says what a flag of another program asks for") {
  CHECK(foreign_flag("-hf") == ForeignFlag::kHub);
  CHECK(foreign_flag("--n-gpu-layers") == ForeignFlag::kProcessor);
  CHECK(foreign_flag("-h") == ForeignFlag::kNone);
}

TEST_CASE("there is a man page for the program and for each command") {
  const Program program;
  const auto pages = man_pages(read_command(program.app), "1.2.3", "2026-01-31");
  REQUIRE(pages.size() == 3);
  CHECK(pages[0].first == "say");
  CHECK(has(pages[0].second, ".TH SAY 1 2026-01-31 \"say 1.2.3\""));
  CHECK(has(pages[0].second, "From 1 to 64.\nDefault: \\fB3\\fR.\nEnvironment: \\fBSAY_THREADS"));
  CHECK(has(pages[0].second, "See \\fBsay\\-word\\fR(1)."));
  CHECK(pages[1].first == "say-word");
  const std::string& word = pages[1].second;
  CHECK(has(word, ".SH SYNOPSIS\n\\fBsay word\\fR [\\fIOPTIONS\\fR] \\fIWORD\\fR\n"));
  CHECK(has(word, "\n\\&.dotted\n"));  // no request
  CHECK(has(word, ".SH EXAMPLES\n.nf\n  say word \\en\n  say word \\- \\-x\n.fi\n"));
  CHECK(has(word, "One of: low, high.\n"));
  CHECK(has(word, ".SS Input\n"));
  // Examples of a command inside a command are part of its section.
  CHECK(has(pages[2].second, ".SS say list all\n"));
  CHECK(!has(pages[2].second, ".SH EXAMPLES"));
}

TEST_CASE("pages that are written leave out defaults of the machine that wrote them") {
  const testing::TemporaryDirectory directory;
  Program program;
  const std::string written = program.printed({"--man-pages", directory.path()});
  CHECK(std::count(written.begin(), written.end(), '\n') == 2);
  std::ifstream in(directory.path() / "say.1");
  const std::string page(std::istreambuf_iterator<char>(in), {});
  CHECK(has(page, "SAY_THREADS"));
  CHECK(!has(page, "Default"));
  CHECK(!has(page, "man\\-pages"));
}

TEST_CASE("pages that cannot be written are an error that names the file") {
  Program program;
  CHECK_THROWS_WITH(program.printed({"--man-pages", "/nonexistent"}),
                    Catch::Contains("cannot write to /nonexistent/say.1"));
}

}  // namespace lintel::describe

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <unordered_set>

#include "server/chat/template/lexer.h"
#include "server/chat/template/syntax.h"

namespace lintel::jinja {
namespace {

// The names in a macro's body that make it take more than its parameters.
struct MacroUse {
  NameId name;
  bool used = false;
  bool assigned = false;  // before it was used
};

class Parser {
 public:
  Parser(std::string_view source, const TemplateLimits& limits) : lexer_(source), limits_(limits) {
    syntax_.known = {name_id("loop"), name_id("caller"), name_id("varargs"), name_id("kwargs")};
    token_ = lexer_.next();
  }

  Syntax parse() {
    syntax_.body = block({});
    return std::move(syntax_);
  }

 private:
  // One level of nesting while it lives.
  class Level {
   public:
    explicit Level(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > parser_.limits_.nesting) {
        parser_.refuse_bound("nesting", static_cast<std::size_t>(parser_.limits_.nesting));
      }
    }
    ~Level() { --parser_.nesting_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Parser& parser_;
  };

  [[noreturn]] void refuse(const std::string& what) const { refuse_at(token_.line, what); }
  [[noreturn]] static void refuse_at(std::size_t line, const std::string& what) {
    throw TemplateError(TemplateError::Kind::kSyntax, line, what);
  }
  [[noreturn]] void refuse_bound(const char* bound, std::size_t limit) const {
    throw TemplateError(TemplateError::Kind::kBound, token_.line,
                        std::string(bound) + ": at most " + std::to_string(limit) + " are allowed",
                        bound);
  }
  std::string found() const {
    switch (token_.kind) {
      case TokenKind::kEnd:
        return "the end of the template";
      case TokenKind::kBlockEnd:
      case TokenKind::kVariableEnd:
        return "the end of the tag";
      case TokenKind::kString:
        return "a text";
      case TokenKind::kData:
      case TokenKind::kBlockBegin:
      case TokenKind::kVariableBegin:
        return "text outside of tags";
      default:
        return "'" + std::string(token_.text.substr(0, 40)) + "'";
    }
  }
  [[noreturn]] void refuse_token(const std::string& expected) const {
    refuse("found " + found() + ", expected " + expected);
  }

  // Tokens.
  void advance() {
    if (has_ahead_) {
      token_ = std::move(ahead_);
      has_ahead_ = false;
    } else {
      token_ = lexer_.next();
    }
  }
  const Token& ahead() {
    if (!has_ahead_) {
      ahead_ = lexer_.next();
      has_ahead_ = true;
    }
    return ahead_;
  }
  static bool is_operator(const Token& token, std::string_view text) {
    return token.kind == TokenKind::kOperator && token.text == text;
  }
  bool at(std::string_view text) const { return is_operator(token_, text); }
  bool at_name(std::string_view name) const {
    return token_.kind == TokenKind::kName && token_.text == name;
  }
  bool skip(std::string_view text) {
    if (!at(text)) return false;
    advance();
    return true;
  }
  bool skip_name(std::string_view name) {
    if (!at_name(name)) return false;
    advance();
    return true;
  }
  void expect(std::string_view text) {
    if (!skip(text)) refuse_token("'" + std::string(text) + "'");
  }
  void expect_name(std::string_view name) {
    if (!skip_name(name)) refuse_token("'" + std::string(name) + "'");
  }
  void expect_block_end() {
    if (token_.kind != TokenKind::kBlockEnd) refuse_token("the end of the tag");
    advance();
  }
  std::string_view take_name(const char* what) {
    if (token_.kind != TokenKind::kName) refuse_token(what);
    const std::string_view name = token_.text;
    advance();
    return name;
  }

  // Nodes.
  void count_node() {
    if (++nodes_ > limits_.nodes) refuse_bound("nodes", limits_.nodes);
  }
  Expression* expression(ExpressionKind kind) {
    count_node();
    syntax_.expressions.push_back(std::make_unique<Expression>());
    Expression* const made = syntax_.expressions.back().get();
    made->kind = kind;
    made->line = static_cast<std::uint32_t>(token_.line);
    return made;
  }
  Statement* statement(StatementKind kind) {
    count_node();
    syntax_.statements.push_back(std::make_unique<Statement>());
    Statement* const made = syntax_.statements.back().get();
    made->kind = kind;
    made->line = static_cast<std::uint32_t>(token_.line);
    return made;
  }
  Expression* constant(const Value& value) {
    Expression* const made = expression(ExpressionKind::kConstant);
    made->constant = value;
    return made;
  }
  // A text made of bytes that live as long as the tree.
  const Text* text_of(std::string_view bytes) {
    Text text;
    text.data = bytes.data();
    text.size = static_cast<std::uint32_t>(bytes.size());
    text.characters = static_cast<std::uint32_t>(std::ranges::count_if(
        bytes, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
    syntax_.texts.push_back(text);
    return &syntax_.texts.back();
  }
  const Text* keep(std::string string) {
    syntax_.strings.push_back(std::move(string));
    return text_of(syntax_.strings.back());
  }
  NameId name_id(std::string_view name) {
    return syntax_.names.try_emplace(name, static_cast<NameId>(syntax_.names.size())).first->second;
  }

  // A name that the template assigns before it reads it, outside of blocks, hides the variable of
  // the same name from blocks that come earlier, as jinja2's compiler has it.
  void note_root_use(NameId name) {
    if (frames_ == 0) read_.insert(name);
  }
  void note_root_assignment(NameId name) {
    if (frames_ == 0 && conditions_ == 0 && !read_.contains(name)) syntax_.hidden.insert(name);
  }
  void note_targets(const Target& target) {
    if (target.kind == Target::Kind::kName) note_root_assignment(target.name);
    for (const Target& item : target.items) note_targets(item);
  }

  void note_use(NameId name) {
    note_root_use(name);
    for (auto& uses : macros_) {
      for (MacroUse& use : uses) {
        if (use.name == name && !use.assigned) use.used = true;
      }
    }
  }
  void note_assignment(NameId name) {
    for (auto& uses : macros_) {
      for (MacroUse& use : uses) {
        if (use.name == name) use.assigned = true;
      }
    }
  }

  // Expressions, loosest first.
  const Expression* condition_expression(bool takes_condition = true) {
    const Level level(*this);
    const Expression* value = or_expression();
    while (takes_condition && skip_name("if")) {
      Expression* const made = expression(ExpressionKind::kCondition);
      made->operands = {or_expression(), value};
      if (skip_name("else")) made->operands.push_back(condition_expression());
      value = made;
      takes_condition = made->operands.size() == 2;  // an else took what follows
    }
    return value;
  }

  template <typename Parse>
  const Expression* chain_of_name(ExpressionKind kind, std::string_view name, Parse parse) {
    const Expression* const first = parse();
    if (!at_name(name)) return first;
    Expression* const made = expression(kind);
    made->operands.push_back(first);
    while (skip_name(name)) made->operands.push_back(parse());
    return made;
  }
  const Expression* or_expression() {
    return chain_of_name(ExpressionKind::kOr, "or", [this] { return and_expression(); });
  }
  const Expression* and_expression() {
    return chain_of_name(ExpressionKind::kAnd, "and", [this] { return not_expression(); });
  }
  const Expression* not_expression() {
    if (!at_name("not")) return comparison();
    const Level level(*this);
    Expression* const made = expression(ExpressionKind::kNot);
    advance();
    made->operands = {not_expression()};
    return made;
  }

  bool comparison_operator(Operator* found) {
    constexpr std::pair<std::string_view, Operator> kOperators[] = {
        {"==", Operator::kEqual},     {"!=", Operator::kNotEqual}, {"<", Operator::kLess},
        {"<=", Operator::kLessEqual}, {">", Operator::kGreater},   {">=", Operator::kGreaterEqual}};
    for (const auto& [text, op] : kOperators) {
      if (at(text)) {
        *found = op;
        advance();
        return true;
      }
    }
    if (skip_name("in")) {
      *found = Operator::kIn;
      return true;
    }
    if (at_name("not") && ahead().kind == TokenKind::kName && ahead().text == "in") {
      advance();
      advance();
      *found = Operator::kNotIn;
      return true;
    }
    return false;
  }
  const Expression* comparison() {
    const Expression* const first = sum();
    Operator op;
    if (!comparison_operator(&op)) return first;
    Expression* const made = expression(ExpressionKind::kCompare);
    made->operands.push_back(first);
    do {
      count_node();
      made->operators.push_back(op);
      made->operands.push_back(sum());
    } while (comparison_operator(&op));
    return made;
  }

  template <typename Parse, std::size_t size>
  const Expression* arithmetic(const std::pair<std::string_view, Operator> (&operators)[size],
                               Parse parse) {
    const Expression* const first = parse();
    Expression* made = nullptr;
    while (true) {
      const auto* const found =
          std::ranges::find_if(operators, [&](const auto& entry) { return at(entry.first); });
      if (found == std::end(operators)) return made != nullptr ? made : first;
      if (made == nullptr) {
        made = expression(ExpressionKind::kArithmetic);
        made->operands.push_back(first);
      }
      count_node();
      advance();
      made->operators.push_back(found->second);
      made->operands.push_back(parse());
    }
  }
  const Expression* sum() {
    static constexpr std::pair<std::string_view, Operator> kOperators[] = {
        {"+", Operator::kAdd}, {"-", Operator::kSubtract}};
    return arithmetic(kOperators, [this] { return concatenation(); });
  }
  const Expression* concatenation() {
    const Expression* const first = product();
    if (!at("~")) return first;
    Expression* const made = expression(ExpressionKind::kConcatenate);
    made->operands.push_back(first);
    while (skip("~")) made->operands.push_back(product());
    return made;
  }
  const Expression* product() {
    static constexpr std::pair<std::string_view, Operator> kOperators[] = {
        {"*", Operator::kMultiply},
        {"/", Operator::kDivide},
        {"//", Operator::kFloorDivide},
        {"%", Operator::kModulo}};
    return arithmetic(kOperators, [this] { return power(); });
  }
  const Expression* power() {
    static constexpr std::pair<std::string_view, Operator> kOperators[] = {
        {"**", Operator::kPower}};
    return arithmetic(kOperators, [this] { return unary(true); });
  }

  const Expression* unary(bool takes_filters) {
    const bool negative = at("-");
    const Expression* base = nullptr;
    if (negative || at("+")) {
      const Level level(*this);
      Expression* const made =
          expression(negative ? ExpressionKind::kNegative : ExpressionKind::kPositive);
      advance();
      made->operands = {unary(false)};
      base = made;
    } else {
      base = primary();
    }
    std::vector<PostfixStep> steps;
    add_postfix(steps);
    if (takes_filters) add_filters_and_tests(steps);
    return with_steps(base, std::move(steps));
  }
  const Expression* with_steps(const Expression* base, std::vector<PostfixStep> steps) {
    if (steps.empty()) return base;
    Expression* const made = expression(ExpressionKind::kPostfix);
    made->operands = {base};
    made->steps = std::move(steps);
    return made;
  }

  PostfixStep& add_step(std::vector<PostfixStep>& steps, StepKind kind) {
    count_node();
    PostfixStep& step = steps.emplace_back();
    step.kind = kind;
    step.line = static_cast<std::uint32_t>(token_.line);
    return step;
  }
  void add_postfix(std::vector<PostfixStep>& steps) {
    while (true) {
      if (skip(".")) {
        PostfixStep& step = add_step(steps, StepKind::kAttribute);
        if (token_.kind == TokenKind::kInteger) {
          step.kind = StepKind::kItem;
          step.parts[0] = primary();
          continue;
        }
        step.name = text_of(take_name("a name or a number after '.'"));
        step.id = method_of(step.name->view());
      } else if (at("[")) {
        add_subscript(steps);
      } else if (at("(")) {
        add_call(steps);
      } else {
        return;
      }
    }
  }
  void add_call(std::vector<PostfixStep>& steps) {
    PostfixStep step;
    step.kind = StepKind::kCall;
    step.line = static_cast<std::uint32_t>(token_.line);
    count_node();
    step.arguments = call_arguments();
    steps.push_back(std::move(step));
  }
  void add_subscript(std::vector<PostfixStep>& steps) {
    PostfixStep step;
    step.kind = StepKind::kItem;
    step.line = static_cast<std::uint32_t>(token_.line);
    count_node();
    expect("[");
    std::size_t part = 0;
    bool is_slice = false;
    while (!at("]")) {
      if (at(",")) refuse("an item of several indices is not supported");
      if (skip(":")) {
        is_slice = true;
        if (++part > 2) refuse("a slice has at most three parts");
        continue;
      }
      if (step.parts[part] != nullptr) refuse_token("']'");
      step.parts[part] = condition_expression();
    }
    if (!is_slice && step.parts[0] == nullptr) refuse_token("an index");
    expect("]");
    if (is_slice) step.kind = StepKind::kSlice;
    steps.push_back(std::move(step));
  }
  std::vector<Argument> call_arguments() {
    std::vector<Argument> arguments;
    expect("(");
    bool has_keyword = false;
    while (!at(")")) {
      if (!arguments.empty()) {
        expect(",");
        if (at(")")) break;
      }
      count_node();
      Argument argument;
      if (at("*") || at("**")) refuse("arguments out of a list or a mapping are not supported");
      if (token_.kind == TokenKind::kName && is_operator(ahead(), "=")) {
        argument.keyword = text_of(token_.text);
        has_keyword = true;
        advance();
        advance();
        for (const Argument& other : arguments) {
          if (other.keyword != nullptr && other.keyword->view() == argument.keyword->view()) {
            refuse("argument '" + std::string(argument.keyword->view()) + "' is given twice");
          }
        }
      } else if (has_keyword) {
        refuse("an argument without a name follows one with a name");
      }
      argument.value = condition_expression();
      arguments.push_back(argument);
    }
    expect(")");
    return arguments;
  }

  // "name" or "name.name", of filters and tests.
  const Text* dotted_name(const char* what) {
    std::string_view name = take_name(what);
    if (!at(".")) return text_of(name);
    std::string dotted(name);
    while (skip(".")) dotted += "." + std::string(take_name(what));
    return keep(std::move(dotted));
  }
  void add_filter(std::vector<PostfixStep>& steps) {
    PostfixStep step;
    step.kind = StepKind::kFilter;
    step.line = static_cast<std::uint32_t>(token_.line);
    count_node();
    step.name = dotted_name("a filter");
    step.id = filter_of(step.name->view());
    if (at("(")) step.arguments = call_arguments();
    steps.push_back(std::move(step));
  }
  void add_test(std::vector<PostfixStep>& steps) {
    PostfixStep step;
    step.kind = StepKind::kTest;
    step.line = static_cast<std::uint32_t>(token_.line);
    count_node();
    step.negated = skip_name("not");
    step.name = dotted_name("a test");
    step.id = test_of(step.name->view());
    const bool is_operand =
        token_.kind == TokenKind::kString || token_.kind == TokenKind::kInteger ||
        token_.kind == TokenKind::kNumber || at("[") || at("{") ||
        (token_.kind == TokenKind::kName && !at_name("else") && !at_name("or") && !at_name("and"));
    if (at("(")) {
      step.arguments = call_arguments();
    } else if (is_operand) {
      if (at_name("is")) refuse("tests cannot be chained with 'is'");
      const Level level(*this);
      const Expression* const operand = primary();
      std::vector<PostfixStep> operand_steps;
      add_postfix(operand_steps);
      step.arguments.push_back({nullptr, with_steps(operand, std::move(operand_steps))});
    }
    steps.push_back(std::move(step));
  }
  void add_filters_and_tests(std::vector<PostfixStep>& steps) {
    while (true) {
      if (skip("|")) {
        add_filter(steps);
      } else if (skip_name("is")) {
        add_test(steps);
      } else if (at("(")) {
        add_call(steps);
      } else {
        return;
      }
    }
  }

  const Expression* primary() {
    switch (token_.kind) {
      case TokenKind::kName:
        return name_or_constant();
      case TokenKind::kString: {
        std::string string = std::move(token_.string);
        advance();
        while (token_.kind == TokenKind::kString) {
          string += token_.string;
          advance();
        }
        return constant(Value::of(keep(std::move(string))));
      }
      case TokenKind::kInteger:
        return integer();
      case TokenKind::kNumber: {
        std::string digits(token_.text);
        std::erase(digits, '_');
        advance();
        return constant(Value::of(std::strtod(digits.c_str(), nullptr)));
      }
      default:
        break;
    }
    if (at("(")) return parenthesis();
    if (at("[")) return list();
    if (at("{")) return mapping();
    refuse_token("an expression");
  }
  const Expression* name_or_constant() {
    const std::string_view name = token_.text;
    if (name == "true" || name == "True" || name == "false" || name == "False") {
      advance();
      return constant(Value::of(name[0] == 't' || name[0] == 'T'));
    }
    if (name == "none" || name == "None") {
      advance();
      return constant(Value::none());
    }
    Expression* const made = expression(ExpressionKind::kName);
    made->text = text_of(name);
    made->name = name_id(name);
    note_use(made->name);
    advance();
    return made;
  }
  const Expression* integer() {
    std::string digits(token_.text);
    std::erase(digits, '_');
    const char kind = digits.size() > 1 ? static_cast<char>(digits[1] | 0x20) : '0';
    const int base = kind == 'x' ? 16 : (kind == 'o' ? 8 : (kind == 'b' ? 2 : 10));
    const char* const begin = digits.data() + (base == 10 ? 0 : 2);
    std::int64_t value = 0;
    const auto result = std::from_chars(begin, digits.data() + digits.size(), value, base);
    if (result.ec != std::errc()) refuse("integer " + digits.substr(0, 40) + " is beyond 64 bits");
    advance();
    return constant(Value::of(value));
  }
  const Expression* parenthesis() {
    expect("(");
    if (skip(")")) return expression(ExpressionKind::kTuple);
    const Expression* const first = condition_expression();
    if (!at(",")) {
      expect(")");
      return first;
    }
    Expression* const made = expression(ExpressionKind::kTuple);
    made->operands.push_back(first);
    while (skip(",")) {
      if (at(")")) break;
      made->operands.push_back(condition_expression());
    }
    expect(")");
    return made;
  }
  const Expression* list() {
    Expression* const made = expression(ExpressionKind::kList);
    expect("[");
    while (!at("]")) {
      if (!made->operands.empty()) {
        expect(",");
        if (at("]")) break;
      }
      made->operands.push_back(condition_expression());
    }
    expect("]");
    return made;
  }
  const Expression* mapping() {
    Expression* const made = expression(ExpressionKind::kMapping);
    expect("{");
    while (!at("}")) {
      if (!made->operands.empty()) {
        expect(",");
        if (at("}")) break;
      }
      made->operands.push_back(condition_expression());
      expect(":");
      made->operands.push_back(condition_expression());
    }
    expect("}");
    return made;
  }
  // An expression, or several with commas between them as a tuple.
  const Expression* tuple_or_expression(bool takes_condition = true) {
    const Expression* const first = condition_expression(takes_condition);
    if (!at(",")) return first;
    Expression* const made = expression(ExpressionKind::kTuple);
    made->operands.push_back(first);
    while (skip(",")) {
      if (token_.kind == TokenKind::kBlockEnd || token_.kind == TokenKind::kVariableEnd) break;
      made->operands.push_back(condition_expression(takes_condition));
    }
    return made;
  }

  // Targets.
  Target name_target(bool takes_attribute) {
    count_node();
    if (token_.kind != TokenKind::kName) refuse_token("a name to assign to");
    const std::string_view name = token_.text;
    for (const std::string_view word : {"true", "false", "none", "True", "False", "None"}) {
      if (name == word) refuse("'" + std::string(name) + "' cannot be assigned to");
    }
    Target target;
    target.text = text_of(name);
    target.name = name_id(name);
    advance();
    if (takes_attribute && skip(".")) {
      target.kind = Target::Kind::kAttribute;
      target.attribute = text_of(take_name("a name after '.'"));
      note_use(target.name);
    } else {
      note_assignment(target.name);
    }
    return target;
  }
  // One name, or several. `ends`: what follows it.
  Target assignment_target(bool takes_attribute) {
    const Level level(*this);
    Target first = single_target(takes_attribute);
    if (!at(",")) return first;
    Target tuple;
    tuple.kind = Target::Kind::kTuple;
    tuple.items.push_back(std::move(first));
    while (skip(",")) {
      if (at("=") || at(")") || at_name("in") || token_.kind == TokenKind::kBlockEnd) break;
      tuple.items.push_back(single_target(takes_attribute));
    }
    return tuple;
  }
  Target single_target(bool takes_attribute) {
    if (!skip("(")) return name_target(takes_attribute);
    Target inner = assignment_target(takes_attribute);
    expect(")");
    return inner;
  }

  // Statements.
  static bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, name) != names.end();
  }
  // Parses until a tag of one of the names, which is the next token; without names until the end.
  Block block(std::initializer_list<std::string_view> ends) {
    const Level level(*this);
    Block body;
    while (true) {
      switch (token_.kind) {
        case TokenKind::kData: {
          Statement* const data = statement(StatementKind::kData);
          data->data = text_of(token_.text);
          body.push_back(data);
          advance();
          break;
        }
        case TokenKind::kVariableBegin: {
          advance();
          Statement* const output = statement(StatementKind::kOutput);
          output->value = tuple_or_expression();
          if (token_.kind != TokenKind::kVariableEnd) refuse_token("'}}'");
          advance();
          body.push_back(output);
          break;
        }
        case TokenKind::kBlockBegin: {
          advance();
          if (token_.kind != TokenKind::kName) refuse_token("a statement");
          if (is_one_of(token_.text, ends)) return body;
          body.push_back(tag());
          break;
        }
        default:
          if (ends.size() == 0) return body;
          refuse("the template ends before '" + std::string(*(ends.end() - 1)) + "'");
      }
    }
  }
  // A body and the tag that ends it.
  Block body_until(std::string_view end, bool is_frame = true) {
    frames_ += is_frame ? 1 : 0;
    Block body = block({end});
    frames_ -= is_frame ? 1 : 0;
    advance();
    expect_block_end();
    return body;
  }

  const Statement* tag() {
    const std::string_view name = token_.text;
    if (name == "if") return if_tag();
    if (name == "for") return for_tag();
    if (name == "set") return set_tag();
    if (name == "macro") return macro_tag();
    if (name == "call") return call_tag();
    if (name == "filter") return filter_tag();
    if (name == "with") return with_tag();
    if (name == "generation") {
      Statement* const made = statement(StatementKind::kGeneration);
      advance();
      expect_block_end();
      made->body = body_in_macro([&] { return body_until("endgeneration"); });
      return made;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) refuse("'" + std::string(name) + "' stands outside of a loop");
      Statement* const made =
          statement(name == "break" ? StatementKind::kBreak : StatementKind::kContinue);
      advance();
      expect_block_end();
      return made;
    }
    constexpr std::string_view kRefused[] = {"include", "import",     "from",  "extends", "block",
                                             "do",      "autoescape", "trans", "debug"};
    const bool is_known = std::ranges::find(kRefused, name) != std::end(kRefused);
    refuse("statement '" + std::string(name.substr(0, 40)) +
           (is_known ? "' is not supported" : "' is unknown or in the wrong place"));
  }

  // The body of another function: break and continue do not leave it.
  template <typename Parse>
  Block body_in_macro(Parse parse) {
    const int loops = std::exchange(loops_, 0);
    Block body = parse();
    loops_ = loops;
    return body;
  }

  const Statement* if_tag() {
    Statement* const made = statement(StatementKind::kIf);
    advance();
    while (true) {
      Branch branch;
      branch.condition = tuple_or_expression(false);
      expect_block_end();
      ++conditions_;
      branch.body = block({"elif", "else", "endif"});
      --conditions_;
      made->branches.push_back(std::move(branch));
      count_node();
      if (skip_name("elif")) continue;
      if (skip_name("else")) {
        expect_block_end();
        ++conditions_;
        made->otherwise = body_until("endif", false);
        --conditions_;
        return made;
      }
      advance();
      expect_block_end();
      return made;
    }
  }

  const Statement* for_tag() {
    Statement* const made = statement(StatementKind::kFor);
    advance();
    made->targets.push_back(assignment_target(false));
    if (assigns(made->targets[0], syntax_.known.loop)) {
      refuse("'loop' cannot be the name of an item");
    }
    expect_name("in");
    made->value = tuple_or_expression(false);
    if (skip_name("if")) made->filter = condition_expression();
    if (at_name("recursive")) refuse("a recursive loop is not supported");
    expect_block_end();
    ++loops_;
    ++frames_;
    made->body = block({"endfor", "else"});
    --frames_;
    --loops_;
    if (skip_name("else")) {
      expect_block_end();
      made->otherwise = body_until("endfor");
    } else {
      advance();
      expect_block_end();
    }
    return made;
  }
  static bool assigns(const Target& target, NameId name) {
    if (target.kind == Target::Kind::kName) return target.name == name;
    return std::ranges::any_of(target.items,
                               [&](const Target& item) { return assigns(item, name); });
  }

  const Statement* set_tag() {
    Statement* const made = statement(StatementKind::kSet);
    advance();
    made->targets.push_back(assignment_target(true));
    if (skip("=")) {
      made->value = tuple_or_expression();
      note_targets(made->targets[0]);
      expect_block_end();
      return made;
    }
    made->kind = StatementKind::kSetBlock;
    note_targets(made->targets[0]);
    if (made->targets[0].kind == Target::Kind::kTuple) refuse_token("'='");
    while (skip("|")) add_filter(made->steps);
    expect_block_end();
    made->body = body_until("endset");
    return made;
  }

  std::vector<Parameter> parameters() {
    std::vector<Parameter> found;
    ++frames_;
    expect("(");
    while (!at(")")) {
      if (!found.empty()) expect(",");
      const Target target = name_target(false);
      Parameter parameter;
      parameter.name = target.name;
      parameter.text = target.text;
      if (skip("=")) {
        parameter.value = condition_expression();
      } else if (!found.empty() && found.back().value != nullptr) {
        refuse("a parameter without default follows one with a default");
      }
      found.push_back(parameter);
    }
    expect(")");
    --frames_;
    return found;
  }
  void macro_body(MacroSyntax& macro, std::string_view end) {
    const KnownNames& known = syntax_.known;
    macros_.push_back({{known.caller}, {known.varargs}, {known.kwargs}});
    macro.body = body_in_macro([&] { return body_until(end); });
    const std::vector<MacroUse> uses = std::move(macros_.back());
    macros_.pop_back();
    macro.has_caller_parameter = std::ranges::any_of(
        macro.parameters, [&](const Parameter& p) { return p.name == known.caller; });
    macro.uses_caller = uses[0].used || macro.has_caller_parameter;
    macro.uses_varargs = uses[1].used;
    macro.uses_kwargs = uses[2].used;
  }
  const Statement* macro_tag() {
    Statement* const made = statement(StatementKind::kMacro);
    advance();
    made->targets.push_back(name_target(false));
    note_targets(made->targets[0]);
    made->macro = std::make_unique<MacroSyntax>();
    made->macro->name = made->targets[0].text;
    made->macro->parameters = parameters();
    expect_block_end();
    macro_body(*made->macro, "endmacro");
    return made;
  }
  const Statement* call_tag() {
    Statement* const made = statement(StatementKind::kCall);
    advance();
    made->macro = std::make_unique<MacroSyntax>();
    if (at("(")) made->macro->parameters = parameters();
    const Expression* const call = unary(true);
    if (call->kind != ExpressionKind::kPostfix || call->steps.back().kind != StepKind::kCall) {
      refuse("expected a call of a macro");
    }
    made->value = call;
    expect_block_end();
    macro_body(*made->macro, "endcall");
    return made;
  }
  const Statement* filter_tag() {
    Statement* const made = statement(StatementKind::kFilter);
    advance();
    add_filter(made->steps);
    while (skip("|")) add_filter(made->steps);
    expect_block_end();
    made->body = body_until("endfilter");
    return made;
  }
  const Statement* with_tag() {
    Statement* const made = statement(StatementKind::kWith);
    advance();
    while (token_.kind != TokenKind::kBlockEnd) {
      if (!made->targets.empty()) expect(",");
      made->targets.push_back(assignment_target_of_with());
      expect("=");
      made->values.push_back(condition_expression());
    }
    expect_block_end();
    made->body = body_until("endwith");
    return made;
  }
  // A comma begins the next assignment.
  Target assignment_target_of_with() { return single_target(false); }

  Lexer lexer_;
  const TemplateLimits& limits_;
  Syntax syntax_;
  Token token_;
  Token ahead_;
  bool has_ahead_ = false;
  int nesting_ = 0;
  std::size_t nodes_ = 0;
  int loops_ = 0;                    // that a break would leave
  int frames_ = 0;                   // blocks with a scope of their own
  int conditions_ = 0;               // if
  std::unordered_set<NameId> read_;  // outside of frames
  std::vector<std::vector<MacroUse>> macros_;
};

}  // namespace

Syntax parse_template(std::string_view source, const TemplateLimits& limits) {
  if (source.size() > limits.source_bytes) {
    throw TemplateError(
        TemplateError::Kind::kBound, 0,
        "source_bytes: at most " + std::to_string(limits.source_bytes) + " are allowed",
        "source_bytes");
  }
  return Parser(source, limits).parse();
}

}  // namespace lintel::jinja

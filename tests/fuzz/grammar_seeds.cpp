// SPDX-License-Identifier: Apache-2.0
// Small schemas and grammars.
#include <string>
#include <vector>

#include "tests/fuzz/mutations.h"

namespace lintel::fuzz {

std::vector<std::string> schema_seeds() {
  return {
      R"({"anyOf":[{"type":"number","exclusiveMinimum":-1.5e1,"maximum":0.25},{"type":"integer",)"
      R"("multipleOf":6,"minimum":0},{"multipleOf":0.01},{"type":"string","pattern":)"
      R"("^(?!ab$|c)(?=.*b)[a-c]*(?=b|a$)","minLength":2,"maxLength":50},{"format":"uri",)"
      R"("maxLength":30},{"enum":[1,2.50,1e3,-0],"minimum":1,"exclusiveMinimum":true}]})",
      R"({"type":"object","properties":{"a":{"type":"string","pattern":"^[a-c]+(x|\\d{2,3})?$"},)"
      R"("b":{"type":"integer","minimum":-3,"exclusiveMaximum":40},"c":{"$ref":"#/$defs/c"}},)"
      R"("required":["a"],"additionalProperties":false,"$defs":{"c":{"type":"array","items":)"
      R"({"$ref":"#/$defs/c"},"maxItems":3}}})",
      R"({"anyOf":[{"enum":["a",1,null,[1,{"k":"v"}]]},{"type":"string","format":"date",)"
      R"("minLength":2},{"type":["number","null"],"nullable":true}]})",
      R"({"oneOf":[{"type":"object","properties":{"k":{"const":"x"}},"required":["k"]},)"
      R"({"type":"object","properties":{"k":{"const":"y"}},"required":["k"]}],"title":"t"})",
      R"({"allOf":[{"properties":{"a":{"type":"string"}}},{"required":["a"]}],"prefixItems":)"
      R"([true,{"type":"string","minLength":1,"maxLength":9}],"items":false})",
  };
}

std::vector<std::string> gbnf_seeds() {
  return {
      "root ::= object\nvalue ::= object | [0-9]+ | \"\\\"\" [^\"\\\\]* \"\\\"\"\n"
      "object ::= \"{\" (value (\",\" value)*)? \"}\" # end\n",
      "root ::= \"a\" root \"b\" | x{2,30} | ((\"\\u00e9\"? x?)* .)+\nx ::= [^a-c\\n]\n",
  };
}

}  // namespace lintel::fuzz

// SPDX-License-Identifier: Apache-2.0
// Chat templates to fuzz: bytes, and templates that a grammar makes of choices.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lintel::fuzz {

// Returns whether the template is parsed and renders a conversation, within small limits. A refusal
// is a TemplateError or TemplateRefusal; rendered text keeps its promises. Anything else leaves as
// an exception of another type.
bool try_template(std::string_view source);

// A template that is right by the grammar, most of the time; each byte is a choice. Without choices
// the shortest. A pure function.
std::string template_of(std::string_view choices);

// Small valid templates.
std::vector<std::string> template_seeds();

}  // namespace lintel::fuzz

// SPDX-License-Identifier: Apache-2.0
// Errors of the server in words of the page.

const LABELS = {
  max_output_tokens: 'Answer limit',
  thinking_token_budget: 'Thinking limit',
  'reasoning.effort': 'Thinking',
  temperature: 'Temperature',
  seed: 'Seed',
  instructions: 'System prompt',
  tools: 'Tools',
  input: 'Message',
  model: 'Model',
};

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// The names of the members become those of their fields: names of several words anywhere, the others at the beginning.
function labelled(message) {
  let out = message;
  for (const [name, label] of Object.entries(LABELS)) {
    const quoted = name.replace('.', '\\.');
    out = out.replace(new RegExp(/[._]/.test(name) ? `\\b${quoted}\\b` : `^${quoted}\\b`, 'g'), label);
  }
  return out;
}

// error: an RpcError. model: the one that was asked.
export function errorText({ message, reason }, model) {
  const text = labelled(message);
  switch (reason) {
    case 'context_length_exceeded':
      return `This conversation is longer than the model can read: ${text}. Begin a new one, or continue from an earlier answer.`;
    case 'rate_limit_exceeded':
      return `The server has no room for it now: ${text}`;
    case 'no_chat_template':
      return `${model} has no chat template: it continues texts (tab Text), and holds no conversations.`;
    case 'model_not_found':
      return `The server has no model ${model} any more: choose another one.`;
    default:
      return capital(text);
  }
}

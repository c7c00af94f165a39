// SPDX-License-Identifier: Apache-2.0
// Answers of a model, made for a page of tests.

// The page's next response has these parts, without the server: `content`, `reasoning`, `calls` of {call_id, name,
// arguments}; `finish`, its status; `tokens`, an event each. Its request is `asked` in the page.
export function answerNext(page, { content = '', reasoning = '', calls = [], finish = 'completed', tokens } = {}) {
  const usage = {
    input_tokens: 9,
    output_tokens: 5,
    input_tokens_details: { cached_tokens: 4 },
    output_tokens_details: { reasoning_tokens: 3 },
  };
  const events = [{ type: 'response.created', response: { id: 'resp_made' } }];
  if (reasoning) events.push({ type: 'response.reasoning.delta', delta: reasoning });
  if (content) events.push({ type: 'response.output_text.delta', delta: content, logprobs: tokens });
  for (const call of calls) {
    const item = { type: 'function_call', ...call };
    events.push({ type: 'response.output_item.added', item });
    events.push({ type: 'response.function_call_arguments.delta', delta: call.arguments });
  }
  events.push({ type: `response.${finish}`, response: { status: finish, usage } });
  const body = [...events.map((event) => JSON.stringify(event)), '[DONE]'].map((data) => `data: ${data}\n\n`).join('');
  return page.evaluate(`(() => {
    const send = globalThis.fetch;
    globalThis.fetch = (url, options) => {
      if (url !== '/v1/responses') return send(url, options);
      globalThis.fetch = send;
      globalThis.asked = JSON.parse(options.body);
      return Promise.resolve(new Response(${JSON.stringify(body)}));
    };
  })()`);
}

// Every kind of block and of text that Markdown has.
export const MARKDOWN = `# A title

Text that is **strong**, *slanted*, ~~gone~~, \`code\`, a [link](https://example.org/a) and
a second line.

> A quotation

\`\`\`js
let a = 1 < 2;
\`\`\`

| name | number |
| --- | ---: |
| one | 1 |

#### A smaller title

- a list
  1. in a list
- [x] done

![A picture](https://example.org/picture.png)

---

The end.`;

// SPDX-License-Identifier: Apache-2.0
// What of the page is no drawing: envelopes, requests, masks, fitting, the clock of a race, text.
import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { fromBase64, toBase64 } from '../../web/js/wire/base64.js';
import { answerOf, argumentsText, coloured, emptyAnswer, itemsOf, takeEvent } from '../../web/js/chat/answer.js';
import { ConversationStore, earlierConversations, titleOf } from '../../web/js/chat/store.js';
import { ChatTree } from '../../web/js/chat/tree.js';
import { errorText } from '../../web/js/chat/words.js';
import { EventReader, create } from '../../web/js/wire/responses.js';
import { ticks } from '../../web/js/race/chart.js';
import { Completion, completionRequest, entropy, firstKnown, segmentRequest } from '../../web/js/image/completion.js';
import { END, EnvelopeReader, wrap } from '../../web/js/wire/envelope.js';
import { requestFields } from '../../web/js/fields.js';
import { fitDigit } from '../../web/js/image/fit.js';
import { bytes, digits, duration, percent, seconds } from '../../web/js/format.js';
import { LapClock } from '../../web/js/race/laps.js';
import { MASKS, knownRuns } from '../../web/js/image/masks.js';
import { attentionName, namedModels, roomText, stateBytes, stateName } from '../../web/js/wire/models.js';
import { isReached, look, noteReach, onReach, whenReached } from '../../web/js/wire/reach.js';
import { stream, unary } from '../../web/js/wire/rpc.js';
import { inputName, withFields } from '../../web/js/text/fields.js';
import { bitsPerToken, branchName, characters, common, surprise, take, tokenName } from '../../web/js/text/story.js';

const close = (a, b, within = 1e-9) => assert.ok(Math.abs(a - b) <= within, `${a} is not ${b}`);

describe('envelopes', () => {
  const text = (message) => new TextDecoder().decode(message);
  const envelopes = ['', 'a', 'x'.repeat(300)].map((t, i) => {
    const whole = wrap(new TextEncoder().encode(t));
    whole[0] = i === 2 ? END : 0;
    return whole;
  });

  it('come out as they went in, for any pieces', () => {
    const all = Uint8Array.from(envelopes.flatMap((e) => [...e]));
    for (let size = 1; size <= all.length; size += 7) {
      const reader = new EnvelopeReader();
      const out = [];
      for (let at = 0; at < all.length; at += size) out.push(...reader.push(all.subarray(at, at + size)));
      assert.deepEqual(
        out.map((e) => e.flags),
        [0, 0, END],
      );
      assert.deepEqual(
        out.map((e) => text(e.message).length),
        [0, 1, 300],
      );
      assert.equal(reader.rest, 0);
    }
  });

  it('that are not whole are kept', () => {
    const reader = new EnvelopeReader();
    assert.deepEqual(reader.push(envelopes[1].subarray(0, 5)), []);
    assert.equal(reader.rest, 5);
    assert.equal(text(reader.push(envelopes[1].subarray(5))[0].message), 'a');
  });

  it('have the length in four bytes, the highest first', () => {
    assert.deepEqual([...wrap(new Uint8Array(258)).subarray(0, 5)], [0, 0, 0, 1, 2]);
  });
});

describe('a server that is away', () => {
  const original = globalThis.fetch;
  const changes = [];
  let end;
  beforeEach(() => {
    noteReach(true);
    changes.length = 0;
    end = onReach((reached) => changes.push(reached));
  });
  afterEach(() => {
    end();
    globalThis.fetch = original;
  });
  // Replaces fetch from now on.
  const fetches = (act) => (globalThis.fetch = async () => act());
  const fails = () => {
    throw new TypeError('Failed to fetch');
  };
  const breaks = () =>
    new Response(new ReadableStream({ pull: (stream) => stream.error(new TypeError('network error')) }));

  it('is noticed by a call that fails, which says so in plain words', async () => {
    fetches(fails);
    await assert.rejects(unary('ModelService/List'), { code: 'unavailable', message: 'the server does not answer' });
    assert.equal(isReached(), false);
    fetches(() => new Response('{"models":[]}'));
    assert.deepEqual(await unary('ModelService/List'), { models: [] });
    assert.deepEqual(changes, [false, true]);
  });

  it('is noticed by a look, also through a proxy', async () => {
    for (const away of [fails, () => new Response('<html>', { status: 502 })]) {
      fetches(away);
      await look();
      assert.equal(isReached(), false);
      fetches(() => new Response('', { status: 401 }));
      await look();
      assert.equal(isReached(), true);
    }
  });

  it('lost during a response has one error text in every browser', async () => {
    const lost = { code: 'unavailable', message: 'the connection to the server was lost' };
    const read = async () => {
      for await (const _ of stream('GenerationService/Generate', {}));
    };
    for (const act of [breaks, () => new Response('')]) {
      fetches(act);
      await assert.rejects(read(), lost);
    }
    fetches(breaks);
    await assert.rejects(unary('ModelService/List'), lost);
  });

  it('differs from an invalid response', async () => {
    fetches(() => new Response('<html>'));
    await assert.rejects(unary('ModelService/List'), { code: 'internal', message: 'the answer is not JSON' });
    fetches(() => new Response('<html>', { status: 502 }));
    await assert.rejects(unary('ModelService/List'), {
      code: 'unavailable',
      message: 'the server does not answer (HTTP 502)',
    });
    fetches(() => new Response('{"code":"unavailable","message":"model a is being loaded"}', { status: 503 }));
    await assert.rejects(unary('ModelService/List'), { message: 'model a is being loaded' });
  });

  it('is waited for by calls that need it', async () => {
    fetches(fails);
    const reports = [];
    let tries = 0;
    const models = whenReached(
      async () => {
        ++tries;
        return (await unary('ModelService/List')).models;
      },
      (text) => reports.push(text),
    );
    while (reports.length === 0 || isReached()) await new Promise((resolve) => setImmediate(resolve));
    await new Promise((resolve) => setImmediate(resolve));
    assert.equal(tries, 1);
    fetches(() => new Response('{"models":["a"]}'));
    noteReach(true);
    assert.deepEqual(await models, ['a']);
    assert.deepEqual([tries, reports], [2, ['the server does not answer', '']]);
  });
});

it('base64 keeps every byte', () => {
  const all = Uint8Array.from({ length: 256 }, (_, i) => i);
  assert.deepEqual(fromBase64(toBase64(all)), all);
});

describe('an occluded image', () => {
  const image = Uint8Array.from({ length: 12 }, (_, i) => 10 * i);
  const hide = (...positions) => Uint8Array.from({ length: 12 }, (_, i) => Number(positions.includes(i)));
  const pixels = (prompt) => [...fromBase64(prompt.pixels)];
  const given = (request) => request.given.map((g) => [g.position, pixels(g.values)]);

  it('has the known tokens before the first hidden one as its prompt, and the others as given', () => {
    const request = completionRequest(image, hide(3, 6, 7));
    assert.equal(request.maxNewTokens, 5);
    assert.deepEqual(pixels(request.prompt), [0, 10, 20]);
    assert.deepEqual(given(request), [[4, [40, 50]]]);
  });

  it('with a hidden first token begins with the start token', () => {
    const hidden = hide(0, 1);
    assert.deepEqual([...firstKnown(image, hidden, 7).subarray(0, 2)], [7, 10]);
    assert.deepEqual(firstKnown(image, hide(1), 7), image);
    const request = completionRequest(firstKnown(image, hidden, 7), hidden);
    assert.deepEqual(pixels(request.prompt), [7]);
    assert.equal(request.maxNewTokens, 1);
  });

  it('continues segment by segment', () => {
    const hidden = hide(3, 6);
    const first = segmentRequest(image, hidden, 1, 5);
    assert.deepEqual(
      [pixels(first.prompt), first.maxNewTokens, given(first)],
      [
        [0],
        4,
        [
          [1, [10, 20]],
          [4, [40]],
        ],
      ],
    );
    const second = segmentRequest(image, hidden, 5, 9);
    assert.deepEqual(
      [second.prompt, second.maxNewTokens, given(second)],
      [
        undefined,
        4,
        [
          [5, [50]],
          [7, [70, 80]],
        ],
      ],
    );
  });

  it('is put together from messages', () => {
    const hidden = hide(3, 4);
    const completion = new Completion(image, hidden, 2, 4);
    const chunk = (sample, position, tokens, source = 'VALUE_SOURCE_SAMPLED') => ({
      sample,
      firstPosition: String(position),
      source,
      tokens,
      log2Probs: tokens.map(() => -2),
      top: tokens.map(() => ({ tokens: [0, 1], log2Probs: [-1, '-Infinity'] })),
    });
    assert.deepEqual(completion.take({ chunks: [chunk(0, 3, [200, 210]), chunk(1, 3, [100])] }), [
      [0, 3],
      [0, 4],
      [1, 3],
    ]);
    completion.take({
      chunks: [chunk(1, 4, [40], 'VALUE_SOURCE_GIVEN')],
      finished: [{ sample: 1, seed: '5' }],
    });
    assert.deepEqual([...completion.samples[0].pixels.subarray(2, 6)], [20, 200, 210, 50]);
    assert.deepEqual(
      completion.samples.map((s) => [s.drawn, s.bits]),
      [
        [2, 4],
        [1, 2],
      ],
    );
    assert.equal(completion.samples[1].finish.seed, '5');
    close(completion.spreads()[3], 50);
    assert.ok(Number.isNaN(completion.spreads()[2]));
    // One half for the best, the other spread over the two tokens that are not listed.
    close(completion.entropies()[3], 1.5);
    assert.ok(Number.isNaN(completion.entropies()[2]));
  });

  it('has the entropy of its distributions, in bits', () => {
    close(entropy([-1, -1], 0), 1);
    close(entropy([0], 255), 0);
    close(entropy([-3, -3, -3, -3], 4), 3);
  });
});

describe('masks', () => {
  it('hide what their names say', () => {
    const share = (name) => MASKS[name][1](28, 28).reduce((a, b) => a + b) / 784;
    for (const half of ['bottom', 'top', 'left', 'right']) assert.equal(share(half), 0.5);
    assert.deepEqual([share('all'), share('none'), share('box')], [1, 0, 0.25]);
    close(share('random'), 0.7, 0.1);
    assert.equal(MASKS.bottom[1](28, 28)[14 * 28], 1);
    assert.equal(MASKS.left[1](28, 28)[13], 1);
  });

  it('are sent as runs of known tokens', () => {
    assert.deepEqual(knownRuns([0, 0, 1, 0, 1, 1, 0], 0, 7), [
      [0, 2],
      [3, 4],
      [6, 7],
    ]);
    assert.deepEqual(knownRuns([0, 0, 1, 0], 1, 2), [[1, 2]]);
  });
});

describe('a picture', () => {
  const to = { width: 28, height: 28 };
  const picture = (width, height, level) => {
    const rgba = new Uint8ClampedArray(4 * width * height);
    for (let i = 0; i < width * height; ++i) {
      const v = level(i % width, Math.floor(i / width));
      rgba.set([v, v, v, 255], 4 * i);
    }
    return rgba;
  };
  // A dark bar on white paper, off the middle.
  const bar = (x, y) => (x >= 100 && x < 140 && y >= 20 && y < 180 ? 10 : 245);

  it('of dark ink on paper becomes light on dark, in a box of 20 rows in the middle', () => {
    const out = fitDigit(picture(400, 300, bar), 400, 300, to);
    const inked = [...out.keys()].filter((i) => out[i] > 20);
    const rows = inked.map((i) => Math.floor(i / 28));
    const columns = inked.map((i) => i % 28);
    assert.deepEqual([Math.min(...rows), Math.max(...rows)], [4, 23]);
    assert.deepEqual([Math.min(...columns), Math.max(...columns)], [11, 16]);
    assert.equal(out[0], 0);
    assert.ok(out[14 * 28 + 14] > 230);
  });

  it('of light ink on a dark ground is not inverted', () => {
    const light = fitDigit(
      picture(400, 300, (x, y) => 255 - bar(x, y)),
      400,
      300,
      to,
    );
    assert.deepEqual(light, fitDigit(picture(400, 300, bar), 400, 300, to));
  });

  it('of the very size is taken as it is', () => {
    const out = fitDigit(
      picture(28, 28, (x, y) => (x === 3 && y === 4 ? 200 : 0)),
      28,
      28,
      to,
    );
    assert.equal(out[4 * 28 + 3], 200);
    assert.equal(
      out.reduce((a, b) => a + b),
      200,
    );
  });

  it('with nothing on it is empty', () => {
    assert.deepEqual(
      fitDigit(
        picture(50, 40, () => 255),
        50,
        40,
        to,
      ),
      new Uint8Array(784),
    );
  });
});

describe('the clock of a race', () => {
  it('shows the time of a token by position, of the fastest of several laps at each', () => {
    const clock = new LapClock();
    clock.took(1, 57, 100);
    clock.took(57, 85, 300);
    assert.deepEqual(clock.curve(), [
      [29, 100],
      [71, 300],
    ]);
    clock.took(1, 57, 130);
    clock.took(57, 85, 200);
    assert.deepEqual(clock.curve(), [
      [29, 100],
      [71, 200],
    ]);
    close(clock.overall(), (56 * 100 + 28 * 200) / 84);
  });

  it('is empty before the first token', () => {
    const clock = new LapClock();
    assert.deepEqual(clock.curve(), []);
    assert.ok(Number.isNaN(clock.overall()));
  });
});

describe('the size of a state', () => {
  it('is constant, or lies between the points that the server reports', () => {
    assert.equal(stateBytes({ stateBytes: '700', constantState: true }, 55), 700);
    const growing = {
      stateBytes: '300',
      stateGrowth: [{}, { position: '10', bytes: '100' }, { position: '20', bytes: '300' }],
    };
    assert.deepEqual(
      [0, 5, 10, 15, 20, 99].map((at) => stateBytes(growing, at)),
      [0, 50, 100, 200, 300, 300],
    );
    assert.equal(stateBytes({ stateBytes: '783', maxLength: '783' }, 100), 100);
    assert.equal(stateBytes({ stateBytesPerValue: '24' }, 100), 2400);
  });

  it('is of a kind that has a name', () => {
    const model = (attention, config) => ({ attention, configJson: JSON.stringify({ attention: config }) });
    assert.equal(attentionName(model('linear', { feature_map: 'elu_plus_one' })), 'linear');
    assert.equal(attentionName(model('linear', { feature_map: 'favor' })), 'linear, favor');
    assert.equal(attentionName(model('lsh', { rounds: 1 })), 'lsh, 1 round');
    assert.equal(attentionName({ name: 'not loaded' }), '');
  });
});

describe('text', () => {
  const tokens = (text, log2 = -1) =>
    [...Buffer.from(text)].map((token) => ({ token, bytes: [token], log2, source: 'VALUE_SOURCE_SAMPLED' }));

  it('is counted in characters, however many bytes they have', () => {
    const out = characters(tokens('aé€😀b'));
    assert.deepEqual(
      out.map((c) => c.text),
      ['a', 'é', '€', '😀', 'b'],
    );
    assert.deepEqual(
      out.map((c) => c.end - c.start),
      [1, 2, 3, 4, 1],
    );
    assert.deepEqual(
      out.map((c) => c.log2),
      [-1, -2, -3, -4, -1],
    );
  });

  it('that makes no character is a mark for each byte', () => {
    const out = characters([0xc3, 0x41, 0xe2, 0x82].map((token) => ({ token, bytes: [token], log2: -1 })));
    assert.deepEqual(
      out.map((c) => c.text),
      ['\ufffd', 'A', '\ufffd', '\ufffd'],
    );
  });

  it('has the fewest tokens that make whole characters in one piece', () => {
    const pieces = [[...Buffer.from('over the ')], [0xe2, 0x82], [0xac, 0x21], [], [0xf0], [0x41, 0x42]];
    const out = characters(pieces.map((bytes, token) => ({ token, bytes, log2: -1 })));
    assert.deepEqual(
      out.map((c) => [c.start, c.end, c.text]),
      [[0, 1, 'over the '], [1, 3, '€!'], [3, 4, ''], [4, 5, '\ufffd'], [5, 6, 'AB']],
    );
  });

  it('has tokens with names', () => {
    const name = (bytes) => tokenName({ token: 7, bytes: Uint8Array.from(bytes) });
    assert.equal(name(Buffer.from(' the\n')), '␣the↵');
    assert.equal(name([0xe2, 0x82]), '0xe20x82');
    assert.equal(name([0x00]), '0x00');
    assert.equal(name([]), '#7');
  });

  it('is put together from messages, wherever a branch began', () => {
    const text = tokens('ab');
    take(text, {
      chunks: [
        {
          firstPosition: '2',
          source: 'VALUE_SOURCE_SAMPLED',
          tokens: [99],
          tokenBytes: ['Yw=='],
          log2Probs: [-3],
          top: [{ tokens: [99, 100], tokenBytes: ['Yw==', 'ZA=='], log2Probs: [-3, -4] }],
        },
      ],
    });
    assert.equal(
      characters(text)
        .map((c) => c.text)
        .join(''),
      'abc',
    );
    assert.deepEqual(text[2].top, [
      { token: 99, bytes: Uint8Array.of(99), log2: -3 },
      { token: 100, bytes: Uint8Array.of(100), log2: -4 },
    ]);
    close(bitsPerToken(text), 5 / 3);
  });

  it('is compared token by token', () => {
    assert.equal(common(tokens('abcd'), tokens('abxd')), 2);
    assert.equal(common(tokens(''), tokens('a')), 0);
    assert.ok(Number.isNaN(bitsPerToken([])));
  });

  it('is more surprising the less probable it is', () => {
    assert.deepEqual([surprise(0), surprise(-5), surprise(-10), surprise(-90), surprise(NaN)], [-0, 0.5, 1, 1, 0]);
  });

  it('has branches with names', () => {
    assert.deepEqual([0, 25, 26, 52].map(branchName), ['A', 'Z', 'AA', 'BA']);
  });
});

describe('the fields of a request', () => {
  const fields = [
    { message: 'sampling', name: 'temperature', type: 'number' },
    { message: 'stop', name: 'minTokens', type: 'count' },
    { message: 'stop', name: 'ignoreEos', type: 'flag' },
    { message: '', name: 'adapter', type: 'text' },
    { message: '', name: 'window', type: 'position' },
  ];
  const inputs = (values = {}) =>
    Object.fromEntries(fields.map((field) => [inputName(field), { value: '', checked: false, ...values[field.name] }]));

  it('are each in their message, beside what the request has there', () => {
    const request = { sampling: { seed: '7' }, stop: { tokenIds: [3] }, maxNewTokens: 5 };
    const values = {
      temperature: { value: '0.5' },
      minTokens: { value: '0' },
      ignoreEos: { checked: true, value: 'on' },
      adapter: { value: '12' },
      window: { value: '9007199254740993' },
    };
    assert.deepEqual(withFields(request, fields, inputs(values)), {
      sampling: { seed: '7', temperature: 0.5 },
      stop: { tokenIds: [3], minTokens: 0, ignoreEos: true },
      maxNewTokens: 5,
      adapter: '12',
      window: '9007199254740993',
    });
    assert.deepEqual(request, { sampling: { seed: '7' }, stop: { tokenIds: [3] }, maxNewTokens: 5 });
  });

  it('that are left empty are not sent, and make no message', () => {
    assert.deepEqual(withFields({ maxNewTokens: 5 }, fields, inputs()), { maxNewTokens: 5 });
  });

  it('of the page have a name of their own, a message and a type', () => {
    assert.ok(requestFields.length > 0);
    assert.equal(new Set(requestFields.map(inputName)).size, requestFields.length);
    for (const { message, name, type } of requestFields) {
      assert.ok(['', 'sampling', 'stop'].includes(message), name);
      assert.ok(['count', 'position', 'number', 'flag', 'text'].includes(type), name);
    }
    assert.ok(requestFields.some(({ message, name }) => message === 'sampling' && name === 'topK'));
  });
});

describe('numbers', () => {
  it('are written for people', () => {
    assert.deepEqual([0, 999, 68600, 3410000].map(bytes), ['0 B', '999 B', '68.6 KB', '3.41 MB']);
    assert.deepEqual([0, 0.1234, 1.5, 12.34, 1234].map(digits), ['0', '0.123', '1.5', '12.3', '1,234']);
    assert.deepEqual([-1, -6.65, -20].map(percent), ['50 %', '1.0 %', '< 0.01 %']);
    assert.deepEqual([1e-4, 0.25, 90, 600, 7300].map(seconds), ['100 µs', '250 ms', '90 s', '10 min', '2 h']);
    assert.deepEqual([duration('1.5s'), duration(undefined)], [1.5, 0]);
  });

  it('of an axis are round, and reach the highest', () => {
    assert.deepEqual(ticks(380, 4), [0, 100, 200, 300, 400]);
    assert.deepEqual(ticks(3.4e6, 4), [0, 1e6, 2e6, 3e6, 4e6]);
    assert.deepEqual(ticks(0, 4), [0, 1]);
  });
});

describe('the events of a response', () => {
  const events = ['event: a\ndata: {"a":"ä\\n"}', 'event: b.c\ndata: {"b":2}', 'data: [DONE]'];
  const whole = events.map((event) => `${event}\n\n`).join(': waiting\n\n');

  it('come out as they went in, for any pieces', () => {
    for (let size = 1; size <= whole.length; ++size) {
      const reader = new EventReader();
      const out = [];
      for (let at = 0; at < whole.length; at += size) out.push(...reader.push(whole.slice(at, at + size)));
      assert.deepEqual(out, ['{"a":"ä\\n"}', '{"b":2}', '[DONE]']);
    }
  });

  const original = globalThis.fetch;
  afterEach(() => (globalThis.fetch = original));
  const answers = (body, status = 200) => (globalThis.fetch = async () => new Response(body, { status }));
  const all = async () => {
    const out = [];
    for await (const some of create({})) out.push(...some);
    return out;
  };

  it('are read to their end', async () => {
    answers(whole);
    assert.deepEqual(await all(), [{ a: 'ä\n' }, { b: 2 }]);
  });

  it('that break off, have an error, or are refused, fail with its words', async () => {
    answers('data: {"a":1}\n\ndata: {"b"');
    await assert.rejects(all(), { code: 'unavailable' });
    answers('event: error\ndata: {"error":{"message":"no room"}}\n\n');
    await assert.rejects(all(), { message: 'no room' });
    answers('{"error":{"message":"temperature: is not a number","code":null}}', 400);
    await assert.rejects(all(), { message: 'temperature: is not a number' });
  });
});

describe('an answer of a chat', () => {
  const token = (text, probability) => ({
    bytes: [...new TextEncoder().encode(text)],
    logprob: Math.log(probability),
    top_logprobs: [],
  });
  const response = {
    status: 'completed',
    error: null,
    usage: { input_tokens: 3 },
    output: [
      { type: 'reasoning', content: [{ type: 'reasoning_text', text: 'Hmm.' }] },
      { type: 'message', content: [{ type: 'output_text', text: 'Yes', logprobs: [token('Yes', 0.5)] }] },
      { type: 'function_call', call_id: 'x', name: 'f', arguments: '{"a": 1}' },
    ],
  };

  it('is the same of the events and of the response that they make', () => {
    const answer = emptyAnswer();
    for (const event of [
      { type: 'response.created', response: { id: 'resp_1' } },
      { type: 'response.output_item.added', item: { type: 'reasoning' } },
      { type: 'response.reasoning.delta', delta: 'Hm' },
      { type: 'response.reasoning.delta', delta: 'm.' },
      { type: 'response.output_item.added', item: { type: 'message' } },
      { type: 'response.output_text.delta', delta: 'Yes', logprobs: [token('Yes', 0.5)] },
      { type: 'response.output_item.added', item: { type: 'function_call', call_id: 'x', name: 'f' } },
      { type: 'response.function_call_arguments.delta', delta: '{"a"' },
      { type: 'response.function_call_arguments.delta', delta: ': 1}' },
      { type: 'response.completed', response },
    ])
      takeEvent(answer, event);
    assert.deepEqual(answer, {
      reasoning: 'Hmm.',
      content: 'Yes',
      calls: [{ id: 'x', name: 'f', arguments: '{"a": 1}' }],
      tokens: [{ bytes: [89, 101, 115], log2: -1, top: [] }],
      usage: { input_tokens: 3 },
      finish: 'completed',
    });
    assert.deepEqual(answerOf(response), answer);
    assert.equal(answerOf({ ...response, status: 'failed', error: { message: 'no room' } }).error, 'no room');
    const stopped = answerOf({ ...response, status: 'cancelled', usage: { input_tokens: 0, output_tokens: 0 } });
    assert.equal(stopped.usage, undefined);
    assert.equal(argumentsText('{"a":1}'), '{\n  "a": 1\n}');
    assert.equal(argumentsText('{"a":'), '{"a":');
  });

  it('has the probabilities of its tokens, without the white space around them', () => {
    const tokens = [token('\n\nSo', 0.5), token(' \u00e9', 0.25), token('\n', 0.125)];
    const answer = emptyAnswer();
    takeEvent(answer, { type: 'response.output_text.delta', delta: 'So \u00e9', logprobs: tokens });
    assert.deepEqual(
      coloured(answer).map(({ text, log2 }) => [text, Math.round(log2 * 1e6) / 1e6]),
      [
        ['So', -1],
        [' \u00e9', -2],
      ],
    );
    answer.content = 'another';
    assert.deepEqual(
      coloured(answer).map(({ text, log2 }) => [text, log2]),
      [['another', NaN]],
    );
    assert.deepEqual(coloured(emptyAnswer()), []);
  });
});

describe('a conversation', () => {
  const user = (content) => [{ role: 'user', content }];
  const turn = (id, parent, content = id) => ({ id, parent, asked: user(content), answer: emptyAnswer() });

  it('has a path to every turn, and the answers in its place', () => {
    const tree = new ChatTree();
    const [a, b, c] = [tree.add(turn('a')), tree.add(turn('b', 'a')), tree.add(turn('c', 'a'))];
    const [d, other] = [tree.add(turn('d', 'b')), tree.add(turn('e'))];
    assert.equal(tree.current, 'e');
    assert.deepEqual(tree.path('d'), [a, b, d]);
    assert.deepEqual(tree.path(undefined), []);
    assert.deepEqual(tree.siblings('b'), [b, c]);
    assert.deepEqual(tree.siblings('a'), [a, other]);
    assert.deepEqual([tree.end('a'), tree.end('b')], ['c', 'd']);
    assert.deepEqual(
      tree.rows().map(({ turn, depth }) => `${turn.id} ${depth}`),
      ['a 0', 'b 1', 'd 1', 'c 1', 'e 0'],
    );
    tree.current = 'd';
    assert.deepEqual(tree.remove('b'), [d, b]);
    assert.equal(tree.current, 'a');
    assert.deepEqual(
      tree.rows().map(({ turn }) => turn.id),
      ['a', 'c', 'e'],
    );
  });

  it('is a request of its texts where the server has lost it, without calls that have no result', () => {
    const answer = { ...emptyAnswer(), reasoning: 'Hm.', content: 'Yes', calls: [{ id: 'x', name: 'f', arguments: '{}' }] };
    const first = { ...turn('a'), answer };
    const said = [
      { role: 'user', content: 'a' },
      { type: 'reasoning', summary: [], content: [{ type: 'reasoning_text', text: 'Hm.' }] },
      { role: 'assistant', content: 'Yes' },
    ];
    assert.deepEqual(itemsOf([first], user('b')), said);
    const results = [{ role: 'tool', call_id: 'x', name: 'f', content: '3' }];
    assert.deepEqual(itemsOf([first], results), [...said, { type: 'function_call', call_id: 'x', name: 'f', arguments: '{}' }]);
    assert.deepEqual(itemsOf([], user('b')), []);
  });

  it('is kept by turns, without the tokens of its answers, and does not come back once it is deleted', async () => {
    const store = new ConversationStore();
    await store.add({ id: 'one', title: 'First', created: 1, used: 1 });
    const answer = { ...emptyAnswer(), content: 'Of KINGS', tokens: [{ bytes: [1] }] };
    const kept = { ...turn('a'), conversation: 'one', created: 2, answer };
    await store.saveTurn(kept, { current: 'a' });
    await store.update('one', { title: 'Second' });
    const [{ used, ...one }] = await store.list();
    assert.deepEqual(one, { id: 'one', title: 'Second', current: 'a', created: 1 });
    assert.ok(used > 1);
    const { tokens, ...rest } = answer;
    assert.deepEqual(await store.turns('one'), [{ ...kept, answer: rest }]);
    for (const [words, found] of [
      ['kings', 1],
      ['second of', 1],
      ['first', 0],
    ]) {
      assert.equal((await store.search(words)).size, found, words);
    }
    assert.equal((await store.remove('one')).length, 1);
    await store.saveTurn(kept);
    await store.update('one', { title: 'Third' });
    assert.deepEqual([await store.list(), await store.turns('one')], [[], []]);
  });

  it('of an earlier version is one of each beginning', () => {
    const turns = [
      { id: 3, asked: user('a'), response: 'resp_a' },
      { id: 4, parent: 3, asked: user('b'), response: 'resp_b' },
      { id: 7, asked: user('c'), response: 'resp_c' },
    ];
    const [one, two] = earlierConversations(JSON.stringify({ turns, current: 4 }));
    assert.deepEqual([one.conversation.title, two.conversation.title], ['a', 'c']);
    assert.deepEqual(one.turns.map(({ response }) => response), ['resp_a', 'resp_b']);
    assert.equal(one.turns[1].parent, one.turns[0].id);
    assert.equal(one.conversation.current, one.turns[1].id);
    assert.equal(two.conversation.current, undefined);
    for (const text of [null, '', '{', '[]', '{"turns": 1}']) assert.deepEqual(earlierConversations(text), []);
  });

  it('has the first line as its title', () => {
    assert.equal(titleOf(user('  One\ntwo')), 'One');
    assert.equal(titleOf(user('x'.repeat(80))).length, 60);
  });

  it('has errors in words of the page', () => {
    assert.equal(errorText({ message: 'max_output_tokens: is 3' }, 'm'), 'Answer limit: is 3');
    assert.equal(errorText({ message: 'temperature: is -1' }, 'm'), 'Temperature: is -1');
    assert.equal(errorText({ message: 'the model has a temperature' }, 'm'), 'The model has a temperature');
    assert.match(errorText({ message: 'long', reason: 'context_length_exceeded' }, 'm'), /longer than the model can read/);
    assert.match(errorText({ message: '', reason: 'no_chat_template' }, 'm'), /^m has no chat template/);
  });
});

describe('models', () => {
  const loaded = { name: 'a', version: '1', state: 'MODEL_STATE_READY' };
  const idle = { name: 'a', version: '2', state: 'MODEL_STATE_UNAVAILABLE', loadsOnRequest: true };

  it('are those that requests may name, each once, a version that is loaded first', () => {
    assert.deepEqual(namedModels([idle, loaded]), [loaded]);
    assert.deepEqual(namedModels([loaded, idle]), [loaded]);
    assert.deepEqual(namedModels([idle]), [idle]);
    assert.deepEqual(namedModels([{ ...idle, loadsOnRequest: undefined }]), []);
  });

  it('have room for sessions in the memory of the server', () => {
    assert.equal(roomText(loaded), '');
    const growing = { roomSessions: '34', roomSessionTokens: '8192', roomTokens: '262144' };
    assert.equal(roomText(growing), '34 of 8192 tokens, or 1 of 262144');
    assert.equal(roomText({ roomSessions: '7' }), '7 of any length, or 1 of any length');
  });

  it('have a state', () => {
    const failed = { ...idle, loadFailed: true };
    const loading = { ...idle, state: 'MODEL_STATE_LOADING' };
    assert.deepEqual([loaded, idle, failed, loading].map(stateName), ['loaded', 'loads on request', 'failed', 'loading']);
  });
});

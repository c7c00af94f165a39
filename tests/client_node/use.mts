// SPDX-License-Identifier: Apache-2.0
// A program that uses the client; typescript.mjs has TypeScript check it. What is wrong is marked: TypeScript has to find it.
import { z } from 'zod';
import { Client, LintelError, type Answer, type ChatRequest, type Message, type Model, type Session } from './lintel.mjs';

const client = new Client('127.0.0.1:50051', { timeout: 1000, retry: 0 });
const City = z.object({ name: z.string(), population: z.int() });
const weather = {
  name: 'weather',
  parameters: z.object({ city: z.string() }),
  run: async ({ city }: { city: string }) => `sunny in ${city}`,
};

export async function chat(): Promise<number | undefined> {
  const messages: Message[] = [{ role: 'user', content: 'How is the weather in Bern?' }];
  const request: ChatRequest = { messages, tools: [weather], seed: 7n, temperature: 0.5, stop: ['a', 'b'], topK: 3 };
  const answer = await client.chat(request, { signal: new AbortController().signal }).answer();
  messages.push(answer.message);
  for (const call of answer.calls) messages.push(call.result(await call.run()));
  // @ts-expect-error: an answer without a schema is of no type
  const name: string = (await client.chat({ messages: 'Hello.' }).answer()).parsed;
  // @ts-expect-error: no such member
  client.chat({ messages: 'Hello.', temprature: 1 });
  // @ts-expect-error: messages are required
  client.chat({ temperature: 1 });
  // @ts-expect-error: a seed has 64 bits
  client.chat({ messages: 'Hello.', seed: 'seven' });
  for await (const { content, call } of client.chat({ messages })) {
    const piece: string = content + (call?.arguments ?? '');
    // @ts-expect-error: a text
    const count: number = content;
    console.log(piece, count);
  }
  const city: Answer<z.infer<typeof City>> = await client.chat({ messages, schema: City }).answer();
  // @ts-expect-error: not in the schema
  console.log(name, city.parsed?.mayor);
  return city.parsed?.population;
}

export async function respond(): Promise<string> {
  const first = await client.respond({ input: 'Hello.', maxTokens: 60 }, { idempotencyKey: 'hello' }).response();
  const { parsed } = await client.respond({ input: 'And?', previousResponseId: first, schema: City }).response();
  for await (const { type, data, content } of client.replayResponse(first.id, { startingAfter: 3 })) console.log(type, data.x, content);
  const history = await client.compactResponse({ model: 'qwen35', previousResponseId: first.id });
  // @ts-expect-error: the model is required
  client.compactResponse({ previousResponseId: first });
  const count: number = await client.countInputTokens({ input: [...history, { role: 'user', content: 'And?' }] });
  const items: Message[] = await client.listInputItems(first.id, { ascending: true });
  await client.deleteResponse((await client.cancelResponse(first.id)).id);
  return `${parsed?.name} ${count} ${items.length} ${first.calls.map((call) => call.output({ degrees: 20 }).output)}`;
}

export async function generate(): Promise<Uint8Array> {
  const session: Session = await client.createSession({ durability: 'DURABILITY_TOKEN', expireAfter: { seconds: 60 } });
  const request = { sessionId: session.id, prompt: [0, 1], maxNewTokens: 5, sampling: { seed: 7n }, log2Probs: true };
  const options = { onFinish: ({ reason, generatedTokens }: { reason: string; generatedTokens: number }) => console.log(reason, generatedTokens) };
  for await (const { position, token, source } of client.generate(request, options)) console.log(position + token, source === 'SAMPLED');
  for await (const { text } of client.generate({ prompt: 'The ', stop: { strings: ['.'] }, given: [{ position: 9, values: 'a' }] })) console.log(text);
  // @ts-expect-error: no such field
  client.generate({ prompt: 'The ', maxNewToken: 5 });
  const [fork] = await client.forkSession(session.id, { position: 1 });
  for await (const { token } of client.history(fork?.id ?? '')) console.log(token);
  await client.saveState(session.id, 'name');
  return client.snapshotSession(session.id);
}

export async function others(): Promise<string> {
  try {
    const model: Model = await client.model();
    const ids: number[] = await client.tokenize('text', { model: model.name });
    return await client.detokenize(ids);
  } catch (error) {
    if (!(error instanceof LintelError)) throw error;
    // @ts-expect-error: a list
    const field: string = error.violations;
    return `${field} ${error.code} ${error.retryDelay ?? 0} ${error.answers?.[0]?.content}`;
  }
}

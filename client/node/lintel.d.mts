// SPDX-License-Identifier: Apache-2.0
// Types of lintel.mjs. Messages of proto/lintel/v1 have its fields in camelCase; 64-bit numbers come as texts.
import type { Buffer } from 'node:buffer';
import type { Interceptor } from '@grpc/grpc-js';

export type Int64 = number | bigint | string;

export interface Duration {
  seconds?: Int64;
  nanos?: number;
}

/** A duration as the server sends it. */
export interface DurationMessage {
  seconds: string;
  nanos: number;
}

/** A schema of zod 4. */
export interface ZodSchema<T> {
  parse(value: unknown): T;
  safeParse(value: unknown): unknown;
}

export type JsonObject = { [name: string]: unknown };

/** Text, token ids, pixels in raster order, or a Values message. */
export type TokenValues =
  | string
  | readonly number[]
  | Uint8Array
  | { tokens: { ids: readonly number[] } }
  | { text: Uint8Array }
  | { pixels: Uint8Array };

export interface Sampling {
  // fields: sampling of types (scripts/fields.py)
  /** 0: the most likely token; 1: the model's distribution [1] */
  temperature?: number;
  /** Keep the K most likely tokens; 0: all [all] */
  topK?: number;
  /** Keep the smallest set of tokens with this probability [1] */
  topP?: number;
  /** Drop tokens below this share of the most likely one's probability [0] */
  minP?: number;
  /** Divides (multiplies) positive (negative) logits of tokens that occurred [1] */
  repetitionPenalty?: number;
  /** Subtracted once from the logits of tokens that occurred [0] */
  presencePenalty?: number;
  /** Subtracted from logits once per occurrence of the token [0] */
  frequencyPenalty?: number;
  /** Penalties count the last N tokens only; 0: all of the sequence [0] */
  penaltyWindow?: number;
  /** Added to the logit of a token [none] */
  logitBias?: { [token: number]: number };
  /** The same one gives the same tokens; sample i has seed + i [random] */
  seed?: Int64;
  // end of fields
}

export interface Stop {
  // fields: stop of types (scripts/fields.py)
  /** Texts that end the answer, at most --max-stop-strings [none] */
  strings?: readonly (string | Uint8Array)[];
  /** Tokens that end the answer, at most 256 [none] */
  tokenIds?: readonly number[];
  /** The stop token or text is part of the answer [false] */
  includeInOutput?: boolean;
  /** Tokens that end the model's texts do not end the answer [false] */
  ignoreEos?: boolean;
  /** Nothing ends the answer before it has so many tokens [0] */
  minTokens?: number;
  // end of fields
}

export interface GivenSpan {
  position: Int64;
  values: TokenValues;
}

export interface GenerateRequest {
  /** Text, token ids or pixels that the model reads first. */
  prompt?: TokenValues;
  sampling?: Sampling;
  stop?: Stop;
  /** Known tokens from a position on, fed in place of samples. */
  given?: readonly GivenSpan[];
  // fields: generation of types (scripts/fields.py)
  /** Model that answers [the one that is served] */
  model?: string;
  /** Continue this session [none] */
  sessionId?: string;
  /**
   * Most tokens to produce, given ones included [16 in /v1/completions; else up to the end of the sequence, and
   * the clients ask for 256 of a text]
   */
  maxNewTokens?: number;
  /** Samples of one prompt, which is read once [1] */
  numSamples?: number;
  /** Report the log2-probability of every token [false] */
  log2Probs?: boolean;
  /** Report the N most likely tokens at each position [0] */
  topLog2Probs?: number;
  /** The answer begins with the prompt [false] */
  echoPrompt?: boolean;
  /** Draw so many in parallel with regard to later given tokens; 0 or 1: no filter [0] */
  particles?: number;
  /**
   * For text longer than the model was trained on: reset the state whenever it has read N tokens, and re-read the
   * last N/2; 0: never [the session's, the initial state's, or what the model was trained on]
   */
  window?: Int64;
  /** LoRA adapter of the model [none] */
  adapter?: string;
  /** Begin with this named state; not with a session [none] */
  initialState?: string;
  /** Keep the state after so many tokens of the prompt for later prompts [the server decides] */
  cachePrefixTokens?: number;
  /** Special tokens that are spelt out in a text prompt become their ids [false] */
  parseSpecial?: boolean;
  /** Add the tokens that the model wants before and after a text, as <s> [at the beginning of a sequence] */
  addSpecial?: boolean;
  /** Report the bytes that each token adds to the text [false] */
  tokenBytes?: boolean;
  /** At most N tokens in a message; 1: each as it comes [the server decides] */
  maxTokensPerMessage?: number;
  /** End generation after this long, with what there is [none] */
  timeLimit?: Duration;
  /** Name of a call on a session that outlives the server, which can be repeated [none] */
  callId?: string;
  /** Of a repeat: tokens before this position are not sent again [0] */
  fromPosition?: Int64;
  /** Position of the session; another one is refused [any] */
  expectedPosition?: Int64;
  // end of fields
}

export interface CallOptions {
  signal?: AbortSignal;
  /** Milliseconds. */
  timeout?: number;
}

export interface GenerateOptions extends CallOptions {
  onFinish?: (finish: SampleFinish) => void;
  /** Milliseconds for which a call on a session that outlives the server is repeated; 0: never. */
  retry?: number;
}

export type ValueSource = 'SAMPLED' | 'GIVEN' | 'PROMPT';

export interface GeneratedToken {
  position: number;
  token: number;
  source: ValueSource;
  sample: number;
  /** Where the request has `log2Probs`. */
  log2Prob: number | undefined;
  text: string;
}

export interface SampleFinish {
  sample: number;
  reason:
    | 'FINISH_REASON_UNSPECIFIED'
    | 'FINISH_REASON_LENGTH'
    | 'FINISH_REASON_STOP_TOKEN'
    | 'FINISH_REASON_STOP_STRING'
    | 'FINISH_REASON_END_OF_SEQUENCE'
    | 'FINISH_REASON_CANCELLED'
    | 'FINISH_REASON_DEADLINE';
  promptTokens: number;
  reusedTokens: string;
  generatedTokens: number;
  givenTokens: number;
  seed: string;
  timings: {
    queued: DurationMessage | null;
    prompt: DurationMessage | null;
    generation: DurationMessage | null;
    perToken: DurationMessage | null;
  } | null;
  stopString: Buffer;
  position: string;
  draftedTokens: number;
  acceptedTokens: number;
  replayedTokens: string;
  digest: string;
  cachedTokens: string;
  log2Evidence?: number;
  window: string;
  windowRestarts: string;
  skippedTokens: string;
  numericsChanged: boolean;
}

export interface ImageOptions extends GenerateOptions {
  model?: string;
  adapter?: string;
  sampling?: Sampling;
  startToken?: number;
  particles?: number;
  onPixel?: (index: number, token: number) => void;
}

/** A message of a chat, or an item of a response, in the form of OpenAI's API. */
export type Message = { role?: string; content?: unknown; [member: string]: unknown };

/** A tool with its function, or a tool in the form of OpenAI's API. */
export type Tool =
  | {
      name: string;
      description?: string;
      parameters?: ZodSchema<unknown> | JsonObject;
      strict?: boolean;
      /** Gets the arguments of a call; its result goes into ToolCall.result() or output(). */
      run?(args: any): unknown;
    }
  | { type: 'function'; function: { name: string; description?: string; parameters?: JsonObject; strict?: boolean } };

export type ToolChoice = 'auto' | 'none' | 'required' | { name: string } | JsonObject;

export type ReasoningEffort = 'none' | 'minimal' | 'low' | 'medium' | 'high' | 'xhigh' | (string & {});

export interface ChatRequest<T = unknown> {
  /** A question, or messages. */
  messages: string | readonly Message[];
  tools?: readonly Tool[];
  toolChoice?: ToolChoice;
  parallelToolCalls?: boolean;
  /** Of the answer: see Answer.parsed. */
  schema?: ZodSchema<T> | JsonObject;
  responseFormat?: JsonObject;
  /** The answer as GBNF. */
  grammar?: string;
  /** Most tokens of the answer, with its reasoning. */
  maxTokens?: number;
  reasoningEffort?: ReasoningEffort;
  thinkingTokenBudget?: number;
  enableThinking?: boolean;
  verbosity?: 'low' | 'medium' | 'high';
  chatTemplateKwargs?: JsonObject;
  documents?: readonly JsonObject[];
  addGenerationPrompt?: boolean;
  continueFinalMessage?: boolean;
  /** Choices of the answer: see ChatStream.answers(). */
  n?: number;
  logprobs?: boolean;
  topLogprobs?: number;
  returnTokenIds?: boolean;
  lintel?: JsonObject;
  // fields: chat of types (scripts/fields.py)
  /** Model that answers [the one that is served] */
  model?: string;
  /** 0: the most likely token; 1: the model's distribution [1] */
  temperature?: number;
  /** Keep the K most likely tokens; 0: all [all] */
  topK?: number;
  /** Keep the smallest set of tokens with this probability [1] */
  topP?: number;
  /** Drop tokens below this share of the most likely one's probability [0] */
  minP?: number;
  /** Divides (multiplies) positive (negative) logits of tokens that occurred [1] */
  repetitionPenalty?: number;
  /** Subtracted once from the logits of tokens that occurred [0] */
  presencePenalty?: number;
  /** Subtracted from logits once per occurrence of the token [0] */
  frequencyPenalty?: number;
  /** Penalties count the last N tokens only; 0: all of the sequence [0] */
  penaltyWindow?: number;
  /** Added to the logit of a token [none] */
  logitBias?: { [token: number]: number };
  /** The same one gives the same tokens; sample i has seed + i [random] */
  seed?: number | bigint;
  /** Texts that end the answer, at most --max-stop-strings [none] */
  stop?: string | readonly string[];
  /** Tokens that end the answer, at most 256 [none] */
  stopTokenIds?: readonly number[];
  /** The stop token or text is part of the answer [false] */
  includeStopStrInOutput?: boolean;
  /** Tokens that end the model's texts do not end the answer [false] */
  ignoreEos?: boolean;
  /** Nothing ends the answer before it has so many tokens [0] */
  minTokens?: number;
  /** LoRA adapter of the model [none] */
  adapter?: string;
  // end of fields
}

export interface ResponseRequest<T = unknown> {
  /** A question, or items. With `previousResponseId` it may be empty. */
  input: string | readonly Message[];
  /** A response, or its id, that this one continues. */
  previousResponseId?: string | Response<unknown>;
  instructions?: string;
  store?: boolean;
  background?: boolean;
  tools?: readonly Tool[];
  toolChoice?: ToolChoice;
  parallelToolCalls?: boolean;
  /** Of the answer: see Response.parsed. */
  schema?: ZodSchema<T> | JsonObject;
  text?: JsonObject;
  /** Most tokens of the answer, with its reasoning. */
  maxTokens?: number;
  reasoning?: JsonObject;
  reasoningEffort?: ReasoningEffort;
  thinkingTokenBudget?: number;
  include?: readonly string[];
  topLogprobs?: number;
  metadata?: { [name: string]: string };
  // fields: responses of types (scripts/fields.py)
  /** Model that answers [the one that is served] */
  model?: string;
  /** 0: the most likely token; 1: the model's distribution [1] */
  temperature?: number;
  /** Keep the K most likely tokens; 0: all [all] */
  topK?: number;
  /** Keep the smallest set of tokens with this probability [1] */
  topP?: number;
  /** Drop tokens below this share of the most likely one's probability [0] */
  minP?: number;
  /** Divides (multiplies) positive (negative) logits of tokens that occurred [1] */
  repetitionPenalty?: number;
  /** Subtracted once from the logits of tokens that occurred [0] */
  presencePenalty?: number;
  /** Subtracted from logits once per occurrence of the token [0] */
  frequencyPenalty?: number;
  /** Penalties count the last N tokens only; 0: all of the sequence [0] */
  penaltyWindow?: number;
  /** Added to the logit of a token [none] */
  logitBias?: { [token: number]: number };
  /** The same one gives the same tokens; sample i has seed + i [random] */
  seed?: number | bigint;
  /** Texts that end the answer, at most --max-stop-strings [none] */
  stop?: string | readonly string[];
  /** Tokens that end the answer, at most 256 [none] */
  stopTokenIds?: readonly number[];
  /** The stop token or text is part of the answer [false] */
  includeStopStrInOutput?: boolean;
  /** Tokens that end the model's texts do not end the answer [false] */
  ignoreEos?: boolean;
  /** Nothing ends the answer before it has so many tokens [0] */
  minTokens?: number;
  /** LoRA adapter of the model [none] */
  adapter?: string;
  // end of fields
}

export interface RespondOptions extends CallOptions {
  /** Milliseconds for which a stored response that is cut off is repeated; 0: never. */
  retry?: number;
  /** Another call with this key and the same request gives the same response. */
  idempotencyKey?: string;
}

export interface Usage {
  promptTokens: number;
  cachedTokens: number;
  completionTokens: number;
  reasoningTokens: number;
}

export interface ContentToken {
  id: number;
  text: Buffer;
  log2Prob: number;
  top: ContentToken[];
}

export interface CallDelta {
  index: number;
  id: string;
  name: string;
  arguments: string;
}

export interface ChatDelta {
  content: string;
  reasoning: string;
  call?: CallDelta | null;
  choice: number;
  tokens: ContentToken[];
  tokenIds: number[];
}

export interface ResponseEvent {
  type: string;
  /** The event in the form of OpenAI's API. */
  data: any;
  content: string;
  reasoning: string;
}

export class ToolCall {
  constructor(id: string, name: string, text: string, tools?: readonly Tool[]);
  id: string;
  name: string;
  /** A JSON object as text. */
  arguments: string;
  get args(): any;
  run(): Promise<any>;
  result(value: unknown): { role: 'tool'; tool_call_id: string; content: string };
  output(value: unknown): { type: 'function_call_output'; call_id: string; output: string };
}

export type AssistantMessage = {
  role: 'assistant';
  content: string;
  reasoning_content?: string;
  tool_calls?: { id: string; type: 'function'; function: { name: string; arguments: string } }[];
};

/** One choice of a chat, whole. */
export class Answer<T = unknown> {
  private constructor();
  content: string;
  reasoning: string;
  calls: ToolCall[];
  /** Absent in an answer that broke off: LintelError.answers. */
  finishReason?: 'UNSPECIFIED' | 'STOP' | 'LENGTH' | 'TOOL_CALLS';
  seed: string;
  model: string;
  usage: Usage;
  choice: number;
  stopString: string;
  atContextEnd: boolean;
  /** Seconds. */
  timings: { queued?: number; prompt?: number; generation?: number; perToken?: number };
  tokens: ContentToken[];
  tokenIds: number[];
  promptIds: number[];
  get message(): AssistantMessage;
  /** Undefined where the answer is calls. Throws where it was cut, or does not fit. */
  get parsed(): T | undefined;
}

export class Response<T = unknown> {
  private constructor();
  id: string;
  status: 'completed' | 'incomplete' | 'failed' | 'cancelled' | 'queued' | 'in_progress';
  model: string;
  content: string;
  reasoning: string;
  calls: ToolCall[];
  output: Message[];
  usage: Usage;
  previousResponseId?: string;
  /** All of it, in the form of OpenAI's API. */
  data: any;
  get parsed(): T | undefined;
}

/** To be read once, with `for await` or by a method; the call begins when it is read. */
export interface ChatStream<T = unknown> extends AsyncIterable<ChatDelta> {
  answer(): Promise<Answer<T>>;
  answers(): Promise<Answer<T>[]>;
}

export interface ResponseStream<T = unknown> extends AsyncIterable<ResponseEvent> {
  response(): Promise<Response<T>>;
}

export class LintelError extends Error {
  constructor(code: number, message: string, requestId: string, details?: object);
  /** A grpc.status. */
  code: number;
  details: string;
  unreached: boolean;
  violations: { field: string; description: string }[];
  reason: string;
  facts: { [name: string]: string };
  /** Milliseconds. */
  retryDelay?: number;
  requestId: string;
  /** Of a chat that failed: what came. */
  answers?: Answer[];
  /** Of completeImage(): what was drawn. */
  image?: Uint8Array;
}

export interface ImageShape {
  height: number;
  width: number;
  channels: number;
  startToken?: number;
}

export interface Adapter {
  name: string;
  rank: number;
  modules: number;
  bytes: string;
  fingerprint: string;
}

/** The members of lintel.v1.Model that programs use most; all others are there, too. */
export interface Model {
  name: string;
  configJson: string;
  modality: 'image' | 'bytes' | 'tokens' | (string & {});
  image: ImageShape | null;
  head: string;
  attention: string;
  vocabSize: number;
  maxLength: string;
  trainedLength: string;
  parameters: string;
  weightType: string;
  stateBytes: string;
  constantState: boolean;
  fingerprint: string;
  version: string;
  state: string;
  reason: string;
  adapters: Adapter[];
  tokenizer: string;
  eosTokens: number[];
  chatTemplate: string;
  aliases: string[];
  [field: string]: unknown;
}

export type Durability =
  | 'DURABILITY_UNSPECIFIED'
  | 'DURABILITY_NONE'
  | 'DURABILITY_CALL'
  | 'DURABILITY_INPUT'
  | 'DURABILITY_TOKEN';

export interface CreateSessionRequest {
  model?: string;
  maxTokens?: Int64;
  adapter?: string;
  initialState?: string;
  checkpoints?: { everyTokens?: number; keep?: number };
  historyTokens?: Int64;
  window?: Int64;
  durability?: Durability;
  expireAfter?: Duration;
}

export interface Session {
  id: string;
  model: string;
  position: string;
  hasPendingValue: boolean;
  busy: boolean;
  stateBytes: string;
  maxTokens: string;
  createTime: DurationMessage | null;
  lastUsedTime: DurationMessage | null;
  idleTimeout: DurationMessage | null;
  adapter: string;
  oldestPosition: string;
  digest: string;
  numerics: string;
  window: string;
  durability: Durability;
  inMemory: boolean;
  interrupted: { callId: string; startPosition: string; storedPosition: string } | null;
  expireTime: DurationMessage | null;
  numericsChangedAt: string;
  affinityKey: string;
}

export interface NamedState {
  name: string;
  model: string;
  adapter: string;
  position: string;
  bytes: string;
  numerics: string;
  isPublic: boolean;
  digest: string;
}

export interface ClientOptions {
  /** PEM files. */
  tlsCa?: string;
  tlsCert?: string;
  tlsKey?: string;
  token?: string;
  /** Milliseconds, of every call. */
  timeout?: number;
  /** [USER:PASSWORD@]HOST:PORT. */
  proxy?: string;
  /** Milliseconds; 0: never. */
  retry?: number;
  interceptors?: Interceptor[];
}

export function values(given: TokenValues): object;

export class Client {
  constructor(address?: string, options?: ClientOptions);
  close(): void;

  generate(request: GenerateRequest, options?: GenerateOptions): AsyncGenerator<GeneratedToken, void, undefined>;
  completeImage(image: Uint8Array, hidden: (index: number) => boolean, settings?: ImageOptions): Promise<Uint8Array>;

  chat<T = unknown>(request: ChatRequest<T>, options?: CallOptions): ChatStream<T>;
  renderChat(
    request: ChatRequest,
    options?: { timeout?: number },
  ): Promise<{ text: string; ids: number[]; turnBoundary: number; beforeGenerationPrompt: number; model: string }>;

  respond<T = unknown>(request: ResponseRequest<T>, options?: RespondOptions): ResponseStream<T>;
  getResponse(id: string): Promise<Response>;
  cancelResponse(id: string): Promise<Response>;
  deleteResponse(id: string): Promise<void>;
  replayResponse(id: string, options?: CallOptions & { startingAfter?: number }): ResponseStream;
  listInputItems(id: string, options?: { ascending?: boolean }): Promise<Message[]>;
  countInputTokens(request: ResponseRequest, options?: { timeout?: number }): Promise<number>;
  compactResponse(
    request: Omit<ResponseRequest, 'input' | 'model'> & { model: string; input?: ResponseRequest['input'] },
    options?: { timeout?: number },
  ): Promise<Message[]>;

  models(): Promise<Model[]>;
  model(name?: string): Promise<Model>;
  tokenize(
    text: string | Uint8Array,
    options?: { model?: string; addSpecial?: boolean; parseSpecial?: boolean },
  ): Promise<number[]>;
  detokenize(ids: readonly number[], options?: { model?: string }): Promise<string>;

  createSession(request?: CreateSessionRequest): Promise<Session>;
  getSession(id: string): Promise<Session>;
  deleteSession(id: string): Promise<unknown>;
  forkSession(
    id: string,
    request?: { position?: Int64; count?: number; durability?: Durability },
  ): Promise<Session[]>;
  rewindSession(id: string, position: Int64, options?: { expectedDigest?: string }): Promise<Session>;
  snapshotSession(
    id: string,
    request?: { position?: Int64; withoutHistory?: boolean; withoutState?: boolean },
    options?: CallOptions,
  ): Promise<Buffer>;
  restoreSession(
    snapshot: Uint8Array,
    header?: { model?: string; verify?: boolean; acceptOtherNumerics?: boolean; durability?: Durability },
    options?: { timeout?: number },
  ): Promise<Session>;
  history(
    id: string,
    range?: { from?: Int64; to?: Int64 },
    options?: CallOptions,
  ): AsyncGenerator<{ position: number; token: number; source: ValueSource }, void, undefined>;

  saveState(sessionId: string, name: string, request?: { position?: Int64; isPublic?: boolean }): Promise<NamedState>;
  states(model?: string): Promise<NamedState[]>;
  deleteState(name: string, options?: { isPublic?: boolean }): Promise<unknown>;
}

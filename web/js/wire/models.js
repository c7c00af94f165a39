// SPDX-License-Identifier: Apache-2.0
// The server's models: listed once, and again on request.
import { unary } from './rpc.js';

let known;
export function models(again = false) {
  if (!known || again) {
    known = unary('ModelService/List', {}).then((answer) => answer.models ?? []);
    known.catch(() => (known = undefined));
  }
  return known;
}

// Those that this page can draw with: grey images of at most 256 levels. The paper's own kind first, the largest ahead.
export async function imageModels() {
  const fit = (await models()).filter((m) => m.modality === 'image' && m.image.channels === 1 && m.vocabSize <= 256);
  const own = (m) => Number(attentionName(m) === 'linear');
  return fit.sort(
    (a, b) => own(b) - own(a) || Number(b.parameters) - Number(a.parameters) || a.name.localeCompare(b.name),
  );
}

export async function textModels() {
  return (await models()).filter((m) => m.tokenizer);
}

// Those with a chat template.
export async function chatModels() {
  return (await models()).filter((m) => m.samplingDefaults);
}

// The kind of attention, with its parameters: 'linear, favor', 'lsh, 4 rounds'.
export function attentionName(model) {
  if (!model.configJson) return model.attention ?? '';
  const { feature_map: map, rounds } = JSON.parse(model.configJson).attention ?? {};
  if (map && map !== 'elu_plus_one') return `${model.attention}, ${map}`;
  return rounds ? `${model.attention}, ${rounds} round${rounds === 1 ? '' : 's'}` : model.attention;
}

// Bytes of a state after so many tokens: linear between the points that the server reports; without a maximum,
// the bytes of each token.
export function stateBytes(model, position) {
  const points = (model.stateGrowth ?? []).map((p) => [Number(p.position ?? 0), Number(p.bytes ?? 0)]);
  if (points.length === 0) {
    if (model.stateBytesPerValue) return position * Number(model.stateBytesPerValue);
    const most = Number(model.stateBytes ?? 0);
    points.push(
      ...(model.constantState
        ? [[0, most]]
        : [
            [0, 0],
            [Number(model.maxLength ?? 1), most],
          ]),
    );
  }
  const next = points.findIndex(([at]) => at >= position);
  if (next < 0) return points.at(-1)[1];
  if (next === 0) return points[0][1];
  const [[x0, y0], [x1, y1]] = [points[next - 1], points[next]];
  return y0 + ((y1 - y0) * (position - x0)) / (x1 - x0);
}

// SPDX-License-Identifier: Apache-2.0
// Numbers for people.

export function bytes(count) {
  const units = ['B', 'KB', 'MB', 'GB'];
  let unit = 0;
  let value = Number(count);
  while (Math.abs(value) >= 1000 && unit + 1 < units.length) {
    value /= 1000;
    ++unit;
  }
  return `${unit === 0 ? Math.round(value) : digits(value)} ${units[unit]}`;
}

// Three digits that mean something: 0.123, 1.23, 12.3, 123, 1,234.
export function digits(value) {
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size >= 100) return Math.round(value).toLocaleString('en');
  const places = size >= 10 ? 1 : size >= 1 || size === 0 ? 2 : 3;
  return value.toFixed(places).replace(/\.?0+$/, '');
}

export function whole(value) {
  return Math.round(Number(value)).toLocaleString('en');
}

// The percentage of 2^log2: 34 %, 0.2 %, < 0.01 %.
export function percent(log2) {
  const share = 100 * 2 ** log2;
  if (share < 0.01) return '< 0.01 %';
  return `${share >= 10 ? Math.round(share) : share.toPrecision(2)} %`;
}

export function seconds(value) {
  if (value < 1e-3) return `${digits(value * 1e6)} µs`;
  if (value < 1) return `${digits(value * 1e3)} ms`;
  if (value < 120) return `${digits(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86400)} days`;
}

// A google.protobuf.Duration as JSON has it, '1.5s', in seconds.
export function duration(text) {
  return text ? Number(text.replace(/s$/, '')) : 0;
}

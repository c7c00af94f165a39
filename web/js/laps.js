// The clock of a race: when values came, as time a value by position.

export const BIN = 28; // positions that share a point of the curve: a row of a digit

export class LapClock {
  #laps = []; // of each lap: time and count for each bin

  constructor(length) {
    this.bins = Math.ceil(length / BIN);
    this.length = length;
  }

  // A lap begins at `now`, in ms.
  begin(now) {
    this.#laps.push({ micros: new Float64Array(this.bins), counts: new Uint32Array(this.bins), last: undefined, began: now, ended: undefined, tokens: 0 });
  }

  // Values at positions [first, end) came by `now`. What arrives at once took equally long. The first values have no
  // point: what passes until they come is the way to the server and its queue, too.
  came(first, end, now) {
    const lap = this.#laps.at(-1);
    if (end <= first) return;
    lap.tokens += end - first;
    if (lap.last === undefined) {
      lap.last = now;
      return;
    }
    const each = ((now - lap.last) * 1000) / (end - first);
    for (let at = first; at < Math.min(end, this.length); ++at) {
      lap.micros[Math.floor(at / BIN)] += each;
      lap.counts[Math.floor(at / BIN)] += 1;
    }
    lap.last = now;
  }

  end(now) {
    this.#laps.at(-1).ended = now;
  }

  // [[position, microseconds a value], ...]: of each bin the median over the laps.
  curve() {
    const out = [];
    for (let bin = 0; bin < this.bins; ++bin) {
      const seen = this.#laps.filter((l) => l.counts[bin] > 0).map((l) => l.micros[bin] / l.counts[bin]);
      if (seen.length > 0) out.push([Math.min(this.length, (bin + 0.5) * BIN), median(seen)]);
    }
    return out;
  }

  // Microseconds a value over a whole lap: the median over those that have ended; of the one that runs until one has.
  overall() {
    const ended = this.#laps.filter((l) => l.ended !== undefined && l.tokens > 0);
    const of = ended.length > 0 ? ended : this.#laps.filter((l) => l.tokens > 0);
    return of.length > 0 ? median(of.map((l) => (((l.ended ?? l.last) - l.began) * 1000) / l.tokens)) : NaN;
  }
}

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

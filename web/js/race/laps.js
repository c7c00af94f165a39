// The clock of a race: when values came, as time a value by position.

export const BIN = 56; // positions that share a point of the curve: two rows of a digit
const AT_ONCE = 1; // ms

// What is late was held up by something else, for nothing comes too early: of several laps the fastest counts, at each
// position by itself.
export class LapClock {
  #began;
  #last; // {position, now}: what is behind the last value that came, and when it came
  #since; // the same of what came before it
  #soonest = []; // of each bin: ms from a lap's begin until its last value came, the least of all laps
  #fastest = Infinity; // ms a value of a whole lap
  #tokens = 0;

  constructor(length) {
    this.length = length;
    this.bins = Math.ceil(length / BIN);
  }

  // A lap begins at `now`, in ms.
  begin(now) {
    this.#began = now;
    this.#last = this.#since = { position: 0, now };
    this.#tokens = 0;
  }

  // Values at positions [first, end) came by `now`. Those that arrive at once are taken to have been made evenly.
  came(first, end, now) {
    if (end <= first) return;
    this.#tokens += end - first;
    // What comes hardly later than what came before lay in the same buffer.
    if (now - this.#last.now >= AT_ONCE) this.#since = this.#last;
    this.#last = { position: end, now };
    const { position, now: then } = this.#since;
    for (let bin = Math.floor(position / BIN); bin < this.bins && this.#edge(bin) <= end; ++bin) {
      const at = then + ((this.#edge(bin) - position) / (end - position)) * (now - then) - this.#began;
      this.#soonest[bin] = Math.min(this.#soonest[bin] ?? Infinity, at);
    }
  }

  end(now) {
    if (this.#tokens > 0) this.#fastest = Math.min(this.#fastest, (now - this.#began) / this.#tokens);
  }

  // The position behind a bin's last value.
  #edge(bin) {
    return Math.min(this.length, (bin + 1) * BIN);
  }

  // [[position, microseconds a value], ...]. Without the first bin: what passes until the first values come is the way
  // to the server and its queue, too.
  curve() {
    const out = [];
    for (let bin = 1; bin < this.#soonest.length; ++bin) {
      const [before, after] = [this.#soonest[bin - 1], this.#soonest[bin]];
      const count = this.#edge(bin) - this.#edge(bin - 1);
      out.push([this.#edge(bin) - count / 2, (1000 * (after - before)) / count]);
    }
    return out;
  }

  // Microseconds a value over the fastest lap, its beginning and end included; of the one that runs until one has ended.
  overall() {
    if (this.#fastest < Infinity) return 1000 * this.#fastest;
    return this.#tokens > 0 ? (1000 * (this.#last.now - this.#began)) / this.#tokens : NaN;
  }
}

// Curves of steps that are drawn from their least and greatest values, so that a frame costs pixels and not events.

const FACTOR = 16;

/** Values that hold from their event to the next one's. Without `events`, value i is that after event i. */
class Steps {
  constructor(values, events = null) {
    this.values = values;
    this.events = events;
    this.levels = [{ low: values, high: values }];
    for (let below = this.levels[0]; below.low.length > FACTOR; below = this.levels[this.levels.length - 1]) {
      this.levels.push(Steps.level(below));
    }
  }

  /** The least and the greatest of each `FACTOR` values of the level below. */
  static level(below) {
    const length = Math.ceil(below.low.length / FACTOR);
    const low = new Float64Array(length);
    const high = new Float64Array(length);
    for (let i = 0; i < length; i += 1) {
      const end = Math.min((i + 1) * FACTOR, below.low.length);
      let least = Infinity;
      let most = -Infinity;
      for (let j = i * FACTOR; j < end; j += 1) {
        if (below.low[j] < least) least = below.low[j];
        if (below.high[j] > most) most = below.high[j];
      }
      low[i] = least;
      high[i] = most;
    }
    return { low, high };
  }

  /** The number of the value after an event; -1 before the first. */
  index(event) {
    return this.events ? lastAtMost(this.events, event) : Math.min(event, this.values.length - 1);
  }

  /** The value after an event. */
  at(event) {
    const index = this.index(event);
    return index < 0 ? null : this.values[index];
  }

  /** Puts the least and the greatest of the values from..=to into `out`. */
  extremes(from, to, out) {
    let low = Infinity;
    let high = -Infinity;
    let level = 0;
    let start = from;
    let end = to + 1;
    while (start < end) {
      const values = this.levels[level];
      const hasNext = level + 1 < this.levels.length;
      const take = (i) => {
        if (values.low[i] < low) low = values.low[i];
        if (values.high[i] > high) high = values.high[i];
      };
      // The ragged ends of this level; whole groups are the next one's.
      while (start < end && (!hasNext || start % FACTOR !== 0)) take(start++);
      while (start < end && end % FACTOR !== 0) take(--end);
      start /= FACTOR;
      end /= FACTOR;
      level += 1;
    }
    out.low = low;
    out.high = high;
  }
}

/** The place of the last value that is at most `limit`, in values that grow; -1 if there is none. */
function lastAtMost(values, limit) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= limit) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** Mapped bytes, and what pools hold. */
function reservedOf({ events, mappings, held }) {
  const [mapped] = summed(events, mappings.bytes, mappings.mapped, mappings.unmapped);
  if (held.events.length === 0) return mapped;
  const values = mapped.values.slice();
  let bytes = 0;
  for (let i = 0, next = 0; i < events; i += 1) {
    for (; next < held.events.length && held.events[next] <= i; next += 1) bytes = held.bytes[next];
    values[i] += bytes;
  }
  return new Steps(values);
}

/** Sums of what begins and ends with events. */
function summed(length, bytes, begins, ...allEnds) {
  const make = (finish) => {
    // One more for what never ends.
    const values = new Float64Array(length + 1);
    for (let i = 0; i < bytes.length; i += 1) {
      values[begins[i]] += bytes[i];
      values[finish[i]] -= bytes[i];
    }
    for (let i = 1; i < length; i += 1) values[i] += values[i - 1];
    return new Steps(values.subarray(0, length));
  };
  return allEnds.map(make);
}

/** The curves of a run. */
function curvesOf(run) {
  const { blocks, space, calls } = run;
  const [asked, used] = summed(run.events, blocks.bytes, blocks.allocated, blocks.requested, blocks.freed);
  const curves = { asked, used, reserved: null, space: null, calls: null };
  if (run.hasReserved) curves.reserved = reservedOf(run);
  if (run.hasMaps) {
    const part = space.bytes.map((bytes, i) => (bytes === 0 ? 1 : space.largest[i] / bytes));
    curves.space = new Steps(part, space.events);
  }
  if (calls.count.length > 0) curves.calls = new Steps(calls.count, calls.events);
  return curves;
}

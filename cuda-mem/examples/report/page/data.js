// From the packed text to typed arrays.

async function unpack(text) {
  const letters = atob(text);
  const packed = new Uint8Array(letters.length);
  for (let i = 0; i < packed.length; i += 1) packed[i] = letters.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** The runs of this page. */
async function readRuns() {
  const bytes = await unpack(byId('data').textContent);
  // The text is of no use any more and takes megabytes.
  byId('data').remove();
  const decoder = new TextDecoder();
  const length = Number(decoder.decode(bytes.subarray(0, 8)));
  const head = JSON.parse(decoder.decode(bytes.subarray(8, 8 + length)));
  const columns = bytes.subarray(8 + length);
  return head.runs.map((run) => new Run(run, columns));
}

/** Bytes are taken as they are; numbers have seven bits a byte, the lowest first. */
function column(bytes, { at, count, form }) {
  if (form === 'byte') return bytes.subarray(at, at + count);
  const values = new Float64Array(count);
  let place = at;
  let sum = 0;
  for (let i = 0; i < count; i += 1) {
    let byte = bytes[place];
    let value = byte & 127;
    place += 1;
    // Not with shifts, which are done in 32 bits.
    for (let scale = 128; byte > 127; scale *= 128) {
      byte = bytes[place];
      place += 1;
      value += (byte & 127) * scale;
    }
    if (form === 'step') {
      sum += value % 2 === 0 ? value / 2 : -(value + 1) / 2;
      value = sum;
    }
    values[i] = value;
  }
  return values;
}

/** What `start` and a length in events make: the event of the end, `never` if there is none. */
function ends(start, until, never) {
  const events = new Int32Array(start.length);
  for (let i = 0; i < events.length; i += 1) events[i] = until[i] === 0 ? never : start[i] + until[i];
  return events;
}

/** Actions by their numbers in the log's columns; the order is that of the reader. */
const ACTIONS = ['allocate', 'free', 'allocate failure', 'free requested', 'free completed', 'map', 'unmap', 'trim',
  'driver calls', 'dropped', 'reserved'];
const TRIM = 7;
const DROPPED = 9;

/** One log. Places are addresses without the gaps between them. */
class Run {
  constructor(head, bytes) {
    Object.assign(this, head);
    const table = Object.fromEntries(Object.entries(head.columns).map(([name, at]) => [name, column(bytes, at)]));
    this.actions = table.actions;
    this.times = table.times;
    const allocated = Int32Array.from(table.block_allocated);
    this.blocks = {
      count: allocated.length,
      place: table.block_place,
      bytes: table.block_bytes,
      stream: table.block_stream,
      thread: table.block_thread,
      origin: table.block_origin,
      allocated,
      requested: ends(allocated, table.block_until_requested, head.events),
      freed: ends(allocated, table.block_until_freed, head.events),
    };
    const mapped = Int32Array.from(table.mapping_mapped);
    this.mappings = {
      count: mapped.length,
      place: table.mapping_place,
      bytes: table.mapping_bytes,
      mapped,
      unmapped: ends(mapped, table.mapping_until_unmapped, head.events),
    };
    this.space = { events: table.space_event, bytes: table.space_bytes, largest: table.space_largest };
    this.failed = {
      events: table.failure_event,
      bytes: table.failure_bytes,
      stream: table.failure_stream,
      origin: table.failure_origin,
    };
    this.calls = { events: table.calls_event, count: table.calls_count };
    // What pools hold, whose memory has no addresses in a log.
    this.held = { events: table.held_event, bytes: table.held_bytes };
    this.hasReserved = head.reserved !== null;
    this.hasMaps = mapped.length > 0;
    this.hasPending = this.blocks.requested.some((event, i) => event !== this.blocks.freed[i]);
    this.hasOrigins = head.origins.length > 1;
    this.layOut();
  }

  layOut() {
    let place = 0;
    for (const extent of this.extents) {
      extent.place = place;
      place += extent.bytes;
    }
    this.placesEnd = place;
  }

  /** The address at a place, in hexadecimal. `asEnd`: at the end of an extent, not the beginning of the next. */
  address(place, asEnd = false) {
    let low = 0;
    let high = this.extents.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (asEnd ? this.extents[middle].place < place : this.extents[middle].place <= place) low = middle + 1;
      else high = middle;
    }
    const extent = this.extents[Math.max(low - 1, 0)];
    if (!extent) return '0x0';
    return `0x${(BigInt(extent.pointer) + BigInt(Math.floor(place - extent.place))).toString(16)}`;
  }

  /** The events with one action. */
  eventsOf(action) {
    const events = [];
    for (let i = 0; i < this.actions.length; i += 1) if (this.actions[i] === action) events.push(i);
    return events;
  }

  /** The block that an event allocated or freed, or -1. */
  blockOf(event) {
    this.ofEvent ??= this.blocksByEvent();
    return this.ofEvent[event];
  }

  blocksByEvent() {
    const { count, allocated, requested, freed } = this.blocks;
    const blocks = new Int32Array(this.events + 1).fill(-1);
    // An allocation may end the block before it at this address; then the event is the new block's.
    for (const events of [freed, requested, allocated]) {
      for (let i = 0; i < count; i += 1) blocks[events[i]] = i;
    }
    return blocks;
  }

  /** `about` in one line. */
  about() {
    const used = new Set(this.blocks.stream).size;
    const threads = this.threads.length;
    return [plural(this.events, 'event'), secondsText(this.duration, 3), plural(used, 'stream'),
      plural(threads, 'thread')].join(', ');
  }

  /** Blocks and mappings after an event. */
  stateAt(event) {
    const { count, allocated, requested, freed } = this.blocks;
    const alive = [];
    const pending = [];
    // A look at every block takes a millisecond a million; no index is worth its memory.
    for (let i = 0; i < count && allocated[i] <= event; i += 1) {
      if (event < freed[i]) (event < requested[i] ? alive : pending).push(i);
    }
    const mapped = [];
    const { mapped: from, unmapped } = this.mappings;
    for (let i = 0; i < from.length && from[i] <= event; i += 1) if (event < unmapped[i]) mapped.push(i);
    return new State(this, event, alive, pending, mapped);
  }
}

function sumOf(values, indices) {
  let sum = 0;
  for (const index of indices) sum += values[index];
  return sum;
}

/** The memory at one moment. */
class State {
  constructor(run, event, alive, pending, mapped) {
    const { blocks, mappings } = run;
    this.run = run;
    this.event = event;
    this.alive = alive;
    this.pending = pending;
    this.asked = sumOf(blocks.bytes, alive);
    this.used = this.asked + sumOf(blocks.bytes, pending);
    const held = run.held.bytes[lastAtMost(run.held.events, event)] ?? 0;
    this.reserved = run.hasReserved ? sumOf(mappings.bytes, mapped) + held : null;
    // What takes space, by address.
    this.placed = Int32Array.from([...alive, ...pending]).sort((a, b) => blocks.place[a] - blocks.place[b]);
    this.mapped = Int32Array.from(mapped).sort((a, b) => mappings.place[a] - mappings.place[b]);
    this.free = run.hasMaps ? this.freePieces() : [];
    this.freeBytes = this.free.reduce((sum, [from, to]) => sum + to - from, 0);
    this.largestFree = this.free.reduce((most, [from, to]) => Math.max(most, to - from), 0);
  }

  /** Mapped memory without blocks, as pairs of places; adjacent ones are joined. */
  freePieces() {
    const { blocks, mappings } = this.run;
    const pieces = [];
    const starts = new Set(this.run.extents.map((extent) => extent.place));
    const add = (from, to) => {
      if (from >= to) return;
      const last = pieces[pieces.length - 1];
      // At the start of an extent there is a gap in front.
      if (last && last[1] === from && !starts.has(from)) last[1] = to;
      else pieces.push([from, to]);
    };
    let next = 0;
    for (const mapping of this.mapped) {
      const start = mappings.place[mapping];
      const end = start + mappings.bytes[mapping];
      let from = start;
      while (next < this.placed.length && blocks.place[this.placed[next]] < end) {
        const block = this.placed[next];
        const blockEnd = blocks.place[block] + blocks.bytes[block];
        if (blockEnd > start) {
          add(from, Math.max(from, blocks.place[block]));
          from = Math.max(from, Math.min(blockEnd, end));
        }
        // It goes on in the next mapping.
        if (blockEnd > end) break;
        next += 1;
      }
      add(from, end);
    }
    return pieces;
  }

  /** The largest block that has a part of these places, or -1. */
  blockWithin(from, to) {
    const { place, bytes } = this.run.blocks;
    let low = 0;
    let high = this.placed.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (place[this.placed[middle]] < to) low = middle + 1;
      else high = middle;
    }
    let found = -1;
    for (let i = low - 1; i >= 0 && low - i < 4096; i -= 1) {
      const block = this.placed[i];
      const isEmpty = bytes[block] === 0;
      if (!isEmpty && place[block] + bytes[block] <= from) break;
      if (!isEmpty && (found < 0 || bytes[block] > bytes[found])) found = block;
    }
    return found;
  }
}

/** What is alive, by origin, or by size if the log has no origins. The largest sum is first. */
function groups(run, alive, byOrigin) {
  const { bytes, origin } = run.blocks;
  const found = new Map();
  for (const block of alive) {
    const key = byOrigin ? run.origins[origin[block]] : bytes[block];
    const group = found.get(key) ?? { key, bytes: 0, blocks: 0 };
    group.bytes += bytes[block];
    group.blocks += 1;
    found.set(key, group);
  }
  return [...found.values()].sort((a, b) => b.bytes - a.bytes || b.blocks - a.blocks);
}

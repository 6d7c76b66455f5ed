// The address space at one moment, in rows like the lines of a text.

/** '#rrggbb' as three numbers. */
function channels(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

class AddressMap {
  constructor(container, view, { readout, onRange }) {
    Object.assign(this, { container, view, readout });
    this.canvas = element('canvas', { role: 'img', 'aria-label': 'Map of the address space', 'aria-describedby': 'map-readout' });
    container.replaceChildren(this.canvas);
    this.range = new Range(0, Math.max(view.run.placesEnd, 1), Math.min(4096, Math.max(view.run.placesEnd, 1)));
    this.redraw = coalesced(() => this.draw());
    this.range.listeners.push(this.redraw, onRange);
    zoomable(this.canvas, this.range, {
      // A drag along one row moves by one row.
      width: () => this.width * this.rows,
      place: (event) => this.placeUnder(event),
      hover: (event) => this.tell(event),
      click: (event) => this.pick(event),
    });
    new ResizeObserver(() => this.redraw()).observe(container);
  }

  get isNarrow() {
    return this.container.clientWidth < 640;
  }

  get rows() {
    return this.isNarrow ? 20 : 14;
  }

  get rowHeight() {
    return this.isNarrow ? 14 : 20;
  }

  /** Of the addresses at the beginnings of rows. */
  get left() {
    return this.isNarrow ? 0 : 112;
  }

  get width() {
    return Math.max(this.container.clientWidth - this.left, 10);
  }

  /** The place under a pointer: row by row, each from left to right. */
  placeUnder(event) {
    const box = this.canvas.getBoundingClientRect();
    const row = Math.min(Math.max(Math.floor((event.clientY - box.top) / this.rowHeight), 0), this.rows - 1);
    const part = Math.min(Math.max((event.clientX - box.left - this.left) / this.width, 0), 0.999999);
    return this.range.from + ((row + part) / this.rows) * this.range.length;
  }

  draw() {
    const { run, state } = this.view;
    if (!state || this.container.clientWidth === 0) return;
    const ratio = window.devicePixelRatio || 1;
    const height = this.rows * this.rowHeight;
    this.container.style.height = `${height}px`;
    this.canvas.width = Math.round(this.container.clientWidth * ratio);
    this.canvas.height = Math.round(height * ratio);
    const paint = this.canvas.getContext('2d');
    const colour = colours();
    this.drawCells(paint, ratio, colour);
    paint.scale(ratio, ratio);
    this.drawBorders(paint, colour);
    if (this.left > 0) {
      paint.font = '11px ui-monospace, monospace';
      paint.fillStyle = colour.muted;
      paint.textBaseline = 'middle';
      for (let row = 0; row < this.rows; row += 1) {
        const place = this.range.from + (row / this.rows) * this.range.length;
        paint.fillText(run.address(place), 0, (row + 0.5) * this.rowHeight);
      }
    }
  }

  /** How much of each cell, a pixel wide and a row high, belongs to blocks, pending frees and mappings. */
  covered(columns) {
    const { run, state } = this.view;
    const cells = columns * this.rows;
    const [alive, pending, mapped] = [0, 1, 2].map(() => new Float32Array(cells));
    const scale = cells / this.range.length;
    const add = (to, place, bytes) => {
      const from = Math.max((place - this.range.from) * scale, 0);
      const end = Math.min((place + bytes - this.range.from) * scale, cells);
      for (let i = Math.floor(from); i < end; i += 1) to[i] += Math.min(end, i + 1) - Math.max(from, i);
    };
    const { place, bytes, requested } = run.blocks;
    for (const block of state.placed) {
      add(requested[block] <= state.event ? pending : alive, place[block], bytes[block]);
    }
    for (const mapping of state.mapped) add(mapped, run.mappings.place[mapping], run.mappings.bytes[mapping]);
    return { alive, pending, mapped };
  }

  drawCells(paint, ratio, colour) {
    const columns = Math.floor(this.width * ratio);
    const left = this.canvas.width - columns;
    const { alive, pending, mapped } = this.covered(columns);
    const rowPixels = Math.round(this.rowHeight * ratio);
    const [ofBlock, ofPending, ofFree, ofNothing] =
      [colour.block, colour.pending, colour.free, colour.unmapped].map(channels);
    for (let row = 0; row < this.rows; row += 1) {
      // Two pixels are left between rows.
      const image = paint.createImageData(columns, Math.max(rowPixels - 2, 1));
      const { data } = image;
      for (let x = 0; x < columns; x += 1) {
        const cell = row * columns + x;
        const blocks = Math.min(alive[cell], 1);
        const waits = Math.min(pending[cell], 1 - blocks);
        const free = Math.max(Math.min(mapped[cell], 1) - blocks - waits, 0);
        const nothing = 1 - blocks - waits - free;
        for (let c = 0; c < 3; c += 1) {
          data[x * 4 + c] = blocks * ofBlock[c] + waits * ofPending[c] + free * ofFree[c] + nothing * ofNothing[c];
        }
        data[x * 4 + 3] = 255;
      }
      for (let y = 1; y < image.height; y += 1) data.copyWithin(y * columns * 4, 0, columns * 4);
      paint.putImageData(image, left, Math.round(row * this.rowHeight * ratio));
    }
  }

  /** The parts of places in the rows, in pixels. */
  boxes(from, to) {
    const boxes = [];
    const scale = this.rows / this.range.length;
    const [first, last] = [from, to].map((place) => Math.min(Math.max((place - this.range.from) * scale, 0), this.rows));
    for (let row = Math.floor(first); row < last; row += 1) {
      const start = Math.max(first, row) - row;
      const end = Math.min(last, row + 1) - row;
      boxes.push({ x: this.left + start * this.width, y: row * this.rowHeight, width: (end - start) * this.width });
    }
    return boxes;
  }

  /** Between blocks that are wide enough, at jumps of the address, and around the selected block. */
  drawBorders(paint, colour) {
    const { run, state, selected } = this.view;
    const { place, bytes } = run.blocks;
    const wide = (3 / this.width / this.rows) * this.range.length;
    const height = this.rowHeight - 2 / (window.devicePixelRatio || 1);
    paint.fillStyle = colour.back;
    for (const block of state.placed) {
      const from = place[block];
      if (bytes[block] < wide || from < this.range.from || from >= this.range.to) continue;
      const [box] = this.boxes(from, from + bytes[block]);
      if (box) paint.fillRect(Math.round(box.x), box.y, 1, height);
    }
    const jumps = run.extents.filter((extent) => extent.place > this.range.from && extent.place < this.range.to);
    paint.fillStyle = colour.text;
    if (jumps.length <= 200) {
      for (const jump of jumps) {
        const [box] = this.boxes(jump.place, jump.place + jump.bytes);
        if (box) paint.fillRect(Math.round(box.x) - 1, box.y, 2, height);
      }
    }
    if (selected === null) return;
    paint.strokeStyle = colour.selected;
    paint.lineWidth = 2.5;
    const outside = place[selected] > this.range.to || place[selected] + bytes[selected] < this.range.from;
    for (const box of outside ? [] : this.boxes(place[selected], place[selected] + bytes[selected])) {
      paint.strokeRect(box.x - 0.5, box.y, Math.max(box.width, 4), height);
    }
  }

  /** The block under a pointer: the one at that place, or the largest in that pixel. */
  blockUnder(event) {
    const place = this.placeUnder(event);
    const pixel = this.range.length / (this.width * this.rows);
    const exact = this.view.state.blockWithin(place, place + 1);
    return exact >= 0 ? exact : this.view.state.blockWithin(place - pixel, place + pixel);
  }

  pick(event) {
    const block = this.blockUnder(event);
    if (block >= 0) this.view.select(block);
  }

  tell(event) {
    const { run, state } = this.view;
    if (!event || !state) {
      this.readout.textContent = this.hint;
      return;
    }
    const place = this.placeUnder(event);
    const block = this.blockUnder(event);
    const address = run.address(place);
    if (block >= 0) {
      const isPending = run.blocks.requested[block] <= state.event;
      const name = run.origins[run.blocks.origin[block]].split(';')[0];
      const parts = [`block of ${bytesText(run.blocks.bytes[block])}`,
        `stream ${run.streams[run.blocks.stream[block]]}`];
      if (isPending) parts.push('free pending');
      if (name) parts.push(name);
      this.readout.textContent = `${address}: ${parts.join(', ')}`;
      return;
    }
    const piece = state.free.find(([from, to]) => place >= from && place < to);
    const nothing = run.hasMaps ? 'not mapped' : 'no block';
    this.readout.textContent = `${address}: ${piece ? `free piece of ${bytesText(piece[1] - piece[0])}` : nothing}`;
  }

  get hint() {
    const cuts = this.view.run.extents.length - 1;
    const jump = cuts > 0 ? ` A thick line is a jump of the address: ${plural(cuts, 'wide gap')} left out.` : '';
    return `Each row goes on in the next one.${jump} Click on a block for its details; wheel and drag as above.`;
  }
}

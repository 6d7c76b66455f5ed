// Curves over time.

const MARGIN = { left: 68, right: 12, top: 10, bottom: 24 };

/** The common axis of all charts: nanoseconds, or numbers of events. */
class TimeAxis {
  constructor(runs) {
    this.runs = runs;
    this.duration = Math.max(...runs.map((run) => run.duration));
    this.events = Math.max(...runs.map((run) => run.events));
    this.hasTimes = this.duration > 0;
    this.byEvent = !this.hasTimes;
    this.range = new Range(0, ...this.bounds());
  }

  bounds() {
    return this.byEvent ? [this.events, Math.min(this.events, 4)] : [this.duration, Math.min(this.duration, 100)];
  }

  /** Nanoseconds or events; shows what was shown, in the other measure. */
  use(byEvent) {
    const [run] = this.runs;
    const wasWhole = this.range.isWhole;
    const from = this.eventAt(run, this.range.from);
    const to = this.eventAt(run, this.range.to);
    this.byEvent = byEvent;
    this.range.replace(0, ...this.bounds());
    if (!wasWhole) this.range.set(this.place(run, from), this.place(run, to));
  }

  place(run, event) {
    return this.byEvent ? event : run.times[event];
  }

  /** The last event at or before a place. */
  eventAt(run, place) {
    if (!this.byEvent) return Math.max(lastAtMost(run.times, place), 0);
    return Math.min(Math.max(Math.floor(place), 0), run.events - 1);
  }

  /** Whether the run is over at this place. */
  isBehind(run, place) {
    return place > (this.byEvent ? run.events : run.duration);
  }

  text(place, decimals) {
    return this.byEvent ? countText(Math.round(place)) : secondsText(place, decimals);
  }

  get shownText() {
    const { from, to } = this.range;
    if (this.byEvent) return `events ${countText(Math.floor(from))} to ${countText(Math.ceil(to))} of ${countText(this.events)}`;
    const decimals = decimalsFor(this.range.length / 100 / 1e9);
    return `${secondsText(from, decimals)} to ${secondsText(to, decimals)} of ${secondsText(this.duration, 3)}`;
  }
}

/** How many decimals tell steps of this size apart. */
function decimalsFor(step) {
  return Math.min(Math.max(Math.ceil(-Math.log10(step) - 1e-9), 0), 9);
}

/** 1, 2 or 5 times a power of ten, at most `most` of them in `length`. */
function decimalStep(length, most) {
  const rough = length / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((times) => times * power).find((step) => step >= rough * (1 - 1e-9));
}

/** A power of two, at most `most` of them in `length`. */
function binaryStep(length, most) {
  return Math.max(2 ** Math.ceil(Math.log2(length / most)), 1);
}

const FORMS = {
  bytes: { text: bytesText, step: (length) => binaryStep(length, 6), fromZero: true, least: 1 },
  part: { text: (part) => `${Math.round(part * 100)} %`, step: () => 0.5, fromZero: true, most: 1 },
  count: { text: countText, step: (length) => Math.max(decimalStep(length, 3), 1), fromZero: false, least: 1 },
};

/**
 * One chart. `view` has the run, the axis, the moment and the selected block; `curves` are { steps, kind, name }, the
 * last one on top; `marks` are { events, kind }.
 */
class Chart {
  constructor(container, view, { curves, marks = [], form, label, height, peaks }) {
    Object.assign(this, { container, view, curves, marks, height });
    this.form = FORMS[form];
    this.peaks = peaks ?? (() => this.extremes());
    this.canvas = element('canvas', { role: 'img', 'aria-label': label, 'aria-describedby': 'hint' });
    this.tip = element('div', { className: 'tip', hidden: true });
    const over = (className) => element('div', { className, hidden: true });
    this.over = { span: over('life'), selection: over('selection'), cursor: over('cursor'), moment: over('moment') };
    container.replaceChildren(this.canvas, ...Object.values(this.over), this.tip);
    container.style.height = `${height}px`;
    this.redraw = coalesced(() => this.draw());
    zoomable(this.canvas, view.axis.range, {
      width: () => this.plot.width,
      place: (event) => this.placeAt(event.clientX - this.canvas.getBoundingClientRect().left),
      select: (from, to) => this.showSpan(this.over.selection, from, to),
      hover: (event) => this.showTip(event),
      click: (event) => view.choose(this.eventUnder(event)),
      key: view.key,
    });
    new ResizeObserver(() => this.redraw()).observe(container);
  }

  get plot() {
    const { left, right, top, bottom } = MARGIN;
    return {
      left,
      top,
      width: Math.max(this.container.clientWidth - left - right, 10),
      height: this.height - top - bottom,
    };
  }

  placeAt(x) {
    const { range } = this.view.axis;
    const { left, width } = this.plot;
    const part = Math.min(Math.max((x - left) / width, 0), 1);
    return range.from + part * range.length;
  }

  xOf(place) {
    const { range } = this.view.axis;
    const { left, width } = this.plot;
    return left + ((place - range.from) / range.length) * width;
  }

  eventUnder(event) {
    const place = this.placeAt(event.clientX - this.canvas.getBoundingClientRect().left);
    return this.view.axis.eventAt(this.view.run, place);
  }

  /** The last event of each border between columns of pixels. */
  edges() {
    const { axis, run } = this.view;
    const { width } = this.plot;
    const columns = Math.floor(width);
    const edges = new Int32Array(columns + 1);
    let end = columns;
    for (let i = 0; i <= columns; i += 1) {
      const place = axis.range.from + (i / columns) * axis.range.length;
      edges[i] = axis.eventAt(run, place);
      if (end === columns && axis.isBehind(run, place)) end = i;
    }
    return { edges, end };
  }

  /** The least and the greatest value that is shown, of all curves. */
  extremes() {
    const { axis, run } = this.view;
    const [from, to] = [axis.range.from, axis.range.to].map((place) => axis.eventAt(run, place));
    const out = { low: 0, high: 0 };
    let low = Infinity;
    let high = -Infinity;
    for (const { steps } of this.curves) {
      const last = steps.index(to);
      if (last < 0) continue;
      steps.extremes(Math.max(steps.index(from), 0), last, out);
      low = Math.min(low, out.low);
      high = Math.max(high, out.high);
    }
    return low <= high ? { low, high } : { low: 0, high: 1 };
  }

  draw() {
    const ratio = window.devicePixelRatio || 1;
    const width = this.container.clientWidth;
    if (width === 0) return;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    const paint = this.canvas.getContext('2d');
    paint.scale(ratio, ratio);
    const colour = colours();
    const scale = this.scale();
    this.drawGrid(paint, colour, scale);
    const shown = this.edges();
    for (const curve of this.curves) this.drawCurve(paint, colour, scale, curve, shown);
    this.drawMarks(paint, colour, shown);
    this.drawMoment(paint, colour, scale);
    this.placeOverlays();
  }

  /** From values to pixels. */
  scale() {
    const { form } = this;
    let { low, high } = this.peaks();
    if (form.fromZero) low = 0;
    high = form.most ?? Math.max(high + (high - low) * 0.06, low + (form.least ?? 0));
    const { top, height } = this.plot;
    return { low, high, step: form.step(high - low), y: (value) => top + height * (1 - (value - low) / (high - low)) };
  }

  drawGrid(paint, colour, { low, high, step, y }) {
    const { left, top, width, height } = this.plot;
    paint.font = '12px system-ui, sans-serif';
    paint.strokeStyle = colour.line;
    paint.fillStyle = colour.muted;
    paint.lineWidth = 1;
    paint.textAlign = 'right';
    paint.textBaseline = 'middle';
    const line = (x, y1, x2, y2) => {
      paint.beginPath();
      paint.moveTo(x, y1);
      paint.lineTo(x2, y2);
      paint.stroke();
    };
    for (let value = Math.ceil(low / step) * step; value <= high * (1 + 1e-9); value += step) {
      const at = Math.round(y(value)) + 0.5;
      line(left, at, left + width, at);
      paint.fillText(this.form.text(value), left - 6, Math.max(at, 8));
    }
    const { axis } = this.view;
    const { range } = axis;
    const { tick, decimals } = this.ticks(paint);
    paint.textBaseline = 'top';
    for (let place = Math.ceil(range.from / tick) * tick; place <= range.to; place += tick) {
      const at = Math.round(this.xOf(place)) + 0.5;
      line(at, top, at, top + height + 4);
      const text = axis.text(place, decimals);
      const half = paint.measureText(text).width / 2;
      paint.textAlign = 'center';
      paint.fillText(text, Math.min(Math.max(at, half), left + width + MARGIN.right - half), top + height + 7);
    }
  }

  /** As many ticks on the time axis as their texts leave room for. */
  ticks(paint) {
    const { axis } = this.view;
    const { width } = this.plot;
    for (let most = Math.max(Math.min(Math.floor(width / 48), 10), 2); ; most -= 1) {
      const tick = Math.max(decimalStep(axis.range.length, most), axis.byEvent ? 1 : 0);
      const decimals = decimalsFor(tick / 1e9);
      const needed = paint.measureText(axis.text(axis.range.to, decimals)).width + 20;
      if (most <= 1 || (tick / axis.range.length) * width >= needed) return { tick, decimals };
    }
  }

  /** Dots on the curves at the moment. */
  drawMoment(paint, colour, { y }) {
    const { axis, run, moment } = this.view;
    if (moment === null) return;
    const place = axis.place(run, moment);
    if (place < axis.range.from || place > axis.range.to) return;
    for (const { steps, kind } of this.curves) {
      const value = steps.at(moment);
      if (value === null) continue;
      paint.beginPath();
      paint.arc(this.xOf(place), y(value), 4, 0, 2 * Math.PI);
      paint.fillStyle = colour[kind];
      paint.fill();
      paint.strokeStyle = colour.back;
      paint.stroke();
    }
  }

  drawCurve(paint, colour, { low: base, y }, { steps, kind }, { edges, end }) {
    const { left } = this.plot;
    const out = { low: 0, high: 0 };
    const path = new Path2D();
    let begin = -1;
    for (let i = 0; i < end; i += 1) {
      const to = steps.index(edges[i + 1]);
      if (to < 0) continue;
      const from = Math.max(steps.index(edges[i]), 0);
      steps.extremes(from, to, out);
      const x = left + i + 0.5;
      if (begin < 0) {
        begin = x;
        path.moveTo(x, y(steps.values[from]));
      }
      path.lineTo(x, y(steps.values[from]));
      if (from !== to) {
        path.lineTo(x, y(out.high));
        path.lineTo(x, y(out.low));
        path.lineTo(x, y(steps.values[to]));
      }
    }
    if (begin < 0) return;
    paint.strokeStyle = colour[kind];
    paint.lineWidth = 1.5;
    paint.lineJoin = 'round';
    if (kind === 'reserved') {
      const area = new Path2D(path);
      area.lineTo(left + end - 0.5, y(base));
      area.lineTo(begin, y(base));
      paint.globalAlpha = 0.22;
      paint.fillStyle = colour[kind];
      paint.fill(area);
      paint.globalAlpha = 1;
    }
    paint.stroke(path);
  }

  /** Triangles at the bottom, at most one a column of pixels. */
  drawMarks(paint, colour, { edges, end }) {
    const { left, top, height } = this.plot;
    for (const { events, kind } of this.marks) {
      paint.fillStyle = colour[kind];
      for (let i = 0; i < end; i += 1) {
        // The first column has its own first event, too.
        const before = lastAtMost(events, i === 0 ? edges[0] - 1 : edges[i]);
        if (lastAtMost(events, edges[i + 1]) === before) continue;
        const x = left + i + 0.5;
        paint.beginPath();
        paint.moveTo(x, top + height - 9);
        paint.lineTo(x - 5, top + height);
        paint.lineTo(x + 5, top + height);
        paint.fill();
      }
    }
  }

  /** A part of the axis as a box; hidden without `from`. */
  showSpan(box, from, to = from) {
    const { left, width, top, height } = this.plot;
    if (from === null) {
      box.hidden = true;
      return;
    }
    const [first, last] = [this.xOf(Math.min(from, to)), this.xOf(Math.max(from, to))];
    box.hidden = last < left || first > left + width;
    const start = Math.max(first, left);
    box.style.left = `${start}px`;
    box.style.width = `${Math.max(Math.min(last, left + width) - start, 0)}px`;
    box.style.top = `${top}px`;
    box.style.height = `${height}px`;
  }

  placeOverlays() {
    const { axis, run, moment, selected } = this.view;
    this.showSpan(this.over.moment, moment === null ? null : axis.place(run, moment));
    if (selected === null || selected === undefined) {
      this.over.span.hidden = true;
      return;
    }
    const { allocated, freed } = run.blocks;
    const end = freed[selected] < run.events ? axis.place(run, freed[selected]) : axis.range.most;
    this.showSpan(this.over.span, axis.place(run, allocated[selected]), end);
  }

  showTip(pointer) {
    this.tip.hidden = pointer === null || pointer.pointerType === 'touch';
    this.over.cursor.hidden = this.tip.hidden;
    if (this.tip.hidden) return;
    const { axis, run } = this.view;
    const x = pointer.clientX - this.canvas.getBoundingClientRect().left;
    const place = this.placeAt(x);
    this.showSpan(this.over.cursor, place);
    const event = axis.eventAt(run, place);
    const lines = [`${secondsText(run.times[event])}, event ${countText(event + 1)}`];
    for (const { steps, name } of [...this.curves].reverse()) {
      const value = steps.at(event);
      if (value !== null) lines.push(`${name}: ${this.form.text(value)}`);
    }
    this.tip.textContent = lines.join('\n');
    const width = this.tip.offsetWidth;
    const fits = x + 14 + width < this.container.clientWidth;
    this.tip.style.left = `${Math.max(fits ? x + 14 : x - 14 - width, 0)}px`;
    this.tip.style.top = `${MARGIN.top + 4}px`;
  }
}

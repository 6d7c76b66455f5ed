// A part of an axis that is shown, and the ways to change it.

class Range {
  constructor(from, to, smallest) {
    this.listeners = [];
    this.replace(from, to, smallest);
  }

  /** Another axis, all of it shown. */
  replace(from, to, smallest) {
    this.least = from;
    this.most = Math.max(to, from + smallest);
    this.smallest = smallest;
    this.set(from, to);
  }

  get length() {
    return this.to - this.from;
  }

  get isWhole() {
    return this.from === this.least && this.to === this.most;
  }

  /** Shows this part, moved and limited so that it fits. */
  set(from, to) {
    const whole = this.most - this.least;
    const length = Math.min(Math.max(to - from, this.smallest), whole);
    const middle = (from + to) / 2;
    this.from = Math.min(Math.max(middle - length / 2, this.least), this.most - length);
    this.to = this.from + length;
    for (const listener of this.listeners) listener();
  }

  reset() {
    this.set(this.least, this.most);
  }

  /** Shows `factor` times as much; `about` stays where it is. */
  zoom(factor, about = (this.from + this.to) / 2) {
    const length = Math.min(Math.max(this.length * factor, this.smallest), this.most - this.least);
    const scale = length / this.length;
    const from = about - (about - this.from) * scale;
    this.set(from, from + length);
  }

  /** Moves by this part of what is shown. */
  pan(part) {
    const step = Math.min(Math.max(this.length * part, this.least - this.from), this.most - this.to);
    this.set(this.from + step, this.to + step);
  }

  /** Makes `place` visible. */
  reveal(place) {
    if (place >= this.from && place <= this.to) return;
    this.set(place - this.length / 2, place + this.length / 2);
  }
}

/** Zooms in and out with the keys of the page; whether the key was one. */
function rangeKey(range, key) {
  const actions = {
    '+': () => range.zoom(0.5),
    '=': () => range.zoom(0.5),
    '-': () => range.zoom(2),
    0: () => range.reset(),
    Home: () => range.reset(),
    ArrowLeft: () => range.pan(-0.2),
    ArrowRight: () => range.pan(0.2),
  };
  actions[key]?.();
  return key in actions;
}

/** One notch of a wheel is 100 pixels in most browsers. */
function wheelFactor(event) {
  const pixels = event.deltaMode === 0 ? event.deltaY : event.deltaY * 30;
  return Math.exp(Math.min(Math.max(pixels, -400), 400) / 400);
}

const CLICK = 4;

/**
 * Wheel, drag and keys of a canvas. `place` gives the place on the axis of a pointer event; `click` and `hover` get
 * events. With `select`, a drag selects a span; without, it moves.
 */
function zoomable(canvas, range, { place, click, hover, select, width, key }) {
  canvas.tabIndex = 0;
  let start = null;
  canvas.addEventListener('wheel', (event) => {
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) range.pan(event.deltaX / width());
    else range.zoom(wheelFactor(event), place(event));
  }, { passive: false });
  canvas.addEventListener('pointerdown', (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    start = { x: event.clientX, from: range.from, to: range.to, place: place(event), moved: false };
    start.selects = Boolean(select) && !event.shiftKey;
  });
  canvas.addEventListener('pointermove', (event) => {
    hover?.(event);
    if (!start) return;
    const pixels = event.clientX - start.x;
    start.moved ||= Math.abs(pixels) > CLICK;
    if (!start.moved) return;
    if (start.selects) {
      select(start.place, place(event));
    } else {
      const step = -(pixels / width()) * (start.to - start.from);
      range.set(start.from + step, start.to + step);
    }
  });
  canvas.addEventListener('pointerup', (event) => {
    if (!start) return;
    const { moved, selects, place: from } = start;
    start = null;
    if (!moved) {
      click(event);
    } else if (selects) {
      select(null);
      range.set(Math.min(from, place(event)), Math.max(from, place(event)));
    }
  });
  canvas.addEventListener('pointercancel', () => {
    start = null;
    select?.(null);
  });
  canvas.addEventListener('pointerleave', () => hover?.(null));
  canvas.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (rangeKey(range, event.key) || key?.(event.key)) event.preventDefault();
  });
}

// A list that is sorted, filtered and searched: only the rows that can be seen exist, so that five thousand cost what twenty cost.

import { el, fill, say } from "./dom.js";
import { count, plural } from "./format.js";

const OVERSCAN = 6;

export class List {
  /**
   * @param {string} label what is listed; its class is `kind`
   * @param columns triples of a key, a head and what it is sorted by; the first is the name
   * @param heads elements between the first column and the others
   * @param filters triples of a key, a label and a test; the first takes all
   * @param none what is said of a filter that leaves nothing, by its key
   * @param nouns what is counted: one, many
   * @param textOf what a search looks at, in small letters
   * @param keyOf an item's key
   * @param makeRow makes an item's row: `element`, `link`, and draw(item)
   * @param actions elements at the end of the tools
   */
  constructor({ label, kind, columns, heads = [], filters, none, nouns, textOf, keyOf, makeRow, sort = columns[0][0], down = false, actions = [] }) {
    Object.assign(this, { columns, filters, none, nouns, textOf, keyOf, makeRow, sort, down });
    /** Said behind the number of all. */
    this.note = "";
    this.filter = filters[0][0];
    this.items = [];
    this.shown = [];
    this.rows = new Map();
    this.search = el("input", {
      type: "search", placeholder: `Search ${nouns[1]}`, "aria-label": `Search ${nouns[1]}`, "aria-keyshortcuts": "/", autocomplete: "off", spellcheck: "false",
      input: () => this.draw(), keydown: (event) => event.key === "Escape" && this.#clear(event),
    });
    this.buttons = filters.map(([key, text]) => el("button", { type: "button", "aria-pressed": "false", click: () => this.#filter(key) }, text));
    this.heads = columns.map(([key, text]) =>
      el(`span.c-${key}`, { role: "columnheader", "aria-sort": "none" }, el("button", { type: "button", click: () => this.#sort(key) }, text)));
    const head = el("div.thead", { role: "row", "aria-rowindex": 1 }, this.heads[0], heads, this.heads.slice(1));
    this.body = el("div.tbody", { role: "rowgroup" });
    this.table = el(`div.table.${kind}`, { role: "table", "aria-label": label }, el("div.headgroup", { role: "rowgroup" }, head), this.body);
    this.empty = el("div.empty", { hidden: true });
    this.total = el("span.muted.number", { role: "status" });
    this.element = el(
      "section", {},
      el("div.row.tools", {}, this.search, el("div.segmented", { role: "group", "aria-label": "Show" }, this.buttons), this.total, el("span.grow"), actions),
      this.table, this.empty,
    );
    this.element.addEventListener("keydown", (event) => this.#arrows(event));
    this.onscroll = () => this.#window();
  }

  shownNow() {
    addEventListener("scroll", this.onscroll, { passive: true });
    addEventListener("resize", this.onscroll);
    if (this.scroll) requestAnimationFrame(() => scrollTo(0, this.scroll));
  }

  hiddenNow() {
    this.scroll = scrollY;
    removeEventListener("scroll", this.onscroll);
    removeEventListener("resize", this.onscroll);
  }

  #clear(event) {
    event.stopPropagation();
    if (this.search.value) {
      this.search.value = "";
      this.draw();
    } else {
      this.search.blur();
    }
  }

  #filter(key) {
    this.filter = key;
    this.draw();
  }

  /** Show the items of one filter, for a link that speaks of them. */
  only(key) {
    if (!this.filters.some(([known]) => known === key)) return;
    this.search.value = "";
    this.#filter(key);
  }

  #sort(key) {
    this.down = this.sort === key ? !this.down : key !== this.columns[0][0];
    this.sort = key;
    this.draw();
  }

  #arrows(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    const inSearch = event.target === this.search;
    if (step === undefined || event.altKey || event.ctrlKey || event.metaKey || (inSearch && event.key !== "ArrowDown") || !this.shown.length) return;
    const at = this.#focused();
    if (at < 0 && !inSearch) return;
    event.preventDefault();
    this.focus(Math.max(0, Math.min(this.shown.length - 1, at < 0 ? 0 : at + step)));
  }

  /** The place of the row whose link has the focus, -1 for none. */
  #focused() {
    const active = document.activeElement;
    if (!active?.classList.contains("rowlink")) return -1;
    return this.shown.findIndex((item) => this.rows.get(this.keyOf(item))?.link === active);
  }

  focus(index) {
    const top = this.body.getBoundingClientRect().top + scrollY + index * this.height;
    const margin = 2 * this.height + 4; // behind it is the head of the page, and that of the list
    if (top - margin < scrollY) scrollTo(0, top - margin);
    else if (top + margin + this.height > scrollY + innerHeight) scrollTo(0, top + margin + this.height - innerHeight);
    this.#window();
    this.rows.get(this.keyOf(this.shown[index]))?.link.focus({ preventScroll: true });
  }

  /** Show these items, or those of the last time again. */
  draw(items = this.items) {
    this.items = items;
    const text = this.search.value.trim().toLowerCase();
    const [, , wanted] = this.filters.find(([key]) => key === this.filter);
    const [, , by] = this.columns.find(([key]) => key === this.sort);
    const found = items.filter((item) => wanted(item) && this.textOf(item).includes(text));
    const keyed = found.map((item) => [by(item), this.keyOf(item), item]);
    keyed.sort(([a, one], [b, two]) => (a < b ? -1 : a > b ? 1 : one < two ? -1 : 1));
    this.shown = keyed.map(([, , item]) => item);
    if (this.down) this.shown.reverse();
    this.columns.forEach(([key], i) => {
      this.heads[i].setAttribute("aria-sort", key === this.sort ? (this.down ? "descending" : "ascending") : "none");
    });
    this.filters.forEach(([key, label, test], i) => {
      const many = i === 0 ? 0 : items.filter(test).length;
      say(this.buttons[i], many ? `${label} ${count(many)}` : label);
      this.buttons[i].setAttribute("aria-pressed", String(key === this.filter));
    });
    const all = [plural(items.length, ...this.nouns), this.note].filter(Boolean).join(", ");
    say(this.total, found.length === items.length ? all : `${count(found.length)} of ${all}`);
    this.table.setAttribute("aria-rowcount", found.length + 1);
    this.empty.hidden = found.length > 0;
    this.table.hidden = found.length === 0;
    if (!found.length) fill(this.empty, text ? `No ${this.nouns[0]} matches “${this.search.value.trim()}”.` : this.none[this.filter]);
    this.#window();
  }

  /** Make the rows that can be seen, drop the others; the one with the focus stays. */
  #window() {
    this.height = Number.parseFloat(getComputedStyle(this.table).getPropertyValue("--row")) || 44;
    this.body.style.height = `${this.shown.length * this.height}px`;
    const top = this.body.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(-top / this.height) - OVERSCAN);
    const last = Math.max(0, Math.min(this.shown.length, Math.ceil((innerHeight - top) / this.height) + OVERSCAN)); // the list may be far below
    const kept = this.#focused();
    const link = document.activeElement;
    const indices = [];
    for (let i = first; i < last; i += 1) indices.push(i);
    if (kept >= 0 && kept < first) indices.unshift(kept);
    else if (kept >= last) indices.push(kept);
    const seen = new Set(indices.map((i) => this.keyOf(this.shown[i])));
    for (const [key, row] of this.rows) {
      if (seen.has(key)) continue;
      row.element.remove();
      this.rows.delete(key);
    }
    let next = this.body.firstChild;
    for (const i of indices) {
      const row = this.#row(i);
      if (row.element === next) next = next.nextSibling;
      else this.body.insertBefore(row.element, next); // the order of reading is that of the eyes
    }
    if (kept >= 0 && document.activeElement !== link) link.focus({ preventScroll: true });
  }

  #row(index) {
    const item = this.shown[index];
    const key = this.keyOf(item);
    if (!this.rows.has(key)) this.rows.set(key, this.makeRow(item));
    const row = this.rows.get(key);
    row.element.style.transform = `translateY(${index * this.height}px)`;
    row.element.setAttribute("aria-rowindex", index + 2);
    row.draw(item);
    return row;
  }
}

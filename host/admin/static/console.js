// The console's page. Everything that it shows may have been written by a server that means harm, so text only ever
// becomes a text node, and class names and attributes come from this file alone.
"use strict";

const $ = (id) => document.getElementById(id);
const KEEP = "colonnade-console";
const SETTLE = 700; // ms in which a list that moved takes no answer: the press may have been meant for another
const QUIET = 40000; // ms without a sign of life after which the stream counts as broken

// ---- Building ----

/** An element. `props`: class, text, on (event handlers), and attributes; what is null or false is left out. */
function h(tag, props, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.className = value;
    else if (name === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Text that is not ours: kept apart from the direction of what stands around it. */
const foreign = (text, kind) => h("bdi", { class: kind }, String(text ?? ""));

/** The value for a word of a fixed set; anything else is the first. */
const known = (word, words) => (words.includes(word) ? word : words[0]);

const plural = (count, one, many) => `${count} ${count === 1 ? one : many || one + "s"}`;

const badge = (text, look) => h("span", { class: `badge ${look}` }, text);
const wordBadge = (kind, words) => (word) => badge(known(word, words), `${kind}-${known(word, words)}`);
const trustBadge = wordBadge("trust", ["standard", "trusted", "untrusted"]);
const verdictBadge = wordBadge("verdict", ["deny", "ask", "allow"]);
/** What is denied anyhow does not wait for anybody. */
const isHeld = (each) => each.standing !== "approved" && each.verdict !== "deny";
const standingBadge = ({ standing, verdict }) =>
  !isHeld({ standing, verdict }) ? h("span", { class: "soft" }, standing === "approved" ? "approved" : "not approved")
  : badge(known(standing, ["changed", "new"]) === "new" ? "new, held back" : "changed, held back", "standing");

function button(label, look, act, extra) {
  return h("button", { type: "button", class: look, on: { click: act }, ...(extra || {}) }, label);
}

/** A button that asks once more below, since it reaches far: both elements. */
function inTwoSteps(label, part, question, yes, go) {
  const first = button(label, "plain", () => {
    if (!meant()) return;
    for (const each of sure.parentElement.querySelectorAll(":scope > .sure")) each.hidden = each !== sure;
    sure.querySelector("button").focus();
  }, { "data-part": part });
  const sure = h("div", { class: "sure", hidden: true }, h("span", {}, question),
    button(yes, "go", () => { if (meant()) go(); }, { "data-part": `${part}-sure` }),
    button("Not yet", "quiet", () => { sure.hidden = true; first.focus(); }));
  return [first, sure];
}

/** A box of foreign text that scrolls. */
const textBox = (label, part, text, look = "args") => h("pre", { class: look, tabindex: "0", role: "region", "aria-label": label, "data-part": part }, text);

function bytes(count) {
  if (count < 1000) return `${count} B`;
  if (count < 1e6) return `${(count / 1e3).toFixed(count < 1e4 ? 1 : 0)} kB`;
  return `${(count / 1e6).toFixed(1)} MB`;
}

/** What formats numbers or times, made once, and the last text: rows that follow each other have the same time, and
 * toLocaleString makes one for each text, which takes longer than to show it. Not before it is needed, since that is before
 * the first paint. */
function formatter(make) {
  let [made, last, text] = [null, null, ""];
  return (value) => {
    if (value !== last) [last, text] = [value, (made = made || make()).format(value)];
    return text;
  };
}

const number = formatter(() => new Intl.NumberFormat("en"));
const clockOf = formatter(() => new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" }));
const dayOf = formatter(() => new Intl.DateTimeFormat([], { dateStyle: "medium", timeStyle: "short", hourCycle: "h23" }));
const clock = (t) => clockOf(Math.floor(t) * 1000);
const day = (t) => dayOf(Math.floor(t / 60) * 60000);

function time(t) {
  const today = new Date(t * 1000).toDateString() === new Date().toDateString();
  return h("time", { datetime: new Date(t * 1000).toISOString(), title: day(t) }, today ? clock(t) : day(t));
}

function left(until) {
  const seconds = Math.max(0, Math.round(until - Date.now() / 1000));
  return `${seconds >= 120 ? plural(Math.round(seconds / 60), "minute") : `${seconds} s`} left`;
}

const KINDS = { tool: "tool", prompt: "prompt", resource: "resource", template: "template", instructions: "instructions",
  launch: "program", sampling: "sampling", form: "form", url: "page to visit", roots: "roots" };
const kindName = (kind) => KINDS[kind] || "entry";
const SCOPES = { once: "once", session: "for one session", time: "for a time", always: "always" };

/** Say something to whoever listens instead of looking. */
function say(text) {
  $("say").textContent = "";
  setTimeout(() => { if (secret !== null) $("say").textContent = text; }, 50);
}

/** Something that opens. What is in it is built when it is opened first: there may be hundreds. */
function folded(look, part, summary, build) {
  const made = h("details", { class: look, "data-part": part, on: { toggle: () => { if (made.open) fill(); } } }, h("summary", {}, summary));
  const fill = () => {
    if (made.childNodes.length > 1) return;
    made.append(...[build()].flat());
    disableUntilSettled();
  };
  made.fill = fill;
  return made;
}

function unfold(details) {
  if (details.fill) details.fill();
  details.open = true;
}

/** Keep the children of a box in step with items: what did not change stays as it is, with its focus and its fields. What
 * did is built anew, or brought up to date if there is an `update`. Without `keyOf`, items are what they say. */
function keep(box, items, keyOf, build, empty, update) {
  const before = box.kept || new Map();
  const after = new Map();
  const active = document.activeElement;
  let focus = null;
  for (const item of items) {
    let key = keyOf ? keyOf(item) : JSON.stringify(item);
    while (!keyOf && after.has(key)) key += " "; // two alike are two
    const old = before.get(key);
    if (old && (!keyOf || same(old.item, item))) { after.set(key, old); continue; }
    if (old && update) {
      update(old.element, item);
      after.set(key, { item, element: old.element });
      continue;
    }
    const made = build(item, key);
    if (old) {
      const opened = new Set([old.element, ...old.element.querySelectorAll("details")].filter((each) => each.open).map((each) => each.dataset.part));
      for (const each of [made, ...made.querySelectorAll("details[data-part]")])
        if (each.dataset.part && opened.has(each.dataset.part)) unfold(each);
      const part = old.element.contains(active) ? active.dataset.part : undefined;
      if (part) focus = [...made.querySelectorAll("[data-part]")].find((each) => each.dataset.part === part);
    }
    after.set(key, { item, element: made });
  }
  const moved = [...before.keys()].some((key) => !after.has(key));
  box.kept = after;
  const wanted = new Set([...after.values()].map((each) => each.element));
  if (!wanted.size && empty) wanted.add(box.none = box.none || empty());
  for (const node of [...box.childNodes]) if (!wanted.has(node)) node.remove();
  let next = box.firstChild;
  for (const node of wanted) {
    if (node === next) next = next.nextSibling;
    else box.insertBefore(node, next);
  }
  if (focus) focus.focus({ preventScroll: true });
  return moved;
}

/** Whether two values that came as JSON are alike. */
function same(one, other) {
  if (one === other) return true;
  if (typeof one !== "object" || typeof other !== "object" || !one || !other) return false;
  const names = Object.keys(one);
  return names.length === Object.keys(other).length && names.every((name) => same(one[name], other[name]));
}

/** Set the text of an element, if it is another one: what did not change is not laid out again. */
function tell(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const nothing = (title, text) => () => h("div", { class: "nothing" }, h("p", {}, title), text && h("p", { class: "soft" }, text));

// ---- Asking the host ----

let secret = null;
let reader = null; // the caller that has signed in, and whether it sees all calls of the past; null for the owner
let sequence = 0;
let turn = Promise.resolve();
let state = {};
let memory = new Map(); // what was chosen in a confirmation that is not answered yet

function restore() {
  try {
    const kept = JSON.parse(sessionStorage.getItem(KEEP) || "null");
    secret = kept && typeof kept.secret === "string" ? kept.secret : null;
    sequence = kept && Number.isSafeInteger(kept.sequence) ? kept.sequence : 0;
    reader = kept && kept.reader && typeof kept.reader.caller === "string" ? kept.reader : null;
  } catch { secret = null; }
}

function store() {
  if (secret === null) sessionStorage.removeItem(KEEP);
  else sessionStorage.setItem(KEEP, JSON.stringify({ secret, sequence, reader }));
}

const isOwner = () => secret !== null && reader === null;

const COMMON = { cache: "no-store", redirect: "error", credentials: "same-origin", mode: "cors", referrerPolicy: "no-referrer" };

async function send(path, body, headers) {
  const answer = await fetch(path, { ...COMMON, method: "POST", body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", ...headers } });
  let said = {};
  try { said = await answer.json(); } catch { /* not ours to explain */ }
  return { ok: answer.ok, over: said.over === true, said, error: typeof said.error === "string" ? said.error : `the host answered ${answer.status}` };
}

/** Ask for something that changes things, one after the other: a number that grows says that each is new. What may
 * take long holds up the others for a moment only. */
function post(path, body, most) {
  const run = async () => {
    sequence = Math.max(sequence + 1, Date.now());
    store();
    const mine = secret;
    const answer = await send(path, body, { "X-Colonnade-Console": mine || "", "X-Colonnade-Sequence": String(sequence) });
    if (answer.over && mine === secret) close("The session of this page is over."); // a newer link may have opened another
    return answer;
  };
  const asked = turn.then(run, run);
  turn = most === undefined ? asked : Promise.race([asked, turn.catch(() => null).then(() => new Promise((done) => setTimeout(done, most)))]);
  return asked;
}

/** Do it, and say what came of it; `where` is the element whose buttons wait meanwhile. */
async function act(where, path, body) {
  const buttons = [...where.querySelectorAll("button")];
  buttons.forEach((each) => each.setAttribute("aria-disabled", "true"));
  try {
    const answer = await post(path, body);
    toast(answer.ok ? answer.said.done || "Done." : answer.error, answer.ok ? "good" : "bad");
    if (answer.ok) await new Promise((done) => setTimeout(done, 2000)); // what was answered goes away by itself
  } catch {
    toast("The host cannot be reached; nothing was decided.", "bad");
  }
  buttons.forEach((each) => each.removeAttribute("aria-disabled"));
  disableUntilSettled();
}

let toastTimer = 0;
function toast(text, look) {
  if (secret === null) return; // an answer that came after the end
  const old = $("toast");
  if (old) old.remove();
  document.body.append(h("div", { id: "toast", class: `toast ${look}` }, foreign(text)));
  say(text);
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { const shown = $("toast"); if (shown) shown.remove(); }, 6000);
}

// ---- The stream ----

let reading = null;
let tries = 0;

async function follow() {
  if (reading) reading.abort();
  const mine = new AbortController();
  reading = mine;
  let watchdog = 0;
  const alive = () => { clearTimeout(watchdog); watchdog = setTimeout(() => mine.abort(), QUIET); };
  try {
    alive();
    const answer = await fetch("/api/v1/events", { ...COMMON, headers: { "X-Colonnade-Console": secret }, signal: mine.signal });
    if (reading !== mine) return;
    if (answer.status === 403) { close("The session of this page is over."); return; }
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const reader = answer.body.getReader();
    const decoder = new TextDecoder();
    let pieces = []; // of a line: the first one is of megabytes where much is offered
    for (;;) {
      const { done, value } = await reader.read();
      if (done || reading !== mine) break;
      alive();
      const [end, ...lines] = decoder.decode(value, { stream: true }).split("\n");
      pieces.push(end);
      for (const begin of lines) {
        const line = pieces.join("");
        pieces = [begin];
        if (line) news(JSON.parse(line));
      }
    }
  } catch { /* the banner says so */ } finally { clearTimeout(watchdog); }
  if (reading === mine && secret !== null) lost(mine);
}

function news(sections) {
  tries = 0;
  online(true);
  state = { ...state, ...sections };
  show(Object.keys(sections));
}

function lost(stream) {
  online(false);
  const pause = Math.min(15000, 500 * 2 ** tries++);
  setTimeout(() => { if (reading === stream && secret !== null) follow(); }, pause);
}

let isOnline = null;
function online(now) {
  if (isOnline === now) return;
  isOnline = now;
  document.body.classList.toggle("offline", !now);
  $("link").dataset.state = now ? "on" : "off";
  $("link-text").textContent = now ? "live" : "not connected";
  $("banner").hidden = now;
  $("banner").textContent = now ? "" : `The connection to the host is lost. What stands here is as of ${clock(Date.now() / 1000)}, and cannot be answered; trying again…`;
  retitle();
}

// ---- Showing ----

// The first may be answered, so that it does not wait for the others.
const SHOW = { confirmations: showConfirmations, problems: showProblems, configuration: showConfiguration, held: () => showHeld(), servers: showServers, catalog: () => { showCatalog(); for (const each of document.querySelectorAll(".offered")) each.look(); }, views: showViews, grants: showGrants,
  activity: showActivity };

function show(sections) {
  state.held = (state.held || []).filter((each) => each.ready !== false); // the others come once they are compared
  $("main").hidden = false;
  $("closed").hidden = true;
  $("leave").hidden = false;
  offerNotifications();
  if (sections.includes("config")) $("host").replaceChildren(foreign(state.config), h("span", { class: "soft" }, ` · process ${state.pid} · ${state.colonnade}`));
  for (const section of sections) if (SHOW[section]) stale.add(section);
  if (stale.delete("confirmations")) showConfirmations(state.confirmations || []);
  showStale();
  for (const [id, section] of [["n-confirmations", waiting()], ["n-held", state.held], ["n-configuration", state.configuration], ["n-servers", state.servers], ["n-catalog", state.catalog], ["n-grants", state.grants]])
    tell($(id), section && section.length ? String(section.length) : "");
  $("n-confirmations").classList.toggle("hot", waiting().length > 0);
  $("n-held").classList.toggle("hot", (state.held || []).some((each) => !each.rejected));
  retitle();
}

const stale = new Set(); // sections that are still to be shown as they are now
let showing = false;
let hasFormats = false;

/** Show what is stale, section by section, so that no task is long; while nobody can see the page, nothing. A mistake in
 * one section keeps no other from being shown. */
async function showStale() {
  if (showing) return;
  showing = true;
  try {
    if (!hasFormats) {
      await nextTask();
      number(0); // the first text by any of them takes the browser 30 ms
      hasFormats = true;
    }
    for (const section of Object.keys(SHOW)) {
      if (!stale.has(section)) continue;
      await nextTask();
      if (document.visibilityState === "hidden") break;
      if (stale.delete(section)) SHOW[section](state[section] || []);
    }
  } finally {
    showing = false;
    if (stale.size && document.visibilityState !== "hidden") showStale();
  }
}

/** Resolves in a later task; before it, the browser may lay out and paint. Timers would wait longer. */
const nextTask = () => new Promise((done) => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => { port1.close(); done(); };
  port2.postMessage(null);
});

const waiting = () => (state.confirmations || []).filter((each) => each.state === "waiting");

function retitle() {
  const count = waiting().length;
  const title = (secret === null ? "Closed · " : isOnline === false ? "Offline · " : count ? `(${count}) ` : "") + "Colonnade";
  if (document.title !== title) document.title = title;
}

function showProblems(problems) {
  keep($("problems"), problems.map((text) => ({ text })), (each) => each.text, (each) => h("li", {}, foreign(each.text)));
  settleAfter("problems", problems); // they stand above the cards
}

// Confirmations

const announced = new Set();
let settled = 0;

/** Whether a press counts: not in the moment after the cards have moved. */
function meant() {
  if (performance.now() >= settled && isOnline) return true;
  toast(isOnline ? "The list has just changed. Look again, then press again." : "The host cannot be reached; nothing was decided.", "bad");
  return false;
}

const answerButtons = () => document.querySelectorAll("#confirmations button, #refused button, #change-list button, #held button, .offered button");

/** Take no answer for a moment, since cards have moved. */
function settle() {
  settled = performance.now() + SETTLE;
  setTimeout(() => {
    if (performance.now() >= settled - 20) for (const each of answerButtons()) each.removeAttribute("aria-disabled");
  }, SETTLE);
}

const before = {}; // by section, what it showed last

/** Take no answer for a moment if what a section shows moves cards, since it is another than before. */
function settleAfter(section, items) {
  const now = JSON.stringify(items);
  if (now !== before[section]) settle();
  before[section] = now;
  disableUntilSettled();
}

/** Disable the buttons that take no answer yet, also those of a card that was built again meanwhile. */
function disableUntilSettled() {
  if (performance.now() < settled) for (const each of answerButtons()) each.setAttribute("aria-disabled", "true");
}

function showConfirmations(confirmations) {
  const open = confirmations.filter((each) => each.state === "waiting");
  const refused = confirmations.filter((each) => each.state !== "waiting");
  const hadFocus = $("waiting").contains(document.activeElement) && document.activeElement !== $("waiting");
  const fresh = open.filter((each) => !announced.has(each.id));
  const movedOpen = keep($("confirmations"), open, (each) => each.id, confirmationCard,
    nothing("Nothing waits for you.", "When a call needs a person, it appears here by itself. Leave this page open."));
  const movedRefused = keep($("refused"), refused, (each) => each.id, refusedRow);
  for (const each of open) offerToDenyAll(cardOf(each.id), open.filter((other) => other.server === each.server).length);
  if (fresh.length || movedOpen || movedRefused) settle();
  disableUntilSettled();
  for (const each of fresh) announced.add(each.id);
  watchCards();
  if (fresh.length) {
    if (!open.some((each) => isInView(cardOf(each.id))) && !isTyping()) cardOf(fresh[0].id).scrollIntoView({ block: "start" });
    notify(fresh);
  }
  closeNotices(open);
  if (fresh.length) say(`${plural(fresh.length, "new confirmation")}: ${fresh.map((each) => `${each.server}, ${each.name}`).join("; ")}`);
  if (hadFocus && document.activeElement === document.body) {
    const next = document.querySelector("#confirmations h3, #refused h3") || $("waiting");
    next.focus({ preventScroll: true });
  }
  showWanted();
  for (const id of memory.keys()) if (!confirmations.some((each) => each.id === id)) memory.delete(id);
}

const cardOf = (id) => { const kept = $("confirmations").kept; return kept && kept.get(id) ? kept.get(id).element : null; };

/** Whether somebody is writing, so that nothing may move away from under their hands. */
function isTyping() {
  const active = document.activeElement;
  return active instanceof HTMLElement && active.matches("textarea, select, input:not([type=radio])");
}

function isInView(element) {
  const box = element.getBoundingClientRect();
  return box.height > 0 && box.top < innerHeight - 40 && box.bottom > 40;
}

// A line that leads to the first card while no card is in view.

const seen = new Set();
const watcher = new IntersectionObserver((entries) => {
  for (const each of entries) if (each.isIntersecting) seen.add(each.target); else seen.delete(each.target);
  showElsewhere();
});

function watchCards() {
  watcher.disconnect();
  seen.clear();
  for (const each of waiting()) if (cardOf(each.id)) watcher.observe(cardOf(each.id));
  if (!waiting().length) showElsewhere();
}

function showElsewhere() {
  const [first, ...more] = waiting();
  const hidden = !first || seen.size > 0;
  $("elsewhere").hidden = hidden;
  $("elsewhere").replaceChildren();
  if (!hidden) $("elsewhere").append(h("span", {}, foreign(first.name || kindName(first.kind), "strong name"), " of ", foreign(first.server, "strong"),
    more.length ? ` and ${more.length} more wait for you` : " waits for you"), h("span", { class: "show" }, "Show"));
}

function goTo(id) {
  const kept = [$("confirmations"), $("refused")].map((box) => box.kept && box.kept.get(id)).find(Boolean);
  if (!kept) return;
  if (kept.element.matches("details")) unfold(kept.element);
  kept.element.scrollIntoView({ block: "start" });
  kept.element.querySelector("h3").focus({ preventScroll: true });
}

// A link to one confirmation: the page's address with #confirmation=ID. It holds no code, so a tab that is not open asks
// the others of this browser to show it.

const tabs = new BroadcastChannel(KEEP);
const WANTED = 60000; // ms in which it may still come
let wanted = "";

function seek(id) {
  wanted = id;
  setTimeout(() => { if (wanted === id) $("wanted").textContent = wanted = ""; }, WANTED);
  if (!isOwner()) tabs.postMessage({ show: id });
  else showWanted();
}

tabs.onmessage = ({ data }) => {
  if (isOwner() && typeof data.show === "string") {
    tabs.postMessage({ shown: data.show });
    seek(data.show);
  } else if (secret === null && wanted && data.shown === wanted) {
    $("closed-why").textContent = "It is open in another tab of this browser, which shows the confirmation now.";
  }
};

/** Show the confirmation that a link named, once it is there. The buttons rest, since the cards have moved. */
function showWanted() {
  if (!wanted || state.confirmations === undefined) return;
  const found = state.confirmations.some((each) => each.id === wanted);
  $("wanted").textContent = found ? "" : "The confirmation that you were led to is not here: it was answered or ended, or is still to come.";
  if (!found) return;
  if (!isTyping()) goTo(wanted);
  wanted = "";
  settle();
  disableUntilSettled();
}

// Notifications of the browser: asked for once, by a press, and shown while the page is not in front. They hold names
// only, since they may be shown on a locked screen.

const REFUSES_NOTICES = "colonnade-no-notifications";
const notices = new Map();
const clipped = (text, most) => (String(text ?? "").length > most ? `${String(text).slice(0, most)}…` : String(text ?? ""));

function offerNotifications() {
  let refused = true;
  try { refused = sessionStorage.getItem(REFUSES_NOTICES) !== null; } catch { /* then nothing is remembered, and nothing asked */ }
  $("notify").hidden = refused || !("Notification" in window) || Notification.permission !== "default";
}

function refuseNotifications() {
  try { sessionStorage.setItem(REFUSES_NOTICES, "1"); } catch { /* it is asked again */ }
  $("notify").hidden = true;
  $("waiting").focus({ preventScroll: true });
}

async function turnOnNotifications() {
  const answer = await Notification.requestPermission();
  toast(answer === "granted" ? "You will be notified of calls that wait." : "The browser does not permit notifications of this page.", answer === "granted" ? "good" : "bad");
  refuseNotifications(); // asked once, whatever the answer
}

function notify(fresh) {
  if (!("Notification" in window) || Notification.permission !== "granted" || (document.visibilityState === "visible" && document.hasFocus())) return;
  const [first, ...more] = fresh;
  const who = nameless(first.caller) ? "" : `, for ${clipped(first.caller, 60)}`;
  const body = more.length ? `${plural(fresh.length, "call")} of ${clipped([...new Set(fresh.map((each) => each.server))].join(", "), 120)}`
    : `${clipped(first.name || kindName(first.kind), 80)} of ${clipped(first.server, 60)}${who}`;
  try {
    const notice = new Notification(more.length ? "Calls wait for you" : "A call waits for you", { body, tag: `colonnade-${first.id}` });
    notice.onclick = () => { window.focus(); goTo(first.id); notice.close(); };
    for (const each of fresh) notices.set(each.id, notice);
  } catch { /* a browser that only lets service workers notify */ }
}

/** Take back the notifications of what waits no more. */
function closeNotices(open) {
  for (const [id, notice] of notices) {
    if (open.some((each) => each.id === id)) continue;
    notices.delete(id);
    if (![...notices.values()].includes(notice)) notice.close();
  }
}

const ASKED = {
  tool: "wants to call a tool", prompt: "wants to get a prompt", resource: "wants to read a resource",
  template: "wants to read a resource",
};
const ASKED_BACK = {
  sampling: "wants the client's model to write something (sampling)", form: "wants to put a form to the person at the client",
  url: "wants the person at the client to visit a page", roots: "wants to know the client's roots",
};
const CALLS = { tool: "call", prompt: "get", resource: "read", template: "read" };

const nameless = (caller) => !caller || caller === "a client without a token";

/** The client, by the name of its token or by what else is known; its own words are marked as such. */
function clientOf(q, named = "strong") {
  if (!nameless(q.caller)) return foreign(q.caller, named);
  const program = q.process && ["program ", foreign(q.process.program, "mono"), `, process ${q.process.pid}, `];
  if (q.says) return h("span", {}, foreign(q.says, named), " (so it calls itself; ", program, "without a token)");
  return program ? h("span", {}, foreign(q.process.program, named), ` (process ${q.process.pid}, without a token)`) : "a client without a token";
}

/** Colonnade's own words on what is asked. */
function lead(q, back) {
  if (back) return h("p", { class: "lead" }, "The server ", foreign(q.server, "who"), ` ${ASKED_BACK[q.kind]}. `);
  return h("p", { class: "lead" }, clientOf(q, "who"), ` ${ASKED[q.kind] || "wants to use an entry"} of the server `, foreign(q.server, "who"), q.through ? `, through ${q.through}. ` : ". ");
}

let made = 0;

function confirmationCard(q) {
  const back = Object.hasOwn(ASKED_BACK, q.kind);
  const late = q.state !== "waiting";
  const answers = new Set(q.answers || []);
  const title = `confirmation-${++made}`;
  const card = h("article", { class: late ? "card late" : "card ask", "aria-labelledby": title });
  const waits = q.waiting > 1 ? ` ${plural(q.waiting, "call waits", "calls wait")} for this.` : "";
  const words = lead(q, back);
  words.append(late ? "It was refused, and the client has been told." : `It waits for your answer.${waits}`);
  card.append(
    h("header", { class: "card-head" }, words,
      !late && q.until ? h("p", { class: "left", "data-until": q.until, title: `Refused at ${clock(q.until)}` }, left(q.until)) : null),
    h("div", { class: "what" },
      h("h3", { id: title, tabindex: "-1" }, foreign(q.name || kindName(q.kind), "name")),
      h("p", { class: "marks" }, badge(kindName(q.kind), "kind"), trustBadge(q.trust), h("span", { class: "soft" }, "server "), foreign(q.server, "strong"))),
  );
  const facts = h("dl", { class: "facts" });
  const fact = (name, ...value) => facts.append(h("div", {}, h("dt", {}, name), h("dd", {}, value)));
  fact("Why you are asked", foreign(q.rule, "mono"), q.origin ? [" (from ", foreign(q.origin, "mono"), ")"] : null);
  if (q.process) fact("Program", foreign(q.process.program, "strong"), ` (process ${q.process.pid})`, q.process.folder ? [" in ", foreign(q.process.folder, "mono")] : null);
  fact(late ? "Refused because" : "Asked", late ? foreign(q.why) : time(q.asked));
  card.append(facts);
  const label = (text) => h("p", { class: "label" }, text);
  if (q.arguments) card.append(label(`${back ? "What it asks" : "Arguments"}, in full`), ...argumentsOf(q, back));
  else card.append(label(back ? "Nothing else was sent with it." : "There are no arguments."));
  if (q.others) card.append(label("Sent beside the arguments, in full"), textBox("Sent beside the arguments, in full", "others", foreign(q.others)));
  card.append(...serversWords(q));

  const answer = (what, seconds) => async () => {
    if (!meant()) return;
    const body = { id: q.id, answer: what };
    if (what === "session" || what === "time" || what === "always") body.arguments = chosen.bound;
    if (seconds) body.seconds = seconds();
    await act(card, "/api/v1/confirmations/answer", body);
  };
  const chosen = memory.get(q.id) || { bound: "exact", seconds: 900 };
  memory.set(q.id, chosen);

  const lives = q.whole_session ? [["for this session", { answer: "session" }]]
    : q.whole_time ? [["for 15 minutes", { answer: "time", seconds: 900 }], ["for an hour", { answer: "time", seconds: 3600 }]] : [];
  const whole = late ? [] : lives.map(([life, body], at) => {
    const [label, part] = [`Allow this ${kindName(q.kind)} ${life}`, at ? `entry-${at}` : "entry"];
    const allow = () => act(card, "/api/v1/confirmations/answer", { id: q.id, arguments: "any", ...body });
    return q.trust !== "untrusted" ? [button(label, "plain", () => { if (meant()) allow(); }, { "data-part": part })]
      : inTwoSteps(label, part, ["You do not trust this server. Allow ", foreign(q.name, "strong name"), ` with any arguments ${life}?`], "Allow it", allow);
  });
  card.append(h("div", { class: "decide" }, h("div", { class: "answers" },
    answers.has("deny") && button(late ? "Leave it refused" : "Deny", "deny", answer("deny"), { "data-part": "deny" }),
    answers.has("once") && button(late ? "Allow the next identical call once" : "Allow once", "go", answer("once"), { "data-part": "once" }),
    whole.map(([first]) => first),
    !late && answers.has("deny") && button("", "deny-all", () => denyAll(card, q.server), { "data-part": "deny-all", hidden: true })),
    late && h("p", { class: "stored" }, "It is for the same client, exactly these arguments and this definition, and holds for ten minutes from your answer."),
    whole.map(([, sure]) => sure),
    ["session", "time", "always"].some((each) => answers.has(each))
      && folded("more longer", "longer", "Allow for longer", () => lasting(q, answers, chosen, answer, back))));
  arrange(card);
  return card;
}

// Where there is little room, the answers of a card stand above its details; elsewhere at its end. They are moved, and
// not only shown elsewhere, so that the keyboard goes through the card in the order that is seen.

const narrow = matchMedia("(max-width: 44rem)");
narrow.addEventListener("change", () => { for (const each of document.querySelectorAll(".decide")) arrange(each.parentElement); });

function arrange(card) {
  const decide = card.querySelector(":scope > .decide");
  const active = document.activeElement;
  if (narrow.matches) card.querySelector(":scope > .what").after(decide);
  else card.append(decide);
  if (decide.contains(active)) active.focus({ preventScroll: true });
}

// Arguments

const SHOWN_LINES = 16; // lines of a text that are shown at once
const CONTEXT = 3; // lines that stay beside a change, of what is the same

/** The arguments: in one piece, or in an outline with marks of ours, which are elements, and the texts beside it. */
function argumentsOf(q, back) {
  const label = back ? "What it asks" : "Arguments";
  if (!(q.texts || []).length) return [textBox(`${label}, in full`, "args", foreign(q.arguments))];
  return [textBox(`${label}: an outline, with the texts below`, "args", q.outline.map((each) => (each.mark ? h("span", { class: "mark" }, each.text) : foreign(each.text)))),
    ...q.texts.map((each, at) => argumentText(each, at + 1)),
    folded("more", "json", `The same ${back ? "request" : "arguments"}, as JSON`, () => textBox("As JSON", "json-text", foreign(q.arguments)))];
}

/** A text of the arguments: its lines, or those of a difference. What is folded says how much it is. */
function argumentText({ kind, name, pieces }, number) {
  const runs = pieces.map((each) => ({ op: known(each.op, ["same", "removed", "added"]), lines: each.text.split("\n") }));
  const count = (op) => runs.filter((run) => !op || run.op === op).reduce((sum, run) => sum + run.lines.length, 0);
  const edit = kind === "edit";
  const ends = pieces.length > 0 && /(^|\n)$/.test(pieces[pieces.length - 1].text); // with a line feed, which begins no line
  const box = h("div", { class: edit ? "argument signed" : "argument", role: "group", "aria-label": `${known(kind, ["text", "edit", "patch"])} ${number}` },
    h("p", { class: "label" }, h("span", { class: "mark" }, `${known(kind, ["text", "edit", "patch"])} ${number}`), " ", foreign(name, "mono"),
      edit ? ` · ${plural(count("removed"), "line")} removed (−), ${count("added")} added (+)` : ` · ${plural(count() - ends, "line")}`));
  let parts = 0;
  const fold = (run, from, to, what) => folded("rest", `text-${number}-${++parts}`, `${plural(to - from - (ends && !edit && run === runs[runs.length - 1]), "line")} more${what}`, () => rows(run, from, to));
  const rows = ({ op, lines }, from, to) => lines.slice(from, to).map((line) =>
    h({ same: "div", removed: "del", added: "ins" }[op], { class: "whole" }, op !== "same" && h("span", { class: "unseen" }, `${op}: `), foreign(line)));
  runs.forEach((run, at) => {
    const length = run.lines.length;
    const head = !edit || run.op !== "same" ? Math.min(length, SHOWN_LINES) : at ? CONTEXT : 0;
    const tail = edit && run.op === "same" && at < runs.length - 1 ? CONTEXT : 0;
    const folds = length > head + tail + 2;
    box.append(...rows(run, 0, folds ? head : length));
    if (folds) box.append(fold(run, head, length - tail, { same: edit ? ", unchanged" : "", removed: ", removed", added: ", added" }[run.op]), ...rows(run, length - tail, length));
  });
  return box;
}

/** A call that was refused, in one line. */
function refusedRow(q) {
  const back = Object.hasOwn(ASKED_BACK, q.kind);
  return folded("line", `refused-${q.id}`, [foreign(q.name || kindName(q.kind), "name strong"),
    h("span", { class: "soft" }, "of ", foreign(q.server)), h("span", { class: "soft grow" }, back ? null : ["for ", clientOf(q, "")]),
    h("span", { class: "soft" }, "refused"), h("span", { class: "left", "data-until": q.until }, left(q.until))], () => confirmationCard(q));
}

/** What the server says about the entry: plain text, folded if it is long. */
function serversWords(q) {
  const words = String(q.description || "");
  const isLong = words.length > 400 || words.split("\n").length > 6;
  const text = () => h("pre", { class: "words" }, foreign(words));
  const parts = [];
  if (words) parts.push(isLong ? folded("more", "description", `Its description (${words.length} characters)`, text) : text());
  if ((q.claims || []).length) parts.push(h("p", { class: "soft" }, "It claims: ", q.claims.map((each, at) => [at ? ", " : "", foreign(each, "mono")])));
  if (q.definition) parts.push(folded("more", "definition", "Its definition, with the schema of its arguments",  () =>
    textBox("The definition", "definition-text", foreign(q.definition))));
  return parts.length ? [h("div", { class: "theirs" }, h("p", { class: "label" }, "In the words of the server, which nobody has checked"), parts)] : [];
}

function offerToDenyAll(card, count) {
  const each = card && card.querySelector("[data-part=deny-all]");
  if (!each) return;
  each.hidden = count < 2;
  each.textContent = `Deny all ${count} of this server`;
}

/** Deny what is shown of a server, and nothing that comes meanwhile. */
async function denyAll(card, server) {
  if (!meant()) return;
  await act(card, "/api/v1/confirmations/deny-all", { server, ids: waiting().filter((each) => each.server === server).map((each) => each.id) });
}

/** The answers that are kept, with what will be kept. */
function lasting(q, answers, chosen, answer, back) {
  const group = `bound-${++made}`;
  const stored = h("p", { class: "stored", "aria-live": "off" });
  const tell = () => {
    const what = chosen.bound === "any" ? h("strong", {}, "any arguments") : h("strong", {}, "exactly these arguments");
    stored.replaceChildren("What will be stored: ",
      back ? foreign(q.server, "strong") : nameless(q.caller) ? "every client without a token" : foreign(q.caller, "strong"), " may ",
      back ? `ask this (${kindName(q.kind)})` : h("span", {}, `${CALLS[q.kind] || "use"} `, foreign(q.name, "strong"), " of ", foreign(q.server, "strong")),
      " with ", what, ", for as long as you choose. It ends when the definition or the rule changes, and you can take it back under Grants.");
  };
  const choice = (value, label) => h("label", { class: "choice" },
    h("input", { type: "radio", name: group, value, checked: chosen.bound === value, "data-part": `bound-${value}`,
      on: { change: () => { chosen.bound = value; tell(); } } }), label);
  const seconds = h("select", { "aria-label": "How long", "data-part": "seconds", on: { change: (event) => { chosen.seconds = Number(event.target.value); } } },
    [[900, "15 minutes"], [3600, "1 hour"], [86400, "1 day"]].map(([value, label]) => h("option", { value, selected: chosen.seconds === value }, label)));
  tell();
  return h("fieldset", { class: "lasting" }, h("legend", { class: "unseen" }, "Allow for longer"),
    h("div", { class: "choices" }, choice("exact", "exactly these arguments"), choice("any", "any arguments")),
    stored,
    h("div", { class: "answers small" },
      answers.has("session") && q.session && button("For this session", "plain", answer("session"), { "data-part": "session" }),
      answers.has("time") && h("span", { class: "joined" }, button("Allow for", "plain", answer("time", () => chosen.seconds), { "data-part": "time" }), seconds),
      answers.has("always") && button("Always", "plain", answer("always"), { "data-part": "always" })));
}

// Definitions

const FEW = 3; // definitions that are shown opened
const pieces = (diff) => (diff || []).map((part) =>
  part.op === "added" ? h("ins", {}, foreign(part.text)) : part.op === "removed" ? h("del", {}, foreign(part.text)) : foreign(part.text));
const heldKey = (each) => JSON.stringify([each.server, each.kind, each.name]);

function showHeld() {
  const every = state.held || [];
  const words = $("held-text").value.trim().toLowerCase();
  const standing = $("held-standing").value;
  const all = every.filter((each) => (!standing || (each.rejected ? "rejected" : each.standing) === standing)
    && (!words || [each.server, each.kind, each.name, each.text].some((text) => String(text || "").toLowerCase().includes(words))));
  const filtered = Boolean(words || standing);
  $("held-filter").hidden = !filtered && every.length <= FEW;
  $("held-count").textContent = filtered ? `${all.length} of ${plural(every.length, "definition")}` : plural(every.length, "definition");
  const hadFocus = $("held").contains(document.activeElement);
  const moved = keep($("held"), byServer(all), (each) => each.server, (each) => heldGroup(each, every.length <= FEW), filtered ? null :
    nothing("No definition is held back.", "What a standard or trusted server newly offers is listed at once; but what a tool of a standard server claims does not count before a person has approved it, so a rule that wants claims asks about it. What an untrusted server newly offers, and what changes at a server that is not trusted, is held back and stands here until a person approves it."));
  if (filtered && !all.length) $("held").replaceChildren(nothing("Nothing matches.")());
  settleAfter("held", all);
  if ((moved || hadFocus) && hadFocus && document.activeElement === document.body) $("changes").focus({ preventScroll: true });
}

function heldGroup({ server, items }, opened) {
  const undecided = items.filter((each) => !each.rejected);
  const rejected = items.filter((each) => each.rejected);
  const approvable = undecided.filter((each) => !each.problem);
  const group = h("div", { class: "group" });
  const head = h("div", { class: "group-head" }, h("h3", {}, foreign(server)), trustBadge(items[0].trust),
    h("span", { class: "soft grow" }, `${plural(items.length, "definition")} held back: not listed, not callable`));
  if (undecided.length > FEW) head.append(button("Open all", "quiet tiny", () => { for (const each of group.querySelectorAll(":scope > details.definition")) unfold(each); }, { "data-part": "open-all" }));
  if (approvable.length > 1) {
    head.append(...inTwoSteps(`Approve all ${approvable.length} shown`, "all", `Have you looked at all ${approvable.length}?`, "Approve them",
      () => act(group, "/api/v1/definitions/decide-all", { server, fingerprints: approvable.map((each) => each.fingerprint), decision: "approve" })));
  }
  group.append(head, ...undecided.map((each) => heldRow(each, opened)));
  if (rejected.length) group.append(folded("more", `rejected-${server}`, plural(rejected.length, "rejected one", "rejected ones"),
    () => rejected.map((each) => heldRow(each, false))));
  return group;
}

const heldLabel = (each) => each.name || (each.kind === "launch" ? "the program that is started" : "the server's instructions");

/** A definition as a row that opens. */
function heldRow(each, opened) {
  const row = folded("line definition", `row-${heldKey(each)}`, [foreign(heldLabel(each), "name strong"), badge(kindName(each.kind), "kind"),
    badge(each.rejected ? "rejected" : each.standing === "changed" ? "changed" : "new", "standing"), h("span", { class: "soft grow" }, "since ", time(each.since))], () => heldCard(each));
  if (opened) unfold(row);
  return row;
}

function heldCard(each) {
  const decide = (decision) => async () => {
    if (!meant()) return;
    await act(card, "/api/v1/definitions/decide", { server: each.server, kind: each.kind, name: each.name, fingerprint: each.fingerprint, decision });
  };
  const changed = each.standing === "changed";
  const key = heldKey(each);
  const label = heldLabel(each);
  const card = h("article", { class: "card held", "aria-label": label },
    h("p", { class: "label" }, changed ? "Approved before, offered differently now" : "Never approved. This is all of it"),
    each.problem && h("p", { class: "warning" }, `Cannot be approved: ${each.problem}.`),
    each.order && h("p", { class: "soft" }, `${each.order[0].toUpperCase()}${each.order.slice(1)}.`),
    textBox(changed ? "The difference" : "The definition", `diff-${key}`, changed ? pieces(each.diff) : foreign(each.text), "diff"),
    changed && each.text ? folded("more", `whole-${key}`, "The whole definition as offered now", () => textBox("The whole definition", `whole-text-${key}`, foreign(each.text))) : null,
    h("div", { class: "answers" },
      !each.rejected && button("Reject", "deny", decide("reject"), { "data-part": `reject-${key}`, "aria-label": `Reject ${label}` }),
      !each.problem && button("Approve", "go", decide("approve"), { "data-part": `approve-${key}`, "aria-label": `Approve ${label}` }),
      h("span", { class: "soft mono finger", title: each.fingerprint }, foreign(String(each.fingerprint).slice(0, 19)))));
  return card;
}

// Changes of the configuration

function showConfiguration(changes) {
  $("configuration").hidden = $("to-configuration").hidden = !changes.length;
  const all = changes.length ? [{ id: changes[0].id, changes }] : [];
  keep($("change-list"), all, () => "changes", changesCard);
  settleAfter("configuration", changes);
}

function changesCard({ id, changes }) {
  const card = h("article", { class: "card ask", "aria-label": "Changes of the configuration that wait" },
    h("p", { class: "lead" }, "The configuration file was changed so that it permits more, or that something else is started, given to a program or reached. That waits for you, because a program that can write the file must not raise its own rights."));
  for (const each of changes) card.append(h("div", { class: "change" },
    h("h3", {}, each.server ? foreign(each.server, "name") : "The host itself"),
    h("ul", { class: "reasons" }, (each.widens || []).map((text) => h("li", {}, foreign(text)))),
    (each.diff || []).length ? textBox(`The change of ${each.server || "the host"}`, `diff-${each.server}`, pieces(each.diff), "diff")
    : h("p", { class: "soft" }, "The text of the file is the same here: what a reference in it gives has changed.")));
  card.append(h("div", { class: "answers" },
    button("Apply these changes", "go", () => { if (meant()) act(card, "/api/v1/configuration/reload", { apply: true, shown: id }); }, { "data-part": "apply" }),
    h("span", { class: "soft" }, "To refuse them, change the file back. Secrets are not shown.")));
  return card;
}

// Servers

const LOG_INTERVAL = 2000; // ms between two looks at a log that is open
const STATES = { ready: "good", starting: "busy", held: "busy", installing: "busy", "needs login": "busy", failed: "bad", "needs folder": "off", stopped: "off", disabled: "off" };
const logins = new Map(); // by server: the login that was asked for here, and what it is for
const loginTries = new Map(); // by server: how many logins were asked for

const FEW_SERVERS = 3; // servers whose pages are all open; of more, a table leads to them
const COLUMNS = [["id", "Server"], ["state", "State"], ["entries", "Entries"], ["calls", "Calls"], ["failed", "Errors"],
  ["tool_errors", "Tool errors"], ["p50_ms", "p50"], ["p95_ms", "p95"], ["restarts", "Restarts"], ["tokens", "Tokens of all tools"]];
const opened = new Set(); // servers whose page was opened in the table
let order = { by: "", down: false };

function showServers(servers) {
  const many = servers.length > FEW_SERVERS;
  $("server-table").hidden = !many;
  if (many) showTable(servers);
  for (const each of servers) if ((each.state !== "needs login" || each.login_failed) && logins.delete(each.id)) {
    say(each.login_failed ? `Nobody has logged in to ${each.id}.` : `${each.id} needs no login any more.`);
  }
  // What a person is to do something about is never behind a press.
  const shown = servers.filter((each) => !many || opened.has(each.id) || each.state === "needs login" || each.sandbox_open);
  keep($("server-list"), shown.map(({ id }) => ({ id })), (each) => each.id, serverPlace, servers.length ? null : nothing("No servers are configured."));
  for (const each of shown) {
    const place = $("server-list").kept.get(each.id).element;
    keep(place.firstChild, [each], () => "row", serverRow);
    showLogin(place, each.id);
  }
}

const sum = (counts) => Object.values(counts || {}).reduce((all, count) => all + count, 0);
const inOrder = (each) => (order.by === "entries" ? sum(each.entries) : each[order.by] ?? -1);
const ms = (value) => (value === null || value === undefined ? "–" : value < 10 ? `${value.toFixed(1)} ms` : `${Math.round(value)} ms`);

/** The order after a press on a column: numbers from the largest down, names from the first on; then the other way; then
 * the order of the file. */
function nextOrder(by) {
  const first = !["id", "state"].includes(by);
  if (order.by !== by) return { by, down: first };
  return order.down === first ? { by, down: !first } : { by: "", down: false };
}

/** The servers in the order of the file, or of a column. */
function showTable(servers) {
  const sorted = order.by ? [...servers].sort((a, b) => {
    const [one, other] = [inOrder(a), inOrder(b)];
    return (order.down ? -1 : 1) * (one < other ? -1 : one > other ? 1 : 0);
  }) : servers;
  keep($("server-head"), [order], () => "head", () => h("tr", {}, COLUMNS.map(([by, label]) =>
    h("th", { scope: "col", "aria-sort": order.by === by ? (order.down ? "descending" : "ascending") : null },
      button(label, "sort", () => {
        order = nextOrder(by);
        showServers(state.servers || []);
      }, { "data-part": `sort-${by}` })))));
  const rows = sorted.map((s) => ({ id: s.id, state: s.state, warns: (s.warnings || []).length + (s.list_problems || []).length + (s.left_out || []).length, open: opened.has(s.id),
    cells: [String(sum(s.entries)), String(s.calls), String(s.failed), String(s.tool_errors), ms(s.p50_ms), ms(s.p95_ms), String(s.restarts), number(s.tokens || 0)] }));
  keep($("server-rows"), rows, (each) => each.id, tableRow, null, fillRow);
}

/** The row of a server, in which a call changes some texts only. */
function tableRow(s) {
  const show = button([foreign(s.id, "strong")], "quiet tiny", () => {
    if (!opened.delete(s.id)) opened.add(s.id);
    showServers(state.servers || []);
    const kept = $("server-list").kept.get(s.id);
    if (opened.has(s.id) && kept) kept.element.scrollIntoView({ block: "nearest" });
  }, { "data-part": "open" });
  const row = h("tr", {}, h("th", { scope: "row" }, show, h("span", { class: "sub" })),
    h("td", { "data-label": "State" }, h("span", {}, h("span", { class: "dot", "aria-hidden": "true" }), foreign(""))),
    COLUMNS.slice(2).map(([, label]) => h("td", { "data-label": label })));
  fillRow(row, s);
  return row;
}

function fillRow(row, s) {
  const [head, state, ...cells] = row.children;
  head.firstChild.setAttribute("aria-expanded", String(s.open));
  tell(head.lastChild, s.warns ? plural(s.warns, "remark") : "");
  state.firstChild.className = `state ${STATES[s.state] || "busy"}`;
  tell(state.firstChild.lastChild, s.state);
  cells.forEach((cell, at) => tell(cell, s.cells[at]));
  cells[2].classList.toggle("some-bad", s.cells[2] !== "0");
}

/** Open a login, and show what it will be for. Nothing leaves for the issuer before the person follows the link. */
async function connect(id, pressed) {
  pressed.setAttribute("aria-disabled", "true");
  const mine = loginTries.set(id, (loginTries.get(id) || 0) + 1).get(id);
  try {
    const answer = await post("/api/v1/servers/login", { server: id }, 1000);
    if (secret === null || mine !== loginTries.get(id)) return; // another one was asked for meanwhile
    // The server may be logged in by now, elsewhere: its row then came before this answer, and no other one may follow.
    const now = (state.servers || []).find((each) => each.id === id);
    if (!answer.ok) toast(answer.error, "bad");
    else if (now && now.state === "needs login") logins.set(id, answer.said);
    else say(`${id} needs no login any more.`);
  } catch {
    toast("The host cannot be reached; no login was begun.", "bad");
  }
  pressed.removeAttribute("aria-disabled");
  const kept = $("server-list").kept && $("server-list").kept.get(id);
  if (!kept || secret === null || !logins.has(id)) return;
  showLogin(kept.element, id);
  const card = kept.element.querySelector(".login");
  card.querySelector("h4").focus({ preventScroll: true });
  card.scrollIntoView({ block: "nearest" }); // all of it: the way on is at its end
  say(`Log in to ${id}: the page shows what it is for.`);
}

const showLogin = (place, id) => keep(place.children[1], logins.has(id) ? [logins.get(id)] : [], () => "login", loginCard);

function loginCard(login) {
  const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
  const drop = () => { logins.delete(login.server); showServers(state.servers || []); };
  return h("section", { class: "card ask login", "aria-label": `Login for ${login.server}` },
    h("h4", { tabindex: "-1" }, "Log in to ", foreign(login.server)),
    h("p", {}, "This is what Colonnade will ask the issuer for. Nothing has left for it yet."),
    h("dl", { class: "facts" }, fact("Issuer", foreign(login.issuer, "mono")),
      login.page ? fact("Its login page is at", foreign(login.page, "mono")) : null, fact("Resource", foreign(login.resource, "mono")),
      fact("Scopes", (login.scopes || []).length ? login.scopes.map((scope) => [foreign(scope, "mono"), " "]) : "those that the issuer gives by itself"),
      fact("The browser comes back to", foreign(login.redirect, "mono"))),
    login.former_issuer ? h("p", { class: "warn" }, "The last login was at another issuer: ", foreign(login.former_issuer, "mono"), ". Go on only if you expect that.") : null,
    h("div", { class: "answers" },
      h("a", { class: "go", href: login.link, target: "_blank", rel: "noopener noreferrer", "data-part": "go" }, "Go on to the issuer"),
      button("Not now", "quiet", drop, { "data-part": "drop" }),
      h("span", { class: "soft", "data-until": login.until }, left(login.until))));
}

/** The place of a server: its row, which changes all the time; a login that was asked for; and its log, which a person may
 * be reading. */
const serverPlace = ({ id }) => h("div", { class: "row" }, h("div", {}), h("div", {}), serverDefinitions(id), serverTraffic(id), serverCalls(id), serverLog(id));

// Plots

const SVG = document.querySelector(".brand svg").namespaceURI;
const TRAFFIC_INTERVAL = 10000; // ms between two looks at plots that are open
const HEIGHT = 80;

function svg(tag, props, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props)) made.setAttribute(name, String(value));
  made.append(...children.filter(Boolean));
  return made;
}

/** How many of these calls failed, and how many were answered by a tool that says that it failed. */
const failures = (each) => `${each.failed} failed${each.tool_errors ? `, ${plural(each.tool_errors, "tool error")}` : ""}`;

/** Calls as bars, those that failed over them, tool errors on top of these, and the 95th percentile as a line: `count` parts of `step` seconds. */
function plot(label, rows, now, step, count) {
  const begin = (Math.floor(now / step) - count + 1) * step;
  const most = Math.max(1, ...rows.map((each) => each.calls));
  const slowest = Math.max(1, ...rows.map((each) => each.p95_ms || 0));
  const width = 600 / count;
  const at = (each) => ((each.t - begin) / step) * width;
  const bar = (look, each, part) => svg("rect", { class: look, x: at(each), y: HEIGHT * (1 - part / most), width: width * 0.85, height: (HEIGHT * part) / most },
    svg("title", {}, `${clock(each.t)}: ${plural(each.calls, "call")}, ${failures(each)}, p95 ${ms(each.p95_ms)}`));
  const points = rows.filter((each) => each.p95_ms !== null).map((each) => `${at(each) + width / 2},${HEIGHT * (1 - each.p95_ms / slowest)}`);
  const calls = sum(rows.map((each) => each.calls));
  const all = { failed: sum(rows.map((each) => each.failed)), tool_errors: sum(rows.map((each) => each.tool_errors)) };
  const said = `${label}: ${plural(calls, "call")}, ${failures(all)}; at most ${most} at a time, p95 at most ${rows.length ? ms(slowest) : "–"}`;
  return h("figure", {}, svg("svg", { viewBox: `0 0 600 ${HEIGHT}`, role: "img", "aria-label": said, preserveAspectRatio: "none" },
    ...rows.map((each) => bar("calls", each, each.calls)), ...rows.filter((each) => each.tool_errors).map((each) => bar("tools", each, each.failed + each.tool_errors)),
    ...rows.filter((each) => each.failed).map((each) => bar("failed", each, each.failed)),
    points.length > 1 && svg("polyline", { class: "slow", points: points.join(" ") })), h("figcaption", { class: "soft" }, said),
  folded("more", `table-${label}`, "As a table", () => h("table", { class: "numeric" }, h("caption", { class: "unseen" }, label),
    h("thead", {}, h("tr", {}, ["From", "Calls", "Failed", "Tool errors", "p50", "p95"].map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, [...rows].reverse().map((each) => h("tr", {}, h("th", { scope: "row" }, time(each.t)), [each.calls, each.failed, each.tool_errors, ms(each.p50_ms), ms(each.p95_ms)].map((text) => h("td", {}, text))))))));
}

function serverTraffic(id) {
  const box = h("div", {});
  let rounds = 0; // one at a time, also if it is closed and opened again
  const look = async (round) => {
    if (round !== rounds || !whole.open || !whole.isConnected || secret === null) return;
    try {
      if (document.visibilityState === "visible" && isOnline) {
        const answer = await post("/api/v1/servers/traffic", { server: id });
        if (answer.ok && secret !== null) {
          const { now, minutes, quarters, states } = answer.said;
          keep(box, [{ what: "hour", now, rows: minutes }, { what: "day", now, rows: quarters }, { what: "states", rows: states }], (each) => each.what, part);
        }
      }
    } catch { /* it is tried again */ }
    setTimeout(look, TRAFFIC_INTERVAL, round);
  };
  const part = ({ what, now, rows }) => what === "hour" ? plot("The last hour, by minutes", rows, now, 60, 60)
    : what === "day" ? plot("The last day, by quarters of an hour", rows, now, 900, 96)
    : h("ol", { class: "activity", "aria-label": `The last states of ${id}` }, [...rows].reverse().map((each) => h("li", {}, time(each.t),
      h("div", {}, h("span", { class: `state ${STATES[each.state] || "busy"}` }, foreign(each.state)), each.text ? ": " : "", foreign(each.text), times(each.count)))));
  const whole = folded("more", `traffic-${id}`, "Its last hour and day", () => box);
  whole.addEventListener("toggle", () => { if (whole.open) look(++rounds); });
  return whole;
}

const times = (count) => (count > 1 ? h("span", { class: "soft" }, ` · ${count} times`) : null);

/** The last calls of a server, of those that the activity has. */
function serverCalls(id) {
  const list = h("ol", { class: "activity calls-of" });
  const whole = folded("more", `calls-${id}`, "Its last calls", () => list);
  list.look = () => {
    if (whole.open) keep(list, newest((state.activity || []).filter((each) => each.kind === "RequestCompleted" && each.server === id)), null, activityRow, nothing("None of the last events was a call."));
  };
  whole.addEventListener("toggle", () => list.look());
  return whole;
}

const AUTOMATIC = { "": "approved automatically", "first sight": "approved automatically when first seen", trust: "approved automatically: the server is trusted", configuration: "approved by the configuration" };
/** What a tool claims, in people's words, as `describe_claims` of host/policy/claims.py has them. */
const claimed = (claims) => (claims.includes("read-only") ? "only reads" : claims.includes("destructive") ? "may destroy" : "may change something")
  + (claims.includes("open-world") ? ", open world" : "");
const AT_ONCE = 500; // definitions in one request

/** All that a server offers, to be approved as a whole: only then what its tools claim counts in rules. */
function serverDefinitions(id) {
  const list = h("div", { class: "offered" });
  let asks = 0;
  const look = async () => {
    if (!whole.open || secret === null) return;
    const mine = ++asks;
    try {
      const answer = await post("/api/v1/definitions/list", { server: id });
      if (mine !== asks || secret === null) return; // the list has changed since
      if (answer.ok) keep(list, [answer.said.definitions], () => "list", offeredList);
      else toast(answer.error, "bad");
    } catch { toast("The host cannot be reached.", "bad"); }
  };
  const whole = folded("more", `definitions-${id}`, "Its definitions, and who approved them", () => list);
  whole.addEventListener("toggle", look);
  list.look = look;
  return whole;
}

function offeredList(definitions) {
  settle();
  const open = definitions.filter((each) => each.standing === "approved" && !each.counts && !each.problem && each.text); // what is shown whole
  const box = h("div", {}, h("p", { class: "soft" }, `${plural(definitions.length, "definition")}, ${open.length ? open.length : "none"} of them approved automatically.`,
    " What a tool claims is its server's word. Rules count it once a person has approved the definition."),
    definitions.map(offeredRow));
  if (open.length) {
    const [{ server }] = open;
    box.append(h("div", { class: "answers" }, inTwoSteps(`Approve all ${open.length} as shown`, "offered-all",
      [`Approve ${open.length} definitions of `, foreign(server, "strong"), ", with what they claim?"], "Approve them", async () => {
        for (let at = 0; at < open.length; at += AT_ONCE)
          await act(box, "/api/v1/definitions/decide-all", { server, fingerprints: open.slice(at, at + AT_ONCE).map((each) => each.fingerprint), decision: "approve" });
      })));
  }
  setTimeout(disableUntilSettled);
  return box;
}

/** A definition as it is offered, and who approved it. */
const offeredRow = (each) => folded("line", `offered-${heldKey(each)}`, [foreign(heldLabel(each), "name strong"), badge(kindName(each.kind), "kind"),
  (each.claims || []).length ? badge(`claims: ${claimed(each.claims)}`, each.claims.includes("destructive") ? "verdict-ask" : "kind") : "",
  each.standing !== "approved" ? standingBadge(each)
  : h("span", { class: "soft grow" }, AUTOMATIC[each.by] || ["approved by a person (", foreign(each.by), ")"])],
() => [...serversWords({ description: each.description, definition: each.text }),
  each.text ? "" : h("p", { class: "warn" }, "The whole list is too long to be shown, so this one is not approved with it."),
  each.problem ? h("p", { class: "warn" }, "Cannot be approved: ", foreign(each.problem)) : ""]);

function serverLog(id) {
  const text = h("pre", { class: "args log", tabindex: "0", role: "log", "aria-label": `The log of ${id}` });
  const none = h("p", { class: "soft" }, "It wrote nothing to its standard error.");
  let last = 0;
  let rounds = 0; // one at a time, also if it is closed and opened again
  const read = async (round) => {
    if (round !== rounds || !log.open || !log.isConnected || secret === null) return;
    try {
      if (document.visibilityState === "visible" && isOnline) {
        const answer = await post("/api/v1/servers/log", { server: id, after: last });
        if (answer.ok) add((answer.said.lines || []).filter((each) => each.n > last));
      }
    } catch { /* it is tried again */ }
    setTimeout(read, LOG_INTERVAL, round);
  };
  const add = (lines) => {
    const atEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 8;
    for (const each of lines) {
      // A program may write what looks like a line of ours.
      const mark = each.stream === "sandbox" ? " " : ` ${known(each.stream, ["stderr", "stdout"])}: `;
      text.append(h("div", {}, h("span", { class: "soft" }, clock(each.t), mark), foreign(each.line)));
      last = each.n;
    }
    while (text.childNodes.length > 200) text.firstChild.remove();
    none.hidden = text.childNodes.length > 0;
    text.hidden = !none.hidden;
    if (atEnd) text.scrollTop = text.scrollHeight;
  };
  const log = folded("more", `log-${id}`, "Its log", () => { none.hidden = text.hidden = true; return [none, text]; });
  log.addEventListener("toggle", () => { if (log.open) read(++rounds); });
  return log;
}

function serverRow(s) {
  const entries = Object.entries(s.entries || {}).filter(([, count]) => count)
    .map(([kind, count]) => plural(count, kind === "resourceTemplates" ? "template" : kind.replace(/s$/, ""))).join(", ");
  const figure = (label, value, look) => h("div", { class: look }, h("dt", {}, label), h("dd", {}, value));
  const failed = s.state === "failed";
  const needsLogin = s.state === "needs login";
  const row = h("article", { class: "server", "aria-label": s.id },
    h("div", { class: "row-head" },
      h("h3", {}, foreign(s.id), s.title && s.title !== s.id ? h("span", { class: "title" }, foreign(s.title)) : null),
      h("span", { class: `state ${STATES[s.state] || "busy"}` }, h("span", { class: "dot", "aria-hidden": "true" }), foreign(s.state)),
      trustBadge(s.trust)),
    h("p", { class: "soft" }, foreign([s.transport, s.revision, `${s.isolation}`, entries].filter(Boolean).join(" · "))),
    (s.settings || []).length ? h("p", { class: "soft" }, "Settings: ", foreign(s.settings.join(" · "))) : null,
    s.session ? h("p", { class: "detail" }, foreign(s.session)) : null,
    s.sandbox ? h("p", { class: "detail" }, "Sandbox: ", foreign(s.sandbox)) : null,
    s.sandbox_open ? h("div", { class: "answers small" }, [["Confine it", "go", "strict"], ["Keep it unconfined", "quiet", "off"]].map(([label, look, choice]) =>
      button(label, look, () => act(row, "/api/v1/servers/sandbox", { server: s.id, sandbox: choice }), { "data-part": `sandbox-${choice}`, "aria-label": `${label}: ${s.id}` }))) : null,
    s.detail && s.state !== "ready" ? h("p", { class: failed ? "detail bad" : "detail" }, foreign(s.detail), failed ? " " : null,
      failed ? button("Restart it", "quiet tiny", () => act(row, "/api/v1/servers/control", { server: s.id, action: "restart" }), { "data-part": "restart", "aria-label": `Restart ${s.id}` }) : null) : null,
    needsLogin ? h("div", { class: "answers small" }, button("Connect", "go", (event) => connect(s.id, event.currentTarget), { "data-part": "connect", "aria-label": `Connect ${s.id}` })) : null,
    needsLogin && s.login_failed ? h("p", { class: "warn" }, "The last login came to nothing: ", foreign(s.login_failed)) : null,
    h("dl", { class: "numbers" },
      figure("p50", ms(s.p50_ms)), figure("p95", ms(s.p95_ms)),
      figure("Calls", s.calls), figure("Failed", s.failed, s.failed ? "some-bad" : null), figure("Tool errors", s.tool_errors), figure("In flight", s.in_flight),
      figure("Restarts", s.restarts), figure("Tokens of all tools", number(s.tokens || 0)),
      s.bytes_in === undefined ? null : figure("Received", bytes(s.bytes_in)), figure("Held back", s.held, s.held ? "some-ask" : null)),
    [...(s.list_problems || []), ...(s.left_out || []).map((each) => `${each} is left out: clients could not read it`), ...(s.warnings || [])].map((text) => h("p", { class: "warn" }, foreign(text))),
    s.uncounted ? h("p", { class: "warn" }, "A rule wants claims, which do not count before you approve its tools: ", String(s.uncounted)) : null,
    (s.unmatched || []).length ? h("p", { class: "warn" }, plural(s.unmatched.length, "rule matches", "rules match"), " nothing it offers: ",
      s.unmatched.map((rule, at) => [at ? ", " : "", foreign(rule, "mono")])) : null);
  return row;
}

// Catalog

function showCatalog() {
  const all = state.catalog || [];
  const words = $("filter-text").value.trim().toLowerCase();
  const verdict = $("filter-verdict").value;
  const fits = all.filter((each) => (!verdict || (verdict === "held" ? isHeld(each) : each.verdict === verdict))
    && (!words || [each.server, each.name, each.outward, each.title, each.description, each.rule].some((text) => String(text || "").toLowerCase().includes(words))));
  const filtered = Boolean(words || verdict);
  $("filter-count").textContent = filtered ? `${fits.length} of ${plural(all.length, "entry", "entries")}` : plural(all.length, "entry", "entries");
  const small = fits.length <= 40;
  keep($("catalog-list"), byServer(fits), (each) => each.server, (each) => catalogGroup(each, small), null);
  const none = $("catalog-list").childNodes.length === 0;
  if (none) $("catalog-list").append(nothing(filtered ? "Nothing matches." : "No server offers anything yet.")());
}

const AT_A_TIME = 25; // rows of a group

/** The items of each server, in the order in which they come. */
function byServer(items) {
  const found = new Map();
  for (const each of items) {
    if (!found.has(each.server)) found.set(each.server, { server: each.server, items: [] });
    found.get(each.server).items.push(each);
  }
  return [...found.values()];
}

/** The rows of a group are made when it is opened, some at a time: there may be thousands. */
function catalogGroup({ server, items }, open) {
  const build = () => {
    const body = h("tbody", {});
    const more = button("", "quiet", () => fill(), { "data-part": `more-${server}` });
    let shown = 0;
    const fill = () => {
      body.append(...items.slice(shown, shown + AT_A_TIME).flatMap(catalogRow));
      shown = Math.min(items.length, shown + AT_A_TIME);
      more.hidden = shown === items.length;
      more.textContent = `Show ${Math.min(AT_A_TIME, items.length - shown)} more of ${items.length}`;
    };
    fill();
    return [h("table", {}, h("caption", { class: "unseen" }, `What ${server} offers`),
      h("thead", {}, h("tr", {}, ["Name", "Verdict", "Why", "Definition", ""].map((text) => h("th", { scope: "col" }, text || h("span", { class: "unseen" }, "Explain"))))), body), more];
  };
  const counts = ["allow", "ask", "deny"].map((verdict) => [verdict, items.filter((each) => each.verdict === verdict).length]).filter(([, count]) => count);
  const group = folded("server-group", `server-${server}`, [foreign(server, "strong"), h("span", { class: "soft" }, counts.map(([verdict, count]) => `${count} ${verdict}`).join(" · "))], build);
  if (open) unfold(group);
  return group;
}

function catalogRow(each) {
  const panel = h("tr", { class: "explain", hidden: true }, h("td", { colspan: "5" }));
  const ask = button("Explain", "quiet tiny", () => {
    const opens = panel.hidden;
    panel.hidden = !opens;
    ask.setAttribute("aria-expanded", String(opens));
    if (opens && !panel.firstChild.childNodes.length) explain(each, panel.firstChild);
  }, { "aria-expanded": "false", "aria-label": `Explain ${each.name}` });
  return [h("tr", { class: each.shown ? null : "hidden-entry" },
    h("th", { scope: "row" }, foreign(each.name, "name"), h("span", { class: "sub" }, kindName(each.kind), each.shown ? null : ", hidden from clients"),
      each.description || each.title ? h("span", { class: "sub text" }, foreign(each.title && each.title !== each.name ? `${each.title}: ${each.description || ""}` : each.description)) : null),
    h("td", { "data-label": "Verdict" }, verdictBadge(each.verdict)),
    h("td", { "data-label": "Why" }, foreign(each.rule, "mono")),
    h("td", { "data-label": "Definition" }, standingBadge(each)),
    h("td", { class: "last" }, ask)), panel];
}

function explain(each, box) {
  const given = h("textarea", { rows: "2", spellcheck: "false", "aria-label": `Arguments of ${each.name} as JSON`, placeholder: '{"owner": "acme"}' });
  const said = h("div", { role: "status" });
  const whose = h("select", { hidden: true, "aria-label": `Who calls ${each.name}`, on: { change: () => ask() } });
  const ask = async () => {
    let args = null;
    if (given.value.trim()) {
      try { args = JSON.parse(given.value); } catch { said.replaceChildren(h("p", { class: "warn" }, "The arguments are no JSON.")); return; }
    }
    try {
      const answer = await post("/api/v1/explain", { server: each.server, kind: each.kind, name: each.name, ...(args === null ? {} : { arguments: args }), ...(whose.hidden || whose.value === OVER_STDIO ? {} : { caller: whose.value }) });
      if (answer.ok && answer.said.callers.length) {
        fillChoice(whose, [[OVER_STDIO, "you"], ["", "another caller"], ...answer.said.callers.map((caller) => [caller, caller])]);
        whose.hidden = false;
      }
      said.replaceChildren(...(answer.ok ? explained(answer.said) : [h("p", { class: "warn" }, foreign(answer.error))]));
    } catch { said.replaceChildren(h("p", { class: "warn" }, "The host cannot be reached.")); }
  };
  box.append(whose, said, ["tool", "prompt"].includes(each.kind) ? h("div", { class: "try" }, given, button("Explain with these arguments", "plain", ask)) : "");
  ask();
}

function explained(e) {
  return [
    h("p", {}, verdictBadge(e.verdict), " ", foreign(e.sentence)),
    h("ul", { class: "tried" }, (e.tried || []).map((each) => h("li", { class: each.matched ? "hit" : null },
      h("span", { "aria-hidden": "true" }, each.matched ? "→" : "·"), h("span", {}, foreign(each.rule, "mono"), h("span", { class: "soft" }, each.matched ? " matches: " : " does not: ", foreign(each.why)))))),
    e.origin ? h("p", { class: "soft" }, "The rule is from ", foreign(e.origin, "mono"), ".") : null,
    e.grant ? h("p", { class: "soft" }, "There is a grant for it: ", foreign(e.grant.id || "", "mono")) : null,
  ].filter(Boolean);
}

// What a caller sees

const OVER_STDIO = "\n"; // no name of a caller: clients over stdio, for which no view is a boundary
let seesAgain = false; // something is shown, which follows what changes

/** Fill a choice anew; what was chosen stays if it is still there. */
function fillChoice(select, pairs) {
  const chosen = select.options.length ? select.value : pairs[0][0];
  const form = JSON.stringify(pairs);
  if (select.dataset.form === form) return;
  select.dataset.form = form;
  select.replaceChildren(...pairs.map(([value, label]) => h("option", { value, selected: value === chosen }, label)));
}

function showViews(views) {
  const named = views.filter((each) => each.name);
  keep($("view-list"), named, (each) => each.name, (each) => h("li", {}, foreign(each.name, "strong"), h("span", { class: "soft" },
    each.callers.length ? [" for ", foreign(each.callers.join(", "))] : each.is_default ? " for all others" : null, ` · ${entryCount(each)} · ${tokens(each.tokens)}`,
    each.search !== "off" && [" · search ", foreign(each.search)], each.left_out.length > 0 && ` · ${each.left_out.length} left out`)));
  if (!seesAgain) fillCallers([...new Set(named.flatMap((each) => each.callers))]);
  fillChoice($("seen-view"), [["", "none named"], ...named.map((each) => [each.name, each.name])]);
  if (seesAgain) see();
}

const tokens = (count) => `~${number(count)} tokens`;
const entryCount = ({ entries }) => plural(Object.values(entries).reduce((sum, count) => sum + count, 0), "entry", "entries");
const fillCallers = (callers) => fillChoice($("seen-caller"), [...callers.map((each) => [each, each]), ["", "another caller"], [OVER_STDIO, "over stdio"]]);

async function see() {
  const [caller, view] = [$("seen-caller").value, $("seen-view").value];
  seesAgain = true;
  let said;
  try {
    const answer = await post("/api/v1/callers/view", { view, ...(caller === OVER_STDIO ? {} : { caller }) });
    if (secret === null || caller !== $("seen-caller").value || view !== $("seen-view").value) return; // asked again
    if (answer.ok) fillCallers(answer.said.callers);
    said = answer.ok ? answer.said : { error: answer.error };
  } catch { said = { error: "The host cannot be reached." }; }
  keep($("seen"), [said], () => "seen", (each) => h("div", {}, each.error ? h("p", { class: "warn" }, foreign(each.error)) : seenParts(each)));
}

function seenParts({ address, view, search, instructions, tokens: cost, entries, left_out }) {
  return [
    h("p", {}, address ? ["At ", foreign(address, "mono")] : "Over stdio", view ? [", in the view ", foreign(view, "strong")] : ", without a view", `: ${plural(entries.length, "entry", "entries")}; the lists cost a model some ${number(cost)} tokens.`,
      search !== "off" && [" Search: ", foreign(search), "."]),
    instructions && folded("more", "instructions", "The instructions that it gets", () => h("pre", { class: "words" }, foreign(instructions))),
    left_out.length > 0 && h("div", {}, h("p", { class: "label" }, "Left out"), h("ul", { class: "left-out" },
      left_out.map((each) => h("li", {}, foreign(each.name, "name"), ` (${kindName(each.kind)} of `, foreign(each.server), "): ", foreign(each.why))))),
    ...byServer(entries).map(({ server, items }) => seenGroup(server, items, entries.length <= 40)),
  ].filter(Boolean);
}

/** The rows are made when it is opened, as in the catalog. */
function seenGroup(server, items, open) {
  const group = folded("server-group", `seen-${server}`, [foreign(server, "strong"), h("span", { class: "soft" }, tokens(items.reduce((sum, each) => sum + each.tokens, 0)))],
    () => h("table", {}, h("caption", { class: "unseen" }, `What it sees of ${server}`),
      h("thead", {}, h("tr", {}, ["Name", "Verdict", "Its own name", "Tokens"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, items.map((each) => h("tr", {},
        h("th", { scope: "row" }, foreign(each.outward, "name"), h("span", { class: "sub" }, kindName(each.kind)), each.description || each.title ? h("span", { class: "sub text" }, foreign(each.description || each.title)) : null),
        h("td", { "data-label": "Verdict" }, verdictBadge(each.verdict)), h("td", { "data-label": "Its own name" }, foreign(each.name, "mono")), h("td", { "data-label": "Tokens" }, String(each.tokens)))))));
  if (open) unfold(group);
  return group;
}

// Grants and activity

function showGrants(grants) {
  keep($("grant-list"), grants, (each) => each.id, grantRow, nothing("You have granted nothing that lasts.", "Answers that hold for longer than one call stand here, and can be taken back."));
}

function grantRow(g) {
  const row = h("article", { class: g.live ? "row" : "row dead" },
    Object.hasOwn(ASKED_BACK, g.kind)
      ? h("p", {}, foreign(g.server, "strong"), ` may ask: ${kindName(g.kind)} `, foreign(g.name, "strong name"))
      : h("p", {}, foreign(g.caller || "clients without a token", "strong"), ` may ${CALLS[g.kind] || "use"} `, foreign(g.name, "strong name"), " of ", foreign(g.server, "strong")),
    h("p", { class: "soft" }, foreign(SCOPES[g.scope] || g.scope), " · arguments: ", foreign(g.arguments, "mono")),
    h("p", { class: "soft" }, "given ", time(g.made), " at the ", foreign(g.by), g.expires ? h("span", {}, " · until ", time(g.expires)) : null),
    g.live ? null : h("p", { class: "warn" }, "Not in force: ", foreign(g.why)),
    button("Revoke", "quiet tiny", () => act(row, "/api/v1/grants/revoke", { id: g.id }), { "data-part": "revoke", "aria-label": `Revoke the grant for ${g.name || kindName(g.kind)} of ${g.server}` }));
  return row;
}

/** What happened, without the name of the server, which stands before it. */
const happened = ({ server, text }) => (server && String(text).startsWith(`${server}: `) ? text.slice(server.length + 2) : text);

function showActivity(activity) {
  keep($("activity-list"), newest(activity), null, activityRow, nothing("Nothing has happened yet."));
  for (const each of document.querySelectorAll(".calls-of")) each.look();
}

const newest = (activity) => activity.slice(-200).reverse();

const activityRow = (each) => h("li", { class: known(each.level, ["info", "warning", "error"]) }, time(each.t),
  h("div", {}, each.server ? foreign(each.server, "strong") : null, each.server ? " " : null, each.level !== "info" ? h("span", { class: "unseen" }, `${known(each.level, ["info", "warning", "error"])}: `) : null, foreign(happened(each)), times(each.count)));

// ---- Opening and closing ----

function close(why) {
  secret = reader = null;
  store();
  if (reading) reading.abort();
  reading = null;
  state = {};
  stale.clear();
  isOnline = null;
  memory = new Map();
  seesAgain = false;
  logins.clear();
  opened.clear();
  for (const id of ["confirmations", "refused", "change-list", "held", "server-head", "server-rows", "server-list", "catalog-list", "view-list", "seen", "history-list", "grant-list", "activity-list", "problems", "host", "say", "wanted"]) {
    $(id).replaceChildren();
    $(id).kept = undefined;
  }
  for (const each of $("past").querySelectorAll("input")) each.value = "";
  if ($("toast")) $("toast").remove();
  $("elsewhere").hidden = true;
  closeNotices([]);
  document.body.classList.remove("offline");
  $("link").dataset.state = "off";
  $("link-text").textContent = "closed";
  $("banner").hidden = true;
  document.body.classList.remove("reader", "own");
  $("main").hidden = true;
  $("leave").hidden = true;
  $("closed").hidden = false;
  $("closed-why").textContent = why;
  $("closed-title").focus();
  retitle();
}

let begun = Promise.resolve(); // one link after the other: the last one's cookie and secret belong together
const begin = () => { begun = begun.then(open); };

/** Open the page by what is behind the # of its address, which is taken out at once: a code, a confirmation, or both. */
async function open() {
  const parts = location.hash.slice(1).split("&");
  const code = parts.find((each) => /^[\w-]{43}$/.test(each));
  const named = parts.map((each) => /^confirmation=([\w-]{1,64})$/.exec(each)?.[1]).find(Boolean);
  if (code || named) history.replaceState(null, "", location.pathname);
  else if (reading) return; // a part of the page
  if (secret === null) restore();
  if (code) {
    try {
      const answer = await send("/console/open", { code }, {});
      if (!take(answer) && secret === null) close(answer.error[0].toUpperCase() + answer.error.slice(1) + ".");
    } catch {
      if (secret === null) close("The host cannot be reached; the link may still be good.");
    }
  } else if (secret === null) close("It opens with a link that works once.");
  if (named) seek(named);
  if (reader !== null) showReader();
  else if (secret !== null && (code || !reading)) follow();
}

/** Take what opens the page, if the host has given that. */
function take({ ok, said }) {
  if (!ok || typeof said.secret !== "string") return false;
  const caller = typeof said.caller === "string" ? { caller: said.caller, all: said.all === true } : null;
  if (secret !== null && (reader || caller)) close(""); // of somebody else: nothing of what was shown stays
  secret = said.secret;
  reader = caller;
  sequence = 0;
  store();
  return true;
}

/** Sign in as a caller. The token is not kept. */
async function enter() {
  const token = $("enter-token").value;
  $("enter-token").value = "";
  if (!token) return;
  try {
    const answer = await send("/console/open", { token }, {});
    if (take(answer)) showReader();
    else if (secret === null) close(answer.error[0].toUpperCase() + answer.error.slice(1) + ".");
  } catch { if (secret === null) close("The host cannot be reached."); } // a link may have opened the page meanwhile
}

/** Show a caller the calls of the past, which is all that the host gives it. */
function showReader() {
  document.body.classList.add("reader");
  document.body.classList.toggle("own", !reader.all);
  $("main").hidden = false;
  $("closed").hidden = true;
  $("leave").hidden = false;
  $("host").replaceChildren("Signed in as ", foreign(reader.caller, "strong"), h("span", { class: "soft" }, reader.all ? " · sees all calls" : " · sees its own calls"));
  $("link").dataset.state = "on";
  $("link-text").textContent = "signed in";
  $("history").focus({ preventScroll: true });
  retitle();
}

document.addEventListener("click", (event) => { // a button that waits takes no press
  const pressed = event.target instanceof Element ? event.target.closest("button") : null;
  if (pressed && pressed.getAttribute("aria-disabled") === "true") { event.stopPropagation(); event.preventDefault(); }
}, true);
$("leave").addEventListener("click", async () => {
  const mine = secret;
  try { await post("/console/leave", {}); } catch { /* it is over here in any case */ }
  if (mine === secret) close("You have signed out.");
});
$("enter-go").addEventListener("click", enter);
$("enter-token").addEventListener("keydown", (event) => { if (event.key === "Enter") enter(); });
$("held-text").addEventListener("input", showHeld);
$("held-standing").addEventListener("change", showHeld);
$("notify-yes").addEventListener("click", turnOnNotifications);
$("notify-no").addEventListener("click", refuseNotifications);
$("elsewhere").addEventListener("click", () => { if (waiting().length) goTo(waiting()[0].id); });
$("see").addEventListener("click", see);
for (const id of ["seen-caller", "seen-view"]) $(id).addEventListener("change", () => { if (seesAgain) see(); });
$("filter-text").addEventListener("input", showCatalog);
$("filter-verdict").addEventListener("change", showCatalog);
window.addEventListener("hashchange", begin);
document.addEventListener("visibilitychange", showStale);
setInterval(() => {
  for (const each of document.querySelectorAll("[data-until]")) each.textContent = left(Number(each.dataset.until));
}, 1000);
begin();

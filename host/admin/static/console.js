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
const trustBadge = (trust) => badge(known(trust, ["standard", "trusted", "untrusted"]), `trust-${known(trust, ["standard", "trusted", "untrusted"])}`);
const verdictBadge = (verdict) => badge(known(verdict, ["deny", "ask", "allow"]), `verdict-${known(verdict, ["deny", "ask", "allow"])}`);
/** What is denied anyhow does not wait for anybody. */
const isHeld = (each) => each.standing !== "approved" && each.verdict !== "deny";
const standingBadge = ({ standing, verdict }) =>
  !isHeld({ standing, verdict }) ? h("span", { class: "soft" }, standing === "approved" ? "approved" : "not approved")
  : badge(known(standing, ["changed", "new"]) === "new" ? "new, held back" : "changed, held back", "standing");

function button(label, look, act, extra) {
  return h("button", { type: "button", class: look, on: { click: act }, ...(extra || {}) }, label);
}

function bytes(count) {
  if (count < 1000) return `${count} B`;
  if (count < 1e6) return `${(count / 1e3).toFixed(count < 1e4 ? 1 : 0)} kB`;
  return `${(count / 1e6).toFixed(1)} MB`;
}

const clock = (t) => new Date(t * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = (t) => new Date(t * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short", hourCycle: "h23" });

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

/** Keep the children of a box in step with items: what did not change stays as it is, with its focus and its fields. */
function keep(box, items, keyOf, build, empty) {
  const before = box.kept || new Map();
  const after = new Map();
  const active = document.activeElement;
  let focus = null;
  for (const item of items) {
    const key = keyOf(item);
    const form = JSON.stringify(item);
    const old = before.get(key);
    if (old && old.form === form) { after.set(key, old); continue; }
    const made = build(item, key);
    if (old) {
      const opened = new Set([old.element, ...old.element.querySelectorAll("details")].filter((each) => each.open).map((each) => each.dataset.part));
      for (const each of [made, ...made.querySelectorAll("details[data-part]")])
        if (each.dataset.part && opened.has(each.dataset.part)) unfold(each);
      const part = old.element.contains(active) ? active.dataset.part : undefined;
      if (part) focus = [...made.querySelectorAll("[data-part]")].find((each) => each.dataset.part === part);
    }
    after.set(key, { form, element: made });
  }
  const moved = [...before.keys()].some((key) => !after.has(key));
  box.kept = after;
  const wanted = [...after.values()].map((each) => each.element);
  if (!wanted.length && empty) wanted.push(box.none = box.none || empty());
  [...box.childNodes].forEach((node) => { if (!wanted.includes(node)) node.remove(); });
  wanted.forEach((node, at) => { if (box.childNodes[at] !== node) box.insertBefore(node, box.childNodes[at] || null); });
  if (focus) focus.focus({ preventScroll: true });
  return moved;
}

const nothing = (title, text) => () => h("div", { class: "nothing" }, h("p", {}, title), text && h("p", { class: "soft" }, text));

// ---- Asking the host ----

let secret = null;
let sequence = 0;
let turn = Promise.resolve();
let state = {};
let memory = new Map(); // what was chosen in a confirmation that is not answered yet

function restore() {
  try {
    const kept = JSON.parse(sessionStorage.getItem(KEEP) || "null");
    secret = kept && typeof kept.secret === "string" ? kept.secret : null;
    sequence = kept && Number.isSafeInteger(kept.sequence) ? kept.sequence : 0;
  } catch { secret = null; }
}

function store() {
  if (secret === null) sessionStorage.removeItem(KEEP);
  else sessionStorage.setItem(KEEP, JSON.stringify({ secret, sequence }));
}

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
    const answer = await send(path, body, { "X-Colonnade-Console": secret || "", "X-Colonnade-Sequence": String(sequence) });
    if (answer.over) close("The session of this page is over.");
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
}

let toastTimer = 0;
function toast(text, look) {
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
  const mine = new AbortController();
  reading = mine;
  let watchdog = 0;
  const alive = () => { clearTimeout(watchdog); watchdog = setTimeout(() => mine.abort(), QUIET); };
  try {
    alive();
    const answer = await fetch("/api/v1/events", { ...COMMON, headers: { "X-Colonnade-Console": secret }, signal: mine.signal });
    if (answer.status === 403) { close("The session of this page is over."); return; }
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const reader = answer.body.getReader();
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      alive();
      rest += decoder.decode(value, { stream: true });
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const line of lines) if (line) news(JSON.parse(line));
    }
  } catch { /* the banner says so */ } finally { clearTimeout(watchdog); }
  if (reading !== mine || secret === null) return;
  lost();
}

function news(sections) {
  tries = 0;
  online(true);
  state = { ...state, ...sections };
  show(Object.keys(sections));
}

function lost() {
  online(false);
  const pause = Math.min(15000, 500 * 2 ** tries++);
  setTimeout(() => { if (secret !== null) follow(); }, pause);
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

const SHOW = { confirmations: showConfirmations, configuration: showConfiguration, held: () => showHeld(), servers: showServers, catalog: showCatalog, grants: showGrants,
  activity: showActivity, problems: showProblems };

function show(sections) {
  state.held = (state.held || []).filter((each) => each.ready !== false); // the others come once they are compared
  $("main").hidden = false;
  $("closed").hidden = true;
  $("leave").hidden = false;
  offerNotifications();
  if (state.config !== undefined) $("host").replaceChildren(foreign(state.config), h("span", { class: "soft" }, ` · process ${state.pid} · ${state.colonnade}`));
  for (const section of sections) if (SHOW[section]) SHOW[section](state[section] || []);
  for (const [id, section] of [["n-confirmations", waiting()], ["n-held", state.held], ["n-configuration", state.configuration], ["n-servers", state.servers], ["n-catalog", state.catalog], ["n-grants", state.grants]])
    $(id).textContent = section && section.length ? String(section.length) : "";
  $("n-confirmations").classList.toggle("hot", waiting().length > 0);
  $("n-held").classList.toggle("hot", (state.held || []).some((each) => !each.rejected));
  retitle();
}

const waiting = () => (state.confirmations || []).filter((each) => each.state === "waiting");

function retitle() {
  const count = waiting().length;
  document.title = (secret === null ? "Closed · " : isOnline === false ? "Offline · " : count ? `(${count}) ` : "") + "Colonnade";
}

function showProblems(problems) {
  keep($("problems"), problems.map((text) => ({ text })), (each) => each.text, (each) => h("li", {}, foreign(each.text)));
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

const answerButtons = () => document.querySelectorAll("#confirmations button, #refused button, #change-list button, #held button");

/** Take no answer for a moment, since cards have moved. */
function settle() {
  settled = performance.now() + SETTLE;
  setTimeout(() => {
    if (performance.now() >= settled - 20) for (const each of answerButtons()) each.removeAttribute("aria-disabled");
  }, SETTLE);
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
  const card = cardOf(id);
  if (!card) return;
  card.scrollIntoView({ block: "start" });
  card.querySelector("h3").focus({ preventScroll: true });
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

const nameless = (caller) => !caller || caller === "a client without a name";

/** Colonnade's own words on what is asked. */
function lead(q, back) {
  const who = nameless(q.caller) ? "A client without a name" : foreign(q.caller, "who");
  if (back) return h("p", { class: "lead" }, "The server ", foreign(q.server, "who"), ` ${ASKED_BACK[q.kind]}. `);
  return h("p", { class: "lead" }, who, ` ${ASKED[q.kind] || "wants to use an entry"} of the server `, foreign(q.server, "who"), ". ");
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
  fact("Why you are asked", foreign(q.rule, "mono"));
  fact(late ? "Refused because" : "Asked", late ? foreign(q.why) : time(q.asked));
  card.append(facts);
  if (q.arguments) {
    card.append(h("p", { class: "label", id: `${title}-a` }, `${back ? "What it asks" : "Arguments"}, in full`),
      h("pre", { class: "args", tabindex: "0", role: "region", "aria-labelledby": `${title}-a`, "data-part": "args" }, foreign(q.arguments)));
  } else card.append(h("p", { class: "label" }, back ? "Nothing else was sent with it." : "There are no arguments."));
  if (q.others) {
    card.append(h("p", { class: "label", id: `${title}-o` }, "Sent beside the arguments, in full"),
      h("pre", { class: "args", tabindex: "0", role: "region", "aria-labelledby": `${title}-o`, "data-part": "others" }, foreign(q.others)));
  }
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

  card.append(h("div", { class: "answers" },
    answers.has("deny") && button(late ? "Leave it refused" : "Deny", "deny", answer("deny"), { "data-part": "deny" }),
    answers.has("once") && button(late ? "Allow the next identical call once" : "Allow once", "go", answer("once"), { "data-part": "once" }),
    !late && q.whole_session && button(`Allow this ${kindName(q.kind)} for this session`, "plain", () => { if (meant()) allowEntry(); }, { "data-part": "entry" }),
    !late && answers.has("deny") && button("", "deny-all", () => denyAll(card, q.server), { "data-part": "deny-all", hidden: true })));
  if (late) card.append(h("p", { class: "stored" }, "It is for the same client, exactly these arguments and this definition, and holds for ten minutes from your answer."));
  const sure = h("div", { class: "sure", hidden: true },
    h("span", {}, "You do not trust this server. Allow ", foreign(q.name, "strong name"), " with any arguments until the session ends?"),
    button("Allow it", "go", () => { if (meant()) allowForSession(); }, { "data-part": "entry-sure" }),
    button("Not yet", "quiet", () => { sure.hidden = true; card.querySelector("[data-part=entry]").focus(); }));
  const allowForSession = () => act(card, "/api/v1/confirmations/answer", { id: q.id, answer: "session", arguments: "any" });
  const allowEntry = () => {
    if (q.trust !== "untrusted") { allowForSession(); return; }
    sure.hidden = false;
    sure.querySelector("button").focus();
  };
  if (!late && q.whole_session) card.append(sure);

  if (["session", "time", "always"].some((each) => answers.has(each)))
    card.append(folded("more longer", "longer", "Allow for longer", () => lasting(q, answers, chosen, answer, back)));
  return card;
}

/** A call that was refused, in one line. */
function refusedRow(q) {
  const back = Object.hasOwn(ASKED_BACK, q.kind);
  return folded("line", `refused-${q.id}`, [foreign(q.name || kindName(q.kind), "name strong"),
    h("span", { class: "soft" }, "of ", foreign(q.server)), h("span", { class: "soft grow" }, back ? null : ["for ", nameless(q.caller) ? "a client without a name" : foreign(q.caller)]),
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
  if (q.definition) parts.push(folded("more", "definition", "Its definition, with the schema of its arguments", () =>
    h("pre", { class: "args", tabindex: "0", role: "region", "aria-label": "The definition", "data-part": "definition-text" }, foreign(q.definition))));
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
      back ? foreign(q.server, "strong") : nameless(q.caller) ? "every client without a name" : foreign(q.caller, "strong"), " may ",
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
let heldBefore = "";
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
  const servers = [...new Set(all.map((each) => each.server))].map((server) => ({ server, items: all.filter((each) => each.server === server) }));
  const moved = keep($("held"), servers, (each) => each.server, (each) => heldGroup(each, every.length <= FEW), filtered ? null :
    nothing("No definition is held back.", "What a standard or trusted server newly offers is approved automatically. What an untrusted server newly offers, and what changes at a server that is not trusted, is held back and stands here until a person approves it."));
  if (filtered && !all.length) $("held").replaceChildren(nothing("Nothing matches.")());
  const now = JSON.stringify(all);
  if (now !== heldBefore) settle();
  disableUntilSettled();
  heldBefore = now;
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
    const all = button(`Approve all ${approvable.length} shown`, "plain", () => {
      if (!meant()) return;
      sure.hidden = false;
      sure.querySelector("button").focus();
    }, { "data-part": "all" });
    const sure = h("div", { class: "sure", hidden: true }, h("span", {}, `Have you looked at all ${approvable.length}?`),
      button("Approve them", "go", async () => {
        if (!meant()) return;
        await act(group, "/api/v1/definitions/decide-all", { server, fingerprints: approvable.map((each) => each.fingerprint), decision: "approve" });
      }), button("Not yet", "quiet", () => { sure.hidden = true; all.focus(); }));
    head.append(all, sure);
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
  const diff = h("pre", { class: "diff", tabindex: "0", role: "region", "aria-label": changed ? "The difference" : "The definition" },
    changed ? pieces(each.diff) : foreign(each.text));
  const card = h("article", { class: "card held", "aria-label": label },
    h("p", { class: "label" }, changed ? "Approved before, offered differently now" : "Never approved. This is all of it"),
    each.problem && h("p", { class: "warning" }, `Cannot be approved: ${each.problem}.`),
    diff,
    changed && each.text ? h("details", { class: "more", "data-part": `whole-${key}` }, h("summary", {}, "The whole definition as offered now"),
      h("pre", { class: "args", tabindex: "0" }, foreign(each.text))) : null,
    h("div", { class: "answers" },
      !each.rejected && button("Reject", "deny", decide("reject"), { "data-part": `reject-${key}`, "aria-label": `Reject ${label}` }),
      !each.problem && button("Approve", "go", decide("approve"), { "data-part": `approve-${key}`, "aria-label": `Approve ${label}` }),
      h("span", { class: "soft mono finger", title: each.fingerprint }, foreign(String(each.fingerprint).slice(0, 19)))));
  return card;
}

// Changes of the configuration

let changesBefore = "";

function showConfiguration(changes) {
  $("configuration").hidden = $("to-configuration").hidden = !changes.length;
  const all = changes.length ? [{ id: changes[0].id, changes }] : [];
  keep($("change-list"), all, () => "changes", changesCard);
  const now = JSON.stringify(changes);
  if (now !== changesBefore) settle();
  disableUntilSettled();
  changesBefore = now;
}

function changesCard({ id, changes }) {
  const card = h("article", { class: "card ask", "aria-label": "Changes of the configuration that wait" },
    h("p", { class: "lead" }, "The configuration file was changed so that it permits more. That waits for you, because a program that can write the file must not raise its own rights."));
  for (const each of changes) card.append(h("div", { class: "change" },
    h("h3", {}, each.server ? foreign(each.server, "name") : "The host itself"),
    h("ul", { class: "reasons" }, (each.widens || []).map((text) => h("li", {}, foreign(text)))),
    (each.diff || []).length ? h("pre", { class: "diff", tabindex: "0", role: "region", "aria-label": `The change of ${each.server || "the host"}`, "data-part": `diff-${each.server}` }, pieces(each.diff))
    : h("p", { class: "soft" }, "The text of the file is the same here: what a reference in it gives has changed.")));
  card.append(h("div", { class: "answers" },
    button("Apply these changes", "go", () => { if (meant()) act(card, "/api/v1/configuration/reload", { apply: true, shown: id }); }, { "data-part": "apply" }),
    h("span", { class: "soft" }, "To refuse them, change the file back. Secrets are not shown.")));
  return card;
}

// Servers

const LOG_INTERVAL = 2000; // ms between two looks at a log that is open
const STATES = { ready: "good", starting: "busy", held: "busy", "needs login": "busy", failed: "bad", stopped: "off", disabled: "off" };
const logins = new Map(); // by server: the login that was asked for here, and what it is for

function showServers(servers) {
  keep($("server-list"), servers.map(({ id }) => ({ id })), (each) => each.id, serverPlace, nothing("No servers are configured."));
  for (const each of servers) {
    const place = $("server-list").kept.get(each.id).element;
    keep(place.firstChild, [each], () => "row", serverRow);
    if ((each.state !== "needs login" || each.login_failed) && logins.delete(each.id)) {
      say(each.login_failed ? `Nobody has logged in to ${each.id}.` : `${each.id} needs no login any more.`);
    }
    showLogin(place, each.id);
  }
}

/** Open a login, and show what it will be for. Nothing leaves for the issuer before the person follows the link. */
async function connect(id, pressed) {
  pressed.setAttribute("aria-disabled", "true");
  try {
    const answer = await post("/api/v1/servers/login", { server: id }, 1000);
    if (answer.ok) logins.set(id, answer.said);
    else toast(answer.error, "bad");
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
const serverPlace = ({ id }) => h("div", { class: "row" }, h("div", {}), h("div", {}), serverLog(id));

function serverLog(id) {
  const text = h("pre", { class: "args log", tabindex: "0", role: "log", "aria-label": `The log of ${id}` });
  const none = h("p", { class: "soft" }, "It wrote nothing to its standard error.");
  let last = 0;
  const read = async () => {
    if (!log.open || !log.isConnected || secret === null) return;
    try {
      if (document.visibilityState === "visible" && isOnline) {
        const answer = await post("/api/v1/servers/log", { server: id, after: last });
        if (answer.ok) add(answer.said.lines || []);
      }
    } catch { /* it is tried again */ }
    setTimeout(read, LOG_INTERVAL);
  };
  const add = (lines) => {
    const atEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 8;
    for (const each of lines) {
      text.append(h("div", {}, h("span", { class: "soft" }, clock(each.t), " "), foreign(each.line)));
      last = each.n;
    }
    while (text.childNodes.length > 200) text.firstChild.remove();
    none.hidden = text.childNodes.length > 0;
    text.hidden = !none.hidden;
    if (atEnd) text.scrollTop = text.scrollHeight;
  };
  const log = folded("more", `log-${id}`, "Its log", () => { none.hidden = text.hidden = true; return [none, text]; });
  log.addEventListener("toggle", () => { if (log.open) read(); });
  return log;
}

function serverRow(s) {
  const entries = Object.entries(s.entries || {}).filter(([, count]) => count)
    .map(([kind, count]) => plural(count, kind === "resourceTemplates" ? "template" : kind.replace(/s$/, ""))).join(", ");
  const number = (label, value, look) => h("div", { class: look }, h("dt", {}, label), h("dd", {}, value));
  const failed = s.state === "failed";
  const needsLogin = s.state === "needs login";
  const row = h("article", { class: "server", "aria-label": s.id },
    h("div", { class: "row-head" },
      h("h3", {}, foreign(s.id), s.title && s.title !== s.id ? h("span", { class: "title" }, foreign(s.title)) : null),
      h("span", { class: `state ${STATES[s.state] || "busy"}` }, h("span", { class: "dot", "aria-hidden": "true" }), foreign(s.state)),
      trustBadge(s.trust)),
    h("p", { class: "soft" }, foreign([s.transport, s.revision, `${s.isolation}`, entries].filter(Boolean).join(" · "))),
    s.session ? h("p", { class: "detail" }, foreign(s.session)) : null,
    s.detail && s.state !== "ready" ? h("p", { class: failed ? "detail bad" : "detail" }, foreign(s.detail), failed ? " " : null,
      failed ? button("Restart it", "quiet tiny", () => act(row, "/api/v1/servers/control", { server: s.id, action: "restart" }), { "data-part": "restart", "aria-label": `Restart ${s.id}` }) : null) : null,
    needsLogin ? h("div", { class: "answers small" }, button("Connect", "go", (event) => connect(s.id, event.currentTarget), { "data-part": "connect", "aria-label": `Connect ${s.id}` })) : null,
    needsLogin && s.login_failed ? h("p", { class: "warn" }, "The last login came to nothing: ", foreign(s.login_failed)) : null,
    h("dl", { class: "numbers" },
      number("Latency", s.latency_ms === null || s.latency_ms === undefined ? "–" : `${Math.round(s.latency_ms)} ms`),
      number("Calls", s.calls), number("Failed", s.failed, s.failed ? "some-bad" : null), number("In flight", s.in_flight),
      s.bytes_in === undefined ? null : number("Received", bytes(s.bytes_in)), number("Held back", s.held, s.held ? "some-ask" : null)),
    [...(s.list_problems || []), ...(s.left_out || []).map((each) => `${each} is left out: clients could not read it`), ...(s.warnings || [])].map((text) => h("p", { class: "warn" }, foreign(text))),
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
  const servers = [...new Set(fits.map((each) => each.server))].map((server) => ({ server, items: fits.filter((each) => each.server === server) }));
  const small = fits.length <= 40;
  keep($("catalog-list"), servers, (each) => each.server, (each) => catalogGroup(each, small), null);
  const none = $("catalog-list").childNodes.length === 0;
  if (none) $("catalog-list").append(nothing(filtered ? "Nothing matches." : "No server offers anything yet.")());
}

/** The rows of a group are made when it is opened: there may be thousands. */
function catalogGroup({ server, items }, open) {
  const body = h("tbody", {});
  const table = h("table", {}, h("caption", { class: "unseen" }, `What ${server} offers`),
    h("thead", {}, h("tr", {}, ["Name", "Verdict", "Why", "Definition", ""].map((text) => h("th", { scope: "col" }, text || h("span", { class: "unseen" }, "Explain"))))), body);
  const fill = () => { if (!body.childNodes.length) body.append(...items.flatMap(catalogRow)); };
  const counts = ["allow", "ask", "deny"].map((verdict) => [verdict, items.filter((each) => each.verdict === verdict).length]).filter(([, count]) => count);
  const group = h("details", { class: "server-group", open, "data-part": `server-${server}`, on: { toggle: () => { if (group.open) fill(); } } },
    h("summary", {}, foreign(server, "strong"), h("span", { class: "soft" }, counts.map(([verdict, count]) => `${count} ${verdict}`).join(" · "))), table);
  if (open) fill();
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
  const ask = async () => {
    let args = null;
    if (given.value.trim()) {
      try { args = JSON.parse(given.value); } catch { said.replaceChildren(h("p", { class: "warn" }, "The arguments are no JSON.")); return; }
    }
    try {
      const answer = await post("/api/v1/explain", { server: each.server, kind: each.kind, name: each.name, ...(args === null ? {} : { arguments: args }) });
      said.replaceChildren(...(answer.ok ? explained(answer.said) : [h("p", { class: "warn" }, foreign(answer.error))]));
    } catch { said.replaceChildren(h("p", { class: "warn" }, "The host cannot be reached.")); }
  };
  box.append(said, ["tool", "prompt"].includes(each.kind) ? h("div", { class: "try" }, given, button("Explain with these arguments", "plain", ask)) : "");
  ask();
}

function explained(e) {
  return [
    h("p", {}, verdictBadge(e.verdict), " ", foreign(e.sentence)),
    h("ul", { class: "tried" }, (e.tried || []).map((each) => h("li", { class: each.matched ? "hit" : null },
      h("span", { "aria-hidden": "true" }, each.matched ? "→" : "·"), h("span", {}, foreign(each.rule, "mono"), h("span", { class: "soft" }, each.matched ? " matches: " : " does not: ", foreign(each.why)))))),
    e.grant ? h("p", { class: "soft" }, "There is a grant for it: ", foreign(e.grant.id || "", "mono")) : null,
  ].filter(Boolean);
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
  const newest = activity.slice(-200).reverse();
  const seen = new Map();
  const items = newest.map((each) => { // two alike are two
    const form = JSON.stringify(each);
    seen.set(form, (seen.get(form) || 0) + 1);
    return { ...each, at: seen.get(form) };
  });
  keep($("activity-list"), items, (each) => JSON.stringify(each), (each) =>
    h("li", { class: known(each.level, ["info", "warning", "error"]) }, time(each.t),
      h("div", {}, each.server ? foreign(each.server, "strong") : null, each.server ? " " : null, each.level !== "info" ? h("span", { class: "unseen" }, `${known(each.level, ["info", "warning", "error"])}: `) : null, foreign(happened(each)))),
    nothing("Nothing has happened yet."));
}

// ---- Opening and closing ----

function close(why) {
  secret = null;
  store();
  if (reading) reading.abort();
  reading = null;
  state = {};
  isOnline = null;
  memory = new Map();
  logins.clear();
  for (const id of ["confirmations", "refused", "change-list", "held", "server-list", "catalog-list", "grant-list", "activity-list", "problems", "host", "say"]) {
    $(id).replaceChildren();
    $(id).kept = undefined;
  }
  if ($("toast")) $("toast").remove();
  $("elsewhere").hidden = true;
  closeNotices([]);
  document.body.classList.remove("offline");
  $("link").dataset.state = "off";
  $("link-text").textContent = "closed";
  $("banner").hidden = true;
  $("main").hidden = true;
  $("leave").hidden = true;
  $("closed").hidden = false;
  $("closed-why").textContent = why;
  $("closed-title").focus();
  retitle();
}

async function begin() {
  restore();
  const code = location.hash.slice(1);
  if (/^[A-Za-z0-9_-]{43}$/.test(code)) {
    history.replaceState(null, "", location.pathname); // it was good once
    try {
      const answer = await send("/console/open", { code }, {});
      if (answer.ok && typeof answer.said.secret === "string") {
        secret = answer.said.secret;
        sequence = 0;
        store();
      } else if (secret === null) { close(answer.error[0].toUpperCase() + answer.error.slice(1) + "."); return; }
    } catch {
      if (secret === null) { close("The host cannot be reached; the link may still be good."); return; }
    }
  }
  if (secret === null) { close("It opens with a link that works once."); return; }
  if (reading) reading.abort();
  follow();
}

document.addEventListener("click", (event) => { // a button that waits takes no press
  const pressed = event.target instanceof Element ? event.target.closest("button") : null;
  if (pressed && pressed.getAttribute("aria-disabled") === "true") { event.stopPropagation(); event.preventDefault(); }
}, true);
$("leave").addEventListener("click", async () => {
  try { await post("/console/leave", {}); } catch { /* it is over here in any case */ }
  close("You have signed out.");
});
$("held-text").addEventListener("input", showHeld);
$("held-standing").addEventListener("change", showHeld);
$("notify-yes").addEventListener("click", turnOnNotifications);
$("notify-no").addEventListener("click", refuseNotifications);
$("elsewhere").addEventListener("click", () => { if (waiting().length) goTo(waiting()[0].id); });
$("filter-text").addEventListener("input", showCatalog);
$("filter-verdict").addEventListener("change", showCatalog);
window.addEventListener("hashchange", () => { if (/^#[A-Za-z0-9_-]{43}$/.test(location.hash)) begin(); });
setInterval(() => {
  for (const each of document.querySelectorAll("[data-until]")) each.textContent = left(Number(each.dataset.until));
}, 1000);
begin();

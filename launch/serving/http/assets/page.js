"use strict";

const at = (id) => document.getElementById(id);
const messages = [];
let model = null;
let asking = null; // the AbortController of the answer under way
let before = null; // the load at the last look

const SAMPLED = ["temperature", "top_p", "top_k", "max_tokens", "seed"];

// What can be done with a model, by the path that does it. `body` makes the request of what was
// typed; `show` fills the answer's box; a mode without it streams text.
const MODES = {
  chat: {
    path: "/v1/chat/completions",
    hint: "Write a message; the model answers, and remembers the conversation.",
    settings: SAMPLED,
    body: () => ({ messages }),
    piece: (choice) => choice.delta.content ?? "",
  },
  text: {
    path: "/v1/completions",
    hint: "Write the beginning of a text; the model goes on.",
    settings: SAMPLED,
    body: (prompt) => ({ prompt }),
    piece: (choice) => choice.text,
  },
  vector: {
    path: "/v1/embeddings",
    hint: "Write a text; you get its vector.",
    body: (input) => ({ input }),
    show: (box, { data: [{ embedding }] }) => {
      const numbers = embedding.slice(0, 24).map((value) => value.toFixed(4));
      box.textContent = `[${numbers.join(", ")}${embedding.length > 24 ? ", …" : ""}]\n`
        + `${embedding.length} dimensions`;
    },
  },
  classes: {
    path: "/classify",
    hint: "Write a text; you get the probabilities of its classes.",
    body: (input) => ({ input }),
    show: (box, { data: [{ label, probs }] }) => {
      const shares = probs.map((share) => share.toFixed(4)).join(", ");
      box.textContent = `${label}\n${shares}`;
    },
  },
  ranking: {
    path: "/rerank",
    hint: "Write a question, and documents below it, each in a line: the best comes first.",
    body: (text) => {
      const [query, ...documents] = text.split("\n").filter((line) => line.trim());
      return { query, documents };
    },
    show: (box, { results }) => {
      const line = (entry) => `${entry.relevance_score.toFixed(4)}  ${entry.document.text}`;
      box.textContent = results.map(line).join("\n");
    },
  },
  image: {
    path: "/v1/images/generations",
    hint: "Say what is to be painted.",
    settings: ["seed"],
    body: (prompt) => ({ prompt }),
    show: (box, { data }) => {
      for (const { b64_json } of data) {
        const image = new Image();
        image.src = `data:image/png;base64,${b64_json}`;
        image.alt = "The image that was made";
        box.append(image);
      }
    },
  },
  speech: {
    path: "/v1/audio/transcriptions",
    hint: "Choose a file of sound; you get what is said in it.",
    settings: ["temperature", "seed"],
    file: true,
    show: (box, { text }) => { box.textContent = text; },
  },
};

const mode = () => MODES[at("mode").value];

function headers() {
  const key = at("key").value;
  return key ? { Authorization: `Bearer ${key}` } : {};
}

function show(role, text) {
  const box = document.createElement("div");
  box.className = `message ${role}`;
  box.textContent = text;
  at("talk").append(box);
  at("talk").scrollTop = at("talk").scrollHeight;
  at("clear").hidden = false;
  return box;
}

// Does something that makes the talk longer; whoever reads its end goes on to do so.
function grow(act) {
  const talk = at("talk");
  const reads = talk.scrollTop + talk.clientHeight >= talk.scrollHeight - 8;
  act();
  if (reads) talk.scrollTop = talk.scrollHeight;
}

function settings() {
  const values = { model: at("model").value };
  for (const name of mode().settings ?? []) {
    if (at(name).value !== "") values[name] = Number(at(name).value);
  }
  return values;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

function request(prompt, file) {
  const { body, show: whole } = mode();
  if (!file) {
    const values = { ...settings(), ...(whole ? {} : { stream: true }), ...body(prompt) };
    const json = { "Content-Type": "application/json", ...headers() };
    return { method: "POST", headers: json, body: JSON.stringify(values) };
  }
  const form = new FormData();
  form.append("file", file);
  for (const [name, value] of Object.entries(settings())) form.append(name, value);
  return { method: "POST", headers: headers(), body: form };
}

async function fill(box, response) {
  const { piece, show: whole } = mode();
  if (whole) return whole(box, await response.json());
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    const choice = event.choices[0];
    if (choice) grow(() => { box.textContent += piece(choice); });
  }
}

async function answer(prompt, file) {
  const chat = mode() === MODES.chat;
  if (chat) messages.push({ role: "user", content: prompt });
  show("user", file ? file.name : prompt);
  const box = show("assistant", "");
  asking = new AbortController();
  at("send").textContent = "Stop";
  for (const id of ["mode", "model"]) at(id).disabled = true;
  try {
    const asked = { ...request(prompt, file), signal: asking.signal };
    const response = await fetch(mode().path.slice(1), asked);
    if (!response.ok) throw new Error((await response.json()).error.message);
    await fill(box, response);
  } catch (error) {
    if (error.name !== "AbortError") {
      show("error", error.message);
      if (!file && !at("prompt").value) at("prompt").value = prompt; // to be mended
    }
  } finally {
    if (chat && !box.isConnected) messages.length = 0; // a new conversation has begun
    else if (chat && box.textContent) messages.push({ role: "assistant", content: box.textContent });
    else if (chat) messages.pop();
    if (!box.hasChildNodes()) box.remove();
    asking = null;
    at("send").textContent = "Send";
    for (const id of ["mode", "model"]) at(id).disabled = false;
  }
}

// Fills a list of choices, if they are others than those that it has.
function choices(list, names) {
  if ([...list.options].map((option) => option.value).join("\n") === names.join("\n")) return false;
  const chosen = list.value;
  list.replaceChildren(...names.map((name) => new Option(name, name)));
  if (names.includes(chosen)) list.value = chosen;
  return true;
}

function showMode() {
  const { hint, settings: shown = [], file } = mode();
  at("talk").dataset.hint = hint;
  at("prompt").placeholder = file ? "" : "Message";
  at("prompt").hidden = Boolean(file);
  at("file").hidden = !file;
  for (const name of SAMPLED) {
    at(name).hidden = at(name).previousElementSibling.hidden = !shown.includes(name);
  }
}

function showLoad(load) {
  for (const id of ["waiting", "prefix_hits", "preemptions", "computed", "groups"]) {
    at(id).hidden = at(id).previousElementSibling.hidden = !(id in load);
    at(id).textContent = load[id];
  }
  at("brief").textContent = `${load.running} running, ${load.waiting} waiting`;
  at("running").textContent = load.slots ? `${load.running} of ${load.slots}` : load.running;
  for (const id of ["blocks", "rate"]) {
    at(id).hidden = at(id).previousElementSibling.hidden = !load.slots;
  }
  const rate = at("device_rate");
  rate.hidden = rate.previousElementSibling.hidden = !load.device_seconds;
  at("cache").hidden = at("slots").hidden = !load.slots;
  if (!load.slots) return;
  at("blocks").textContent = `${load.blocks_held} of ${load.blocks}`;
  const share = (100 * load.blocks_held) / load.blocks;
  at("cache").firstElementChild.style.setProperty("--full", `${share}%`);
  while (at("slots").children.length < load.slots) at("slots").append(document.createElement("i"));
  load.lengths.forEach((length, slot) => {
    at("slots").children[slot].style.setProperty("--full", `${(100 * length) / load.longest}%`);
  });
  if (before) {
    const seconds = load.seconds - before.seconds;
    const tokens = load.generation_tokens - before.generation_tokens;
    at("rate").textContent = (tokens / seconds).toFixed(tokens ? 1 : 0);
    const simulated = load.device_seconds - before.device_seconds;
    if (simulated > 0) at("device_rate").textContent = (tokens / simulated).toFixed(0);
  }
}

async function look() {
  try {
    const load = await (await fetch("load")).json();
    model = load.model;
    choices(at("model"), load.models);
    const modes = Object.keys(MODES).filter((name) => load.paths.includes(MODES[name].path));
    if (choices(at("mode"), modes)) showMode();
    at("facts").textContent = load.facts;
    // A short context is to hold more than the answer.
    if (!before && load.longest) {
      at("max_tokens").value = Math.min(at("max_tokens").value, Math.ceil(load.longest / 4));
    }
    showLoad(load);
    before = load;
  } catch {
    at("facts").textContent = "the server does not answer";
  }
}

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (asking) return asking.abort();
  const prompt = at("prompt").value;
  const [file] = mode()?.file ? at("file").files : [];
  if (!model || !(file || prompt.trim())) return;
  at("prompt").value = "";
  answer(prompt, file);
});
at("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    at("form").requestSubmit();
  }
});
at("mode").addEventListener("change", showMode);
at("clear").addEventListener("click", () => {
  asking?.abort();
  messages.length = 0;
  at("talk").replaceChildren();
  at("clear").hidden = true;
  at("prompt").focus();
});
if (matchMedia("(max-width: 44rem)").matches) at("settings").open = at("batch").open = false;
look();
setInterval(look, 1000);

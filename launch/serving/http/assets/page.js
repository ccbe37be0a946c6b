"use strict";

const at = (id) => document.getElementById(id);
const messages = [];
let model = null;
let asking = null; // the AbortController of the answer under way
let before = null; // the load at the last look

function headers() {
  const key = at("key").value;
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

function show(role, text) {
  const box = document.createElement("div");
  box.className = `message ${role}`;
  box.textContent = text;
  at("talk").append(box);
  at("talk").scrollTop = at("talk").scrollHeight;
  return box;
}

function settings() {
  const values = { model, stream: true };
  for (const name of ["temperature", "top_p", "top_k", "max_tokens", "seed"]) {
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

async function answer(prompt) {
  const chat = at("mode").value === "chat";
  if (chat) messages.push({ role: "user", content: prompt });
  show("user", prompt);
  const box = show("assistant", "");
  asking = new AbortController();
  at("send").textContent = "Stop";
  try {
    const response = await fetch(chat ? "v1/chat/completions" : "v1/completions", {
      method: "POST",
      headers: headers(),
      signal: asking.signal,
      body: JSON.stringify({ ...settings(), ...(chat ? { messages } : { prompt }) }),
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      const choice = event.choices[0];
      if (choice) box.textContent += chat ? choice.delta.content ?? "" : choice.text;
      at("talk").scrollTop = at("talk").scrollHeight;
    }
  } catch (error) {
    if (error.name !== "AbortError") show("error", error.message);
  } finally {
    if (chat && box.textContent) messages.push({ role: "assistant", content: box.textContent });
    else if (chat) messages.pop();
    asking = null;
    at("send").textContent = "Send";
  }
}

async function look() {
  try {
    const load = await (await fetch("load")).json();
    model = load.model;
    at("name").textContent = model;
    at("facts").textContent = load.facts;
    at("running").textContent = `${load.running} of ${load.slots}`;
    at("slots").value = load.running / load.slots;
    at("waiting").textContent = load.waiting;
    at("blocks").textContent = `${load.blocks_held} of ${load.blocks}`;
    at("cache").value = load.blocks_held / load.blocks;
    at("reused").textContent = load.prefix_hits;
    at("preemptions").textContent = load.preemptions;
    if (before) {
      const seconds = load.seconds - before.seconds;
      const tokens = load.generation_tokens - before.generation_tokens;
      at("rate").textContent = (tokens / seconds).toFixed(tokens ? 1 : 0);
    }
    before = load;
  } catch {
    at("facts").textContent = "the server does not answer";
  }
}

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (asking) return asking.abort();
  const prompt = at("prompt").value;
  if (!prompt.trim() || !model) return;
  at("prompt").value = "";
  answer(prompt);
});
at("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    at("form").requestSubmit();
  }
});
look();
setInterval(look, 1000);

// Runs the model outside of the page's thread, so the page stays responsive.
import { load } from "./talk.mjs";
import { Conversation } from "./conversation.mjs";
import { Tokenizer } from "./tokenizers.mjs";

/** The most tokens of an answer. */
const MAX_TOKENS = 300;

let conversation;
let isStopped = false;

/** Lets messages of the page arrive. */
const channel = new MessageChannel();
const pause = () => new Promise((resolve) => {
  channel.port1.onmessage = resolve;
  channel.port2.postMessage(null);
});

async function json(name) {
  const response = await fetch(new URL(name, import.meta.url));
  if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
  return response.json();
}

async function begin() {
  const onProgress = (loaded, total) => postMessage({ kind: "progress", loaded, total });
  const [model, tokenizer, settings] = await Promise.all([load({ onProgress }), json("tokenizer.json"), json("settings.json")]);
  conversation = new Conversation(model, new Tokenizer(tokenizer, {}), settings);
  postMessage({ kind: "ready", memoryBytes: model.memoryBytes, capacity: conversation.capacity });
}

async function answer(message) {
  isStopped = false;
  const begin = performance.now();
  let first = begin;
  let tokens = 0;
  const report = (kind, text) => {
    const seconds = (performance.now() - first) / 1000;
    const tokensPerSecond = tokens > 1 ? (tokens - 1) / seconds : null;
    postMessage({ kind, text, tokens, tokensPerSecond, promptSeconds: (first - begin) / 1000, length: conversation.length });
  };
  let last = "";
  for (const { text } of conversation.answer(message, MAX_TOKENS)) {
    tokens += 1;
    if (tokens === 1) first = performance.now();
    last = text;
    report("text", text);
    await pause();
    if (isStopped) break;
  }
  report("done", last);
}

onmessage = async ({ data }) => {
  try {
    if (data.kind === "begin") await begin();
    if (data.kind === "ask") await answer(data.message);
    if (data.kind === "stop") isStopped = true;
    if (data.kind === "reset") conversation.reset();
  } catch (error) {
    postMessage({ kind: "error", message: error.message });
  }
};

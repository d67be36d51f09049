// Shows a conversation with the model in the worker.
const element = (id) => document.getElementById(id);
const worker = new Worker(new URL("worker.mjs", import.meta.url), { type: "module" });
const mib = (bytes) => (bytes / 2 ** 20).toFixed(0);

/** The paragraph of the answer that is being written. */
let open = null;

function paragraph(name, text) {
  const own = document.createElement("p");
  own.className = name;
  own.textContent = text;
  element("talk").append(own);
  own.scrollIntoView({ block: "end" });
  return own;
}

function setBusy(isBusy) {
  element("send").disabled = isBusy;
  element("new").disabled = isBusy;
  element("stop").disabled = !isBusy;
  if (!isBusy) element("message").focus();
}

const HANDLERS = {
  progress({ loaded, total }) {
    element("progress").max = total;
    element("progress").value = loaded;
    element("status").textContent = `Loading the weights: ${mib(loaded)} of ${mib(total)} MiB`;
  },
  ready({ memoryBytes, capacity }) {
    element("progress").hidden = true;
    element("status").textContent = `Ready. The model has ${mib(memoryBytes)} MiB of memory and reads up to ${capacity} tokens.`;
    setBusy(false);
  },
  text({ text, tokens, tokensPerSecond }) {
    open.textContent = text;
    open.scrollIntoView({ block: "end" });
    if (tokensPerSecond !== null) element("status").textContent = `${tokens} tokens, ${tokensPerSecond.toFixed(1)} tokens/s`;
  },
  done(answer) {
    HANDLERS.text(answer);
    const { tokens, tokensPerSecond, promptSeconds, length } = answer;
    const speed = tokensPerSecond === null ? "" : `, ${tokensPerSecond.toFixed(1)} tokens/s`;
    element("status").textContent =
      `${tokens} tokens${speed}. The first took ${promptSeconds.toFixed(2)} s. The conversation has ${length} tokens.`;
    open = null;
    setBusy(false);
  },
  error({ message }) {
    element("status").textContent = `Error: ${message}`;
    open = null;
    setBusy(false);
  },
};

worker.onmessage = ({ data }) => HANDLERS[data.kind](data);
worker.onerror = ({ message }) => HANDLERS.error({ message: message ?? "the worker can't be loaded" });

element("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const message = element("message").value.trim();
  if (message === "" || element("send").disabled) return;
  element("message").value = "";
  paragraph("question", message);
  open = paragraph("answer", "…");
  setBusy(true);
  worker.postMessage({ kind: "ask", message });
});
element("stop").addEventListener("click", () => worker.postMessage({ kind: "stop" }));
element("new").addEventListener("click", () => {
  element("talk").replaceChildren();
  worker.postMessage({ kind: "reset" });
});

worker.postMessage({ kind: "begin" });

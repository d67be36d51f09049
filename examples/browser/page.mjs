// Draws a line of text, and asks the network which way up it is.
import { load } from "./direction.mjs";

const element = (id) => document.getElementById(id);
const canvas = element("picture");
const context = canvas.getContext("2d", { willReadFrequently: true });
const LABELS = ["upright", "upside down"];

let isTurned = false;
/** A chosen picture, in place of the text. */
let photo = null;

function draw() {
  const { width, height } = canvas;
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  if (isTurned) context.setTransform(-1, 0, 0, -1, width, height);
  if (photo !== null) {
    context.drawImage(photo, 0, 0, width, height);
    return;
  }
  context.fillStyle = "black";
  context.font = "32px sans-serif";
  context.textBaseline = "middle";
  context.fillText(element("text").value, 6, height / 2, width - 12);
}

/** Writes the pixels of the canvas into `target`: channels first, from -1 to 1. */
function pixels(target) {
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  const plane = canvas.width * canvas.height;
  for (let at = 0; at < plane; at++) {
    for (let channel = 0; channel < 3; channel++) {
      target[channel * plane + at] = data[4 * at + channel] / 127.5 - 1;
    }
  }
}

try {
  const model = await load();
  const [output] = model.outputs;
  // The network reads this memory, so nothing is copied.
  const x = model.input("x", [1, 3, canvas.height, canvas.width]);

  const classify = () => {
    draw();
    pixels(x.data);
    const start = performance.now();
    const { data } = model.runViews({ x })[output.name];
    const milliseconds = performance.now() - start;
    const best = data[0] >= data[1] ? 0 : 1;
    element("answer").textContent = `${LABELS[best]} (${(100 * data[best]).toFixed(1)} %)`;
    element("details").textContent =
      `One call takes ${milliseconds.toFixed(1)} ms; the network has ${(model.memoryBytes / 2 ** 20).toFixed(1)} MiB of memory.`;
  };

  element("text").addEventListener("input", () => {
    photo = null;
    classify();
  });
  element("turn").addEventListener("click", () => {
    isTurned = !isTurned;
    classify();
  });
  element("file").addEventListener("change", async ({ target }) => {
    if (target.files.length === 0) return;
    photo = await createImageBitmap(target.files[0]);
    classify();
  });
  classify();
} catch (error) {
  element("answer").textContent = `Error: ${error.message}`;
}

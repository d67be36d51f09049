// A conversation in Node: node speed.mjs FOLDER "a message" [tokens]. FOLDER is one of prepare.py.
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, message, count = "64"] = process.argv.slice(2);
const own = (name) => new URL(name, `${pathToFileURL(resolve(folder))}/`);
const [{ load }, { Conversation }, { Tokenizer }] = await Promise.all(
  ["talk.mjs", "conversation.mjs", "tokenizers.mjs"].map((name) => import(own(name))),
);
const json = (name) => JSON.parse(readFileSync(own(name), "utf8"));

const model = await load();
const conversation = new Conversation(model, new Tokenizer(json("tokenizer.json"), {}), json("settings.json"));
// The first run lets the engine optimise the code.
for (let run = 0; run < 2; run++) {
  conversation.reset();
  const begin = performance.now();
  let first;
  let last;
  for (last of conversation.answer(message, Number(count))) first ??= performance.now();
  const seconds = (performance.now() - first) / 1000;
  console.log(`${last.text}\n`);
  console.log(
    `prompt ${((first - begin) / 1000).toFixed(3)} s, ${last.tokens} tokens, ` +
      `${((last.tokens - 1) / seconds).toFixed(1)} tokens/s, memory ${(model.memoryBytes / 2 ** 20).toFixed(0)} MiB`,
  );
}
